// SPDX-License-Identifier: Apache-2.0
//! What to do about a story, specific to what was measured. `saves_ns` is an upper bound: what the story cost, or the
//! part of it that the change can reach.

use crate::kind::Kind;
use crate::scene::Scene;
use crate::story::Story;
use crate::words;
use gpuwhy_model::{Fix, units};
use std::collections::BTreeSet;

/// Fixes, the most saving first.
pub(crate) fn fixes(story: &Story, scene: &Scene<'_>) -> Vec<Fix> {
    let mut fixes = match (story.kind, story.root) {
        (Kind::InputStarved, root) => input(story, root, scene),
        (Kind::ProcessChurn, _) => vec![fix(
            "keep workers alive instead of starting new ones (DataLoader: persistent_workers=True; one pool for the \
             whole run instead of one for each use)",
            story.ns,
        )],
        (kind, root) => own(story, kind, root, scene),
    };
    fixes.sort_by_key(|fix| std::cmp::Reverse(fix.saves_ns));
    fixes
}

fn fix(text: impl Into<String>, saves_ns: u64) -> Fix {
    Fix { text: text.into(), saves_ns, saves_bytes: 0 }
}

fn at(line: Option<String>) -> String {
    line.map(|line| format!(" at {line}")).unwrap_or_default()
}

/// The launching thread waited for somebody else's product.
fn input(story: &Story, root: Kind, scene: &Scene<'_>) -> Vec<Fix> {
    let part = story.root_part();
    let line = at(scene.line(&part.leaf_stacks));
    let mut fixes = match root {
        Kind::DiskIo => vec![fix(
            format!("put the data on a faster disk or keep it in memory; the reads{line} are what is waited for"),
            part.ns,
        )],
        Kind::HostSleep => vec![fix(format!("remove the sleep{line}"), part.ns)],
        Kind::NetworkIo => {
            vec![fix(format!("fetch ahead or keep the data locally; the reads{line} wait for the network"), part.ns)]
        }
        Kind::CpuContention | Kind::CpuThrottled | Kind::HostMemoryPressure => own(story, root, root, scene),
        Kind::LockContention => vec![fix(format!("hold the lock{line} for a shorter time"), part.ns)],
        _ => vec![fix(
            format!("make the work{line} cheaper: decode less, cache results, or move it to the GPU"),
            part.ns,
        )],
    };
    fixes.extend(more_workers(story, scene));
    fixes
}

/// More workers help while there are cores for them; waiting needs no core.
fn more_workers(story: &Story, scene: &Scene<'_>) -> Option<Fix> {
    let part = story.root_part();
    if !matches!(story.root, Kind::CpuBoundWorker | Kind::DiskIo | Kind::HostSleep | Kind::NetworkIo) {
        return None;
    }
    let launcher = scene.thread(story.launcher).pid;
    // Those of other epochs are gone: only who was there at one time counts.
    let middle = i64::try_from(scene.steady_span.0 / 2 + scene.steady_span.1 / 2).unwrap_or(i64::MAX);
    let there = |pid: &u32| {
        let known = scene.facts.processes.get(pid);
        let began = known.and_then(|process| process.started).is_none_or(|at| at <= middle);
        began && known.and_then(|process| process.ended).is_none_or(|at| at >= middle)
    };
    let pids = part.threads.keys().map(|index| scene.thread(*index).pid).filter(|pid| *pid != launcher);
    let pids: BTreeSet<u32> = pids.filter(there).collect();
    let workers = pids.len() as u64 / story.gpus(scene);
    let share = scene.share(story.ns / story.gpus(scene)).min(0.95);
    let wanted = (workers as f64 / (1.0 - share)).ceil() as u64;
    if workers == 0 || wanted <= workers {
        return None;
    }
    let cores = scene.facts.cores;
    let idle = scene.idle_cores.unwrap_or(0.0);
    let free = if story.root == Kind::CpuBoundWorker { idle.floor() as u64 } else { wanted - workers };
    let possible = (workers + free).min(wanted);
    if possible <= workers {
        return Some(fix(
            format!(
                "num_workers {workers} → {wanted} would be needed, but of {cores} cores only {idle:.1} are idle: add cores"
            ),
            part.ns,
        ));
    }
    let saves = part.ns as f64 * (possible - workers) as f64 / (wanted - workers) as f64;
    Some(fix(format!("num_workers {workers} → {possible} ({cores} cores, {idle:.1} idle)"), saves as u64))
}

