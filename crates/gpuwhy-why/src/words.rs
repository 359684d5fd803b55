// SPDX-License-Identifier: Apache-2.0
//! A story in words: its title, its chain, its root cause and what it did to the job.

use crate::kind::Kind;
use crate::scene::Scene;
use crate::state::State;
use crate::story::{Part, Story, most};
use crate::timeline::ThreadIndex;
use gpuwhy_model::{Link, RootCause, units};

/// What the GPU waited for, as a title says it.
pub(crate) fn reason(story: &Story, scene: &Scene<'_>) -> String {
    let part = story.root_part();
    let who = scene.all_of(&part.threads);
    match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => {
            "waiting for a process that was not traced".to_owned()
        }
        Kind::InputStarved => format!("waiting for {who}"),
        Kind::CpuContention => format!("the launching thread had no CPU, {} had it", holders(part, scene)),
        Kind::CpuThrottled => "the job's CPU quota was used up".to_owned(),
        Kind::DiskIo => "the launching thread waited for the disk".to_owned(),
        Kind::NetworkIo => "the launching thread waited for the network".to_owned(),
        Kind::LockContention if is_gil(story) => format!("Python's lock (GIL) was held by {who}"),
        Kind::LockContention => format!("a lock was held by {who}"),
        Kind::HostMemoryPressure => "the launching thread waited for memory".to_owned(),
        Kind::ProcessChurn => "waiting for processes that are started again and again".to_owned(),
        Kind::SyncBound => "the host waits for the GPU too often to be ahead of it".to_owned(),
        Kind::CopyBound => format!("copying between host and device ({})", ops(&story.all)),
        Kind::LaunchBound => "the launching thread was busy with its own work".to_owned(),
        Kind::HostSleep => "the launching thread slept".to_owned(),
        Kind::AllocChurn => format!("taking and freeing device memory ({})", ops(part)),
        kind => kind.name().replace('_', " "),
    }
}

/// Why, as a clause after "because", with figures.
pub(crate) fn because(story: &Story, scene: &Scene<'_>) -> String {
    let part = story.root_part();
    let at = blamed_line(story, scene).map(|line| format!(" ({line})")).unwrap_or_default();
    let share = units::percent(part.ns as f64, story.ns as f64);
    let who = scene.all_of(&part.threads);
    match (story.kind, story.root) {
        (Kind::InputStarved, root) => {
            let did = match root {
                Kind::DiskIo => format!("waiting for the disk {share} of that time{at}"),
                Kind::HostSleep => format!("asleep {share} of that time{at}"),
                Kind::NetworkIo => format!("waiting for the network {share} of that time{at}"),
                Kind::CpuContention => format!("without a CPU {share} of that time, {} had it", holders(part, scene)),
                Kind::CpuThrottled => format!("without CPU quota {share} of that time"),
                Kind::HostMemoryPressure => format!("waiting for memory {share} of that time{at}"),
                Kind::LockContention => format!("waiting for a lock {share} of that time{at}"),
                Kind::CpuBoundWorker => format!("busy on the CPU {share} of that time{at}"),
                Kind::OutsideProcess => "waiting for a process that was not traced".to_owned(),
                _ => "waiting for something that could not be followed".to_owned(),
            };
            format!("{who} could not keep up: {did}")
        }
        (Kind::CpuContention, _) => {
            format!("the launching thread was ready but had no CPU: {} had it", holders(part, scene))
        }
        (Kind::CpuThrottled, _) => "the job's cgroup had used up its CPU quota".to_owned(),
        (Kind::DiskIo, _) => format!("the launching thread itself waited for the disk{at}"),
        (Kind::NetworkIo, _) => format!("the launching thread itself waited for the network{at}"),
        (Kind::LockContention, _) if is_gil(story) => format!("{who} held Python's lock (GIL) while it worked{at}"),
        (Kind::LockContention, _) => format!("{who} held a lock that the launching thread needed{at}"),
        (Kind::HostMemoryPressure, _) => format!("memory was short: the launching thread waited for pages{at}"),
        (Kind::ProcessChurn, _) => {
            format!(
                "processes were started and ended again and again ({} short-lived ones){at}",
                scene.short_lived.len()
            )
        }
        (Kind::SyncBound, _) => {
            format!(
                "the host waited for the GPU {} times a second and launched only then{at}",
                scene.per_second(scene.steady.syncs)
            )
        }
        (Kind::CopyBound, _) => format!("the launching thread was busy copying{at}"),
        (Kind::LaunchBound, _) => format!("the launching thread was busy with its own work between launches{at}"),
        (Kind::HostSleep, _) => format!("the launching thread slept{at}"),
        (Kind::AllocChurn, _) => format!("the launching thread took and freed device memory in the loop{at}"),
        (kind, _) => kind.name().replace('_', " "),
    }
}

