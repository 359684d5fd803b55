// SPDX-License-Identifier: Apache-2.0
//! Fixes for a story, specific to what was measured. `saves_ns` is an upper bound: the story's cost, or the share that the
//! fix can reach.

use crate::holders::{self, NAMED, Program, base, programs};
use crate::kind::Kind;
use crate::scene::{LITTLE_PART, Scene};
use crate::story::{ChainTotals, Story, most};
use crate::words;
use gpuwhy_model::{Fix, units};
use std::collections::{BTreeMap, BTreeSet};

/// Processes named in a command.
const MOST_PIDS: usize = 16;

/// Fixes, the most saving first.
pub(crate) fn fixes(story: &Story, scene: &Scene<'_>) -> Vec<Fix> {
    let mut fixes = match (story.kind, story.root) {
        (Kind::InputStarved, root) => input(story, root, scene),
        (Kind::ProcessChurn, _) => vec![fix(
            "keep workers alive instead of starting new ones: persistent_workers=True in the DataLoader, or one pool for \
             the whole run",
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

/// The launching thread waited for input.
fn input(story: &Story, root: Kind, scene: &Scene<'_>) -> Vec<Fix> {
    let part = story.root_part();
    let line = at(scene.line(&part.leaf_stacks));
    let who = scene.all_of(&part.threads);
    let mut fixes = match root {
        Kind::DiskIo => vec![fix(
            format!("put the data on a faster disk or keep it in memory: the job waits for the reads{line}"),
            part.ns,
        )],
        Kind::HostSleep => vec![fix(format!("remove the sleep{line}"), part.ns)],
        Kind::NetworkIo => {
            vec![fix(
                format!("prefetch, or keep the data on a local disk: the reads{line} wait for the network"),
                part.ns,
            )]
        }
        Kind::CpuThrottled | Kind::HostMemoryPressure => own(story, root, root, scene),
        Kind::CpuContention => Vec::new(),
        Kind::LockContention => vec![fix(format!("hold the lock{line} for a shorter time"), part.ns)],
        _ => vec![cheaper(story, scene, &who, &line)],
    };
    fixes.extend(contention(story, &story.all, &who, scene));
    fixes.extend(more_workers(story, scene));
    fixes
}

/// Workers that compute: less work for each. Where no core is idle, the fix says that more workers will not help.
fn cheaper(story: &Story, scene: &Scene<'_>, who: &str, line: &str) -> Fix {
    let whose = if line.is_empty() { format!(" of {who}") } else { line.to_owned() };
    let mut text = format!("make the work{whose} cheaper (decode less, cache results, or move it to the GPU)");
    let has_workers = !workers(story, scene).is_empty();
    if has_workers && story.root == Kind::CpuBoundWorker && scene.idle_cores.is_some_and(|idle| idle < 1.0) {
        text.push_str(&format!("; more workers will not help: all {} cores are busy", scene.facts.cores));
    }
    fix(text, story.root_part().ns)
}

/// The processes that prepare input: the busiest at the chains' ends and others of the same name. Workers of other epochs
/// are gone: only processes alive in the middle of the steady state count.
fn workers(story: &Story, scene: &Scene<'_>) -> BTreeSet<u32> {
    let mut by_pid: BTreeMap<u32, u64> = BTreeMap::new();
    for (index, ns) in &story.root_part().threads {
        *by_pid.entry(scene.thread(*index).pid).or_default() += ns;
    }
    by_pid.retain(|pid, _| !story.ranks.contains(pid));
    let Some((busiest, most_ns)) = most(by_pid.iter().map(|(pid, ns)| (*pid, *ns))) else { return BTreeSet::new() };
    let name = scene.name(busiest);
    let middle = i64::try_from(scene.steady_span.0 / 2 + scene.steady_span.1 / 2).unwrap_or(i64::MAX);
    let there = |pid: u32| {
        let known = scene.facts.processes.get(&pid);
        let began = known.and_then(|process| process.started).is_none_or(|at| at <= middle);
        began && known.and_then(|process| process.ended).is_none_or(|at| at >= middle)
    };
    let is_one = |pid: u32, ns: u64| ns >= most_ns / LITTLE_PART && base(&scene.name(pid)) == base(&name) && there(pid);
    by_pid.into_iter().filter(|(pid, ns)| is_one(*pid, *ns)).map(|(pid, _)| pid).collect()
}

/// More workers help while cores are idle; workers that wait need no core.
fn more_workers(story: &Story, scene: &Scene<'_>) -> Option<Fix> {
    let part = story.root_part();
    if !matches!(story.root, Kind::CpuBoundWorker | Kind::DiskIo | Kind::HostSleep | Kind::NetworkIo) {
        return None;
    }
    let ranks = story.ranks.len().max(1) as u64;
    let workers = workers(story, scene).len() as u64 / ranks;
    let share = scene.share(story.ns / ranks).min(0.95);
    let wanted = (workers as f64 / (1.0 - share)).ceil() as u64;
    if workers == 0 || wanted <= workers {
        return None;
    }
    let cores = scene.facts.cores;
    let idle = scene.idle_cores.unwrap_or(0.0);
    let free = if story.root == Kind::CpuBoundWorker { idle.floor() as u64 / ranks } else { wanted - workers };
    let possible = (workers + free).min(wanted);
    if possible <= workers {
        return None;
    }
    let saves = part.ns as f64 * (possible - workers) as f64 / (wanted - workers) as f64;
    let idle = scene.idle_words().map(|idle| format!(", {idle}")).unwrap_or_default();
    Some(fix(format!("num_workers {workers} → {possible} ({cores} cores{idle})"), saves as u64))
}

/// Fixes for the launching thread itself, or for the thread it waited for.
fn own(story: &Story, kind: Kind, root: Kind, scene: &Scene<'_>) -> Vec<Fix> {
    let part = story.root_part();
    let line = at(words::blamed_line(story, scene));
    match (kind, root) {
        (Kind::CpuContention, _) => contention(story, part, "the launching thread", scene),
        (Kind::CpuThrottled, _) => vec![throttled(part.ns, scene)],
        (Kind::HostMemoryPressure, _) => vec![memory(part.ns, scene)],
        (Kind::LockContention, _) if words::is_gil(story) => {
            let who = scene.all_of(&part.threads);
            vec![fix(
                format!("move the work of {who}{line} to another process: in the same process it holds the GIL"),
                story.ns,
            )]
        }
        (Kind::LockContention, _) => {
            let does = match root {
                Kind::HostSleep => "sleeps meanwhile",
                Kind::DiskIo => "waits for the disk meanwhile",
                Kind::CpuContention => "waits for a CPU meanwhile",
                _ => "works meanwhile",
            };
            let mut fixes = vec![fix(format!("hold the lock for a shorter time: its holder {does}{line}"), story.ns)];
            fixes.extend(contention(story, &story.all, "its holder", scene));
            fixes
        }
        (Kind::DiskIo, _) => {
            vec![fix(format!("read ahead in another thread or process: the launching thread reads{line}"), story.ns)]
        }
        (Kind::NetworkIo, _) => {
            vec![fix(format!("fetch in another thread or process: the launching thread waits{line}"), story.ns)]
        }
        (Kind::HostSleep, _) => vec![fix(format!("remove the sleep{line}, or do it in another thread"), story.ns)],
        (Kind::SyncBound, _) => vec![fix(
            format!(
                "synchronize less often{line} (now {} waits a second): keep losses on the GPU and read them every 100 \
                 steps; .item(), .cpu(), print() and synchronize() all wait",
                scene.per_second(scene.steady.syncs)
            ),
            story.ns,
        )],
        (Kind::CopyBound, _) => vec![copies(story, scene, &line)],
        (Kind::AllocChurn, _) => vec![fix(
            format!(
                "reuse GPU memory instead of allocating and freeing it{line} ({} calls a second): remove empty_cache() from \
                 the loop, keep buffers, or let PyTorch's allocator cache them",
                scene.per_second(scene.steady.allocs)
            ),
            story.ns,
        )],
        (Kind::LaunchBound, _) => vec![
            fix(format!("move the work{line} off the launching thread"), story.ns),
            fix(
                "launch fewer, larger kernels: CUDA graphs, torch.compile(mode=\"reduce-overhead\"), larger batches",
                story.ns,
            ),
        ],
        _ => Vec::new(),
    }
}

/// Programs that had the CPU that a thread needed. The job's own get a fix only if they had it longer than others.
fn contention(story: &Story, part: &ChainTotals, whose: &str, scene: &Scene<'_>) -> Vec<Fix> {
    let (own, others): (Vec<_>, Vec<_>) = programs(part, scene).into_iter().partition(|program| program.own);
    let sum = |programs: &[Program]| programs.iter().map(|program| program.ns).sum::<u64>();
    let cores = scene.facts.cores;
    let idle = scene.idle_cores.unwrap_or(0.0);
    let mut fixes = Vec::new();
    // Stopping the named ones saves only the time that those had.
    let movable: Vec<Program> = others.iter().filter(|program| program.can_be_moved()).cloned().collect();
    let named = &movable[..movable.len().min(NAMED)];
    if !named.is_empty() {
        let who = holders::named(named);
        let several = named.len() > 1;
        let text = if idle >= 1.0 {
            let take = if several { "they take" } else { "it takes" };
            format!(
                "pin {who} to other cores (taskset, cpusets): {take} the CPU of {whose}, and {idle:.1} of {cores} cores are idle"
            )
        } else {
            let pids: Vec<String> =
                named.iter().flat_map(|one| &one.pids).take(MOST_PIDS).map(u32::to_string).collect();
            let take = if several { "they take" } else { "it takes" };
            format!(
                "stop {who}, lower the priority (renice 19 -p {}), or use another machine: {take} the CPU of {whose}, and all \
                 {cores} cores are busy",
                pids.join(" ")
            )
        };
        fixes.push(fix(text, sum(named)));
    }
    // Workers that keep each other waiting do no less work with fewer of them.
    let starved: BTreeSet<u32> = part.threads.keys().map(|index| scene.thread(*index).pid).collect();
    let starved: Vec<String> = starved.difference(&story.ranks).map(|pid| scene.name(*pid)).collect();
    let is_starved = |program: &Program| starved.iter().any(|name| base(name) == base(&program.name));
    let greater = sum(&own) > sum(&others);
    let own: Vec<Program> = own.into_iter().filter(|program| !is_starved(program)).collect();
    if let Some(program) = own.first().filter(|_| greater) {
        let text = format!(
            "use fewer workers or OMP_NUM_THREADS=1: the job's own {} takes the CPU of {whose} ({cores} cores)",
            program.words()
        );
        fixes.push(fix(text, sum(&own)));
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
    // A copy from pinned memory returns at once: one that takes long inside the call was pageable.
    let pageable = ns > story.ns / 2;
    let text = if pageable {
        format!(
            "use pin_memory=True and .to(device, non_blocking=True){line}: {} were copied from pageable memory at \
             {rate:.1} GB/s",
            units::bytes(bytes)
        )
    } else {
        format!("copy less, or overlap copies with work on another stream ({} copied{line})", units::bytes(bytes))
    };
    fix(text, story.ns)
}