/// Something about the launching thread, or about whoever it waited for.
fn own(story: &Story, kind: Kind, root: Kind, scene: &Scene<'_>) -> Vec<Fix> {
    let part = story.root_part();
    let line = at(words::blamed_line(story, scene));
    match (kind, root) {
        (Kind::CpuContention, _) => contention(story, scene),
        (Kind::CpuThrottled, _) => vec![throttled(part.ns, scene)],
        (Kind::HostMemoryPressure, _) => vec![memory(part.ns, scene)],
        (Kind::LockContention, _) if words::is_gil(story) => {
            let who = scene.all_of(&part.threads);
            vec![fix(
                format!("move the work of {who}{line} to another process: in the same one it holds Python's lock"),
                story.ns,
            )]
        }
        (Kind::LockContention, _) => {
            vec![fix(format!("hold the lock for a shorter time: its holder works{line}"), story.ns)]
        }
        (Kind::DiskIo, _) => {
            vec![fix(format!("read ahead in another thread or process; the launching thread reads{line}"), story.ns)]
        }
        (Kind::NetworkIo, _) => {
            vec![fix(format!("fetch in another thread or process; the launching thread waits{line}"), story.ns)]
        }
        (Kind::HostSleep, _) => vec![fix(format!("remove the sleep{line}, or do it in another thread"), story.ns)],
        (Kind::SyncBound, _) => vec![fix(
            format!(
                "wait for the GPU less often{line}: {} waits a second; collect losses on the device and read them every \
                 hundred steps (.item(), .cpu(), print and synchronize() all wait)",
                scene.per_second(scene.steady.syncs)
            ),
            story.ns,
        )],
        (Kind::CopyBound, _) => vec![copies(story, scene, &line)],
        (Kind::AllocChurn, _) => vec![fix(
            format!(
                "reuse device memory instead of taking and freeing it{line} ({} calls a second): drop empty_cache() from the \
                 loop, keep buffers, or let PyTorch's allocator cache them",
                scene.per_second(scene.steady.allocs)
            ),
            story.ns,
        )],
        (Kind::LaunchBound, _) => vec![
            fix(format!("take the work{line} off the launching thread"), story.ns),
            fix(
                "make fewer, larger launches: CUDA graphs, torch.compile(mode=\"reduce-overhead\"), larger batches",
                story.ns,
            ),
        ],
        _ => Vec::new(),
    }
}

fn contention(story: &Story, scene: &Scene<'_>) -> Vec<Fix> {
    let part = story.root_part();
    let ranked = words::ranked_holders(part, scene);
    let cores = scene.facts.cores;
    let idle = scene.idle_cores.unwrap_or(0.0);
    let (own, others): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|(_, pid, _)| scene.facts.is_traced(*pid));
    let mut fixes = Vec::new();
    if let Some((name, pid, _)) = others.first() {
        let saves = others.iter().map(|(_, _, ns)| ns).sum();
        let where_to = if idle >= 1.0 {
            format!("{idle:.1} of {cores} cores are idle: keep them apart with taskset or cpusets")
        } else {
            format!(
                "all {cores} cores are busy: stop it, give it a lower priority (renice 19 -p {pid}) or another machine"
            )
        };
        fixes.push(fix(format!("{name} {pid} takes the CPU; {where_to}"), saves));
    }
    if let Some((name, pid, _)) = own.first() {
        let saves = own.iter().map(|(_, _, ns)| ns).sum();
        let text = format!(
            "the job's own {name} {pid} takes the CPU of the launching thread: fewer workers or OMP_NUM_THREADS=1 ({cores} cores)"
        );
        fixes.push(fix(text, saves));
    }
    fixes
}

fn throttled(saves_ns: u64, scene: &Scene<'_>) -> Fix {
    let limited = scene.facts.cgroups.iter().filter(|sample| sample.throttled_periods.unwrap_or(0) > 0);
    let worst = limited.max_by_key(|sample| sample.throttled_ns);
    match worst.and_then(|sample| Some((sample, sample.quota_ns?, sample.period_ns.filter(|period| *period > 0)?))) {
        Some((sample, quota, period)) => {
            let cores = quota as f64 / period as f64;
            fix(
                format!("raise the CPU quota of {} (now {cores:.1} cores), or use fewer workers", sample.path),
                saves_ns,
            )
        }
        None => fix("raise the CPU quota of the job's cgroup (container limits), or use fewer workers", saves_ns),
    }
}

fn memory(saves_ns: u64, scene: &Scene<'_>) -> Fix {
    let full = scene.facts.cgroups.iter().filter_map(|sample| {
        let (used, limit) = sample.memory_used.zip(sample.memory_limit.filter(|limit| *limit > 0))?;
        Some((used as f64 / limit as f64, sample, used, limit))
    });
    match full.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(share, ..)| *share > 0.9) {
        Some((_, sample, used, limit)) => fix(
            format!(
                "raise the memory limit of {} ({} of {} used), or use fewer workers and smaller caches",
                sample.path,
                units::bytes(used),
                units::bytes(limit)
            ),
            saves_ns,
        ),
        None => fix("use less memory on the host: fewer workers, smaller caches and prefetch queues", saves_ns),
    }
}

fn copies(story: &Story, scene: &Scene<'_>, line: &str) -> Fix {
    let (bytes, ns) = (scene.steady.copy_bytes, scene.steady.copy_ns);
    let rate = if ns > 0 { bytes as f64 / ns as f64 } else { 0.0 };
    // A copy of pinned memory returns at once: one that takes its time in the call was pageable.
    let pageable = ns > story.ns / 2;
    let text = if pageable {
        format!(
            "copies{line} are from pageable memory ({} at {rate:.1} GB/s inside the call): pin_memory=True and \
             .to(device, non_blocking=True)",
            units::bytes(bytes)
        )
    } else {
        format!("copy less, or overlap copies with work on another stream ({} copied{line})", units::bytes(bytes))
    };
    fix(text, story.ns)
}