/// The line to change.
pub(crate) fn blamed_line(story: &Story, scene: &Scene<'_>) -> Option<String> {
    let part = story.root_part();
    // Of waiting too often, the waits are to blame, not what is done between them.
    let told = match story.kind {
        Kind::SyncBound => scene.line(&scene.steady.sync_stacks),
        Kind::AllocChurn => scene.line(&scene.steady.alloc_stacks),
        _ => None,
    };
    told.or_else(|| scene.line(&part.leaf_stacks)).or_else(|| scene.line(&part.head_stacks))
}

pub(crate) fn is_gil(story: &Story) -> bool {
    story.all.gil_ns > story.ns / 2
}

/// Who had the CPU, most first: `stress 77, cc1 81 and 3 more`.
pub(crate) fn holders(part: &Part, scene: &Scene<'_>) -> String {
    let ranked = ranked_holders(part, scene);
    let named: Vec<String> = ranked.iter().take(2).map(|(name, pid, _)| format!("{name} {pid}")).collect();
    match ranked.len() {
        0 => "nobody that was seen".to_owned(),
        1 | 2 => named.join(" and "),
        more => format!("{} and {} more", named.join(", "), more - 2),
    }
}

/// Who had the CPU: name, process, time; most first, by process.
pub(crate) fn ranked_holders(part: &Part, scene: &Scene<'_>) -> Vec<(String, u32, u64)> {
    let mut by_pid: std::collections::BTreeMap<u32, (String, u64)> = std::collections::BTreeMap::new();
    // In a fixed order: of a process with threads of several names, it is named after the one with most time.
    let mut held: Vec<(u64, u32)> = part.holders.iter().map(|(holder, ns)| (*ns, *holder)).collect();
    held.sort_unstable_by_key(|(ns, holder)| (std::cmp::Reverse(*ns), *holder));
    for (ns, holder) in held {
        if let Some(holder) = scene.timeline.holders.get(holder as usize) {
            // Threads rename themselves; recorded processes are known by their last name.
            let traced = scene.facts.is_recorded(holder.pid);
            let name = || if traced { scene.name(holder.pid) } else { holder.name.clone() };
            by_pid.entry(holder.pid).or_insert_with(|| (name(), 0)).1 += ns;
        }
    }
    let mut ranked: Vec<_> = by_pid.into_iter().map(|(pid, (name, ns))| (name, pid, ns)).collect();
    ranked.sort_by_key(|(_, pid, ns)| (std::cmp::Reverse(*ns), *pid));
    ranked
}

/// The calls, costliest first.
pub(crate) fn ops(part: &Part) -> String {
    let mut ranked: Vec<(u64, &str)> =
        part.ops.iter().filter_map(|(op, ns)| op.get().map(|op| (*ns, op.name.as_str()))).collect();
    ranked.sort_by_key(|(ns, name)| (std::cmp::Reverse(*ns), *name));
    let names: Vec<&str> = ranked.iter().take(2).map(|(_, name)| *name).collect();
    names.join(", ")
}

/// From the launching thread to the one at fault.
pub(crate) fn chain(story: &Story, scene: &Scene<'_>) -> Vec<Link> {
    let part = story.root_part();
    let mut links = vec![first_link(story, scene)];
    if let [_, middle @ .., _] = part.path.as_slice()
        && story.all.head_states.values().sum::<u64>() > 0
    {
        links.extend(middle.iter().take(3).map(|index| passes_on(*index, scene)));
    }
    if part.path.len() > 1 {
        links.push(last_link(story, part, scene));
    }
    if !part.holders.is_empty() && story.root == Kind::CpuContention {
        for (name, pid, ns) in ranked_holders(part, scene).into_iter().take(3) {
            let evidence =
                "SELECT holder_name, holder_pid, SUM(duration_ns) FROM cpu_held GROUP BY 1, 2 ORDER BY 3 DESC";
            links.push(Link {
                layer: "process".into(),
                who: format!("{name} {pid}"),
                what: "had the CPU".into(),
                line: None,
                state: "running".into(),
                ns,
                evidence: Some(evidence.into()),
            });
        }
    }
    links
}

fn first_link(story: &Story, scene: &Scene<'_>) -> Link {
    let head = most(story.all.head_states.iter().map(|(state, ns)| (*state, *ns)));
    let what = match (story.kind, head) {
        (Kind::InputStarved, _) => "waits for the next batch".to_owned(),
        (Kind::ProcessChurn, _) => "waits for a process it started".to_owned(),
        (Kind::LockContention, _) => "waits for a lock".to_owned(),
        (Kind::CpuContention, _) => "could run, but has no CPU".to_owned(),
        (Kind::CpuThrottled, _) => "could run, but has no quota".to_owned(),
        (Kind::DiskIo, _) => "waits for the disk".to_owned(),
        (Kind::NetworkIo, _) => "waits for the network".to_owned(),
        (Kind::HostMemoryPressure, _) => "waits for memory".to_owned(),
        (Kind::HostSleep, _) => "sleeps".to_owned(),
        (Kind::SyncBound, _) => "prepares the next launch only after it waited".to_owned(),
        (Kind::CopyBound, _) => format!("copies ({})", ops(&story.all)),
        (Kind::AllocChurn, _) => format!("takes and frees device memory ({})", ops(&story.all)),
        _ => "works between launches".to_owned(),
    };
    let thread = scene.thread(story.launcher);
    // What the thread waited for on the way to its own work is not the story.
    let own = matches!(story.kind, Kind::LaunchBound | Kind::SyncBound | Kind::CopyBound | Kind::AllocChurn);
    let state = match head.filter(|_| !own) {
        Some((state, _)) => state.words(),
        None => most(story.all.leaf_states.iter().map(|(state, ns)| (*state, *ns))).map_or("", |(state, _)| state),
    };
    Link {
        layer: "thread".into(),
        who: scene.who(story.launcher),
        what,
        line: if own { blamed_line(story, scene) } else { scene.line(&story.all.head_stacks) },
        state: state.to_owned(),
        ns: story.ns,
        evidence: Some(thread_evidence(thread.tid, head.map(|(state, _)| state))),
    }
}

/// SQL that shows a thread's time off the CPU, or its running.
fn thread_evidence(tid: u32, head: Option<State>) -> String {
    match head {
        Some(_) => format!(
            "SELECT wait, top_line, SUM(weight), SUM(blocked_ns * weight) FROM off_cpu LEFT JOIN stack_traces USING (stack_id) \
             WHERE tid = {tid} GROUP BY 1, 2 ORDER BY 4 DESC"
        ),
        None => format!("SELECT state, op, ns FROM ledger WHERE tid = {tid} ORDER BY ns DESC"),
    }
}

fn passes_on(index: ThreadIndex, scene: &Scene<'_>) -> Link {
    let tid = scene.thread(index).tid;
    Link {
        layer: "thread".into(),
        who: scene.who(index),
        what: "passes it on".into(),
        line: None,
        state: "woken in between".into(),
        ns: 0,
        evidence: Some(format!(
            "SELECT waker_tid, SUM(weight), SUM(blocked_ns * weight) FROM off_cpu WHERE tid = {tid} GROUP BY 1"
        )),
    }
}

fn last_link(story: &Story, part: &Part, scene: &Scene<'_>) -> Link {
    let what = match story.root {
        Kind::CpuBoundWorker | Kind::LockContention => "work on the CPU",
        Kind::DiskIo => "wait for the disk",
        Kind::NetworkIo => "wait for the network",
        Kind::HostSleep => "sleep",
        Kind::CpuContention => "could run, but have no CPU",
        Kind::CpuThrottled => "could run, but have no quota",
        Kind::HostMemoryPressure => "wait for memory",
        Kind::ProcessChurn => "start, work shortly and end",
        _ => "wait",
    };
    let state = most(part.leaf_states.iter().map(|(state, ns)| (*state, *ns))).map_or("", |(state, _)| state);
    let tids: Vec<String> = part.threads.keys().map(|index| scene.thread(*index).tid.to_string()).collect();
    let evidence = format!("SELECT tid, state, op, ns FROM ledger WHERE tid IN ({}) ORDER BY ns DESC", sorted(tids));
    Link {
        layer: if part.threads.len() > 1 { "process" } else { "thread" }.into(),
        who: scene.all_of(&part.threads),
        what: what.into(),
        line: scene.line(&part.leaf_stacks),
        state: state.to_owned(),
        ns: part.ns,
        evidence: Some(evidence),
    }
}

/// At most a few, in order.
fn sorted(mut ids: Vec<String>) -> String {
    ids.sort();
    ids.truncate(16);
    ids.join(", ")
}

/// What stood at the end.
pub(crate) fn root_cause(story: &Story, scene: &Scene<'_>) -> RootCause {
    let part = story.root_part();
    let ends = most(part.threads.iter().map(|(index, ns)| (*index, *ns)));
    let mut pid = ends.map(|(index, _)| scene.thread(index).pid);
    let mut name = pid.map(|pid| scene.name(pid));
    let mut line = blamed_line(story, scene);
    if story.root == Kind::CpuContention
        && let Some((holder, holder_pid, _)) = ranked_holders(part, scene).into_iter().next()
    {
        (pid, name, line) = (Some(holder_pid), Some(holder), line.filter(|_| false));
    }
    RootCause { kind: story.root.name().to_owned(), pid, name, detail: detail(story, scene), line }
}

/// The same with what else stood at ends of chains.
fn detail(story: &Story, scene: &Scene<'_>) -> String {
    let mut text = because(story, scene);
    let mut others: Vec<(Kind, u64)> = story.parts.iter().map(|(kind, part)| (*kind, part.ns)).collect();
    others.retain(|(kind, ns)| *kind != story.root && *ns > story.ns / 20);
    others.sort_by_key(|(kind, ns)| (std::cmp::Reverse(*ns), *kind));
    let share = |ns: u64| units::percent(ns as f64, story.ns as f64);
    let rest: Vec<String> =
        others.iter().map(|(kind, ns)| format!("{} of it {}", share(*ns), kind.name().replace('_', " "))).collect();
    if !rest.is_empty() {
        text = format!("{text}; {}", rest.join(", "));
    }
    text
}
