// SPDX-License-Identifier: Apache-2.0
//! A story in words: its title, its chain, its root cause and what it did to the job.

use crate::holders::{Program, named, programs};
use crate::kind::Kind;
use crate::scene::Scene;
use crate::state::State;
use crate::story::{Part, Story, most};
use crate::timeline::ThreadIndex;
use gpuwhy_model::{Link, RootCause};

/// What takes less than this part of a story is left out of its sentence.
const LEAST_SAID: u64 = 20;
const WORK: &str = "work on the CPU";
const READY: &str = "could run, but have no CPU";
const HELD: &str = "SELECT holder_name, holder_pid, SUM(duration_ns) FROM cpu_held GROUP BY 1, 2 ORDER BY 3 DESC";

/// What is known to have cost the time.
pub(crate) fn what(story: &Story, scene: &Scene<'_>) -> &'static str {
    match (story.is_about_pace(), scene.has_neighbours, story.is_at_most) {
        (true, ..) => "launching thread held up",
        // Where another job uses the GPU, too, it may have been busy with that.
        (false, true, false) => "GPU without work of this job",
        (false, true, true) => "GPU without work of this job up to",
        (false, false, false) => "GPU idle",
        (false, false, true) => "GPU idle up to",
    }
}

/// What the GPU waited for, as a title says it.
pub(crate) fn reason(story: &Story, scene: &Scene<'_>) -> String {
    let part = story.root_part();
    let who = scene.all_of(&part.threads);
    match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => {
            "waiting for a process that was not traced".to_owned()
        }
        Kind::InputStarved => format!("waiting for {who}"),
        Kind::CpuContention => format!("the launching thread had no CPU, {}", had_it(part, scene)),
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

/// Why, as a clause after "because", with figures. Every share is of the steady time.
pub(crate) fn because(story: &Story, scene: &Scene<'_>) -> String {
    let part = story.root_part();
    let at = blamed_line(story, scene).map(|line| format!(" ({line})")).unwrap_or_default();
    let who = scene.all_of(&part.threads);
    match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => {
            format!("{who} could not keep up: waiting for a process that was not traced")
        }
        Kind::InputStarved => format!("{who} could not keep up: {}", doing(story, scene)),
        Kind::CpuContention => format!("the launching thread was ready but had no CPU: {}", had_it(part, scene)),
        Kind::CpuThrottled => "the job's cgroup had used up its CPU quota".to_owned(),
        Kind::DiskIo => format!("the launching thread itself waited for the disk{at}"),
        Kind::NetworkIo => format!("the launching thread itself waited for the network{at}"),
        Kind::LockContention if is_gil(story) => {
            format!("{who} held Python's lock (GIL): {}", doing(story, scene))
        }
        Kind::LockContention => {
            format!("{who} held a lock that the launching thread needed: {}", doing(story, scene))
        }
        Kind::HostMemoryPressure => format!("memory was short: the launching thread waited for pages{at}"),
        Kind::ProcessChurn => {
            let count = scene.short_lived.len();
            format!("processes were started and ended again and again ({count} short-lived ones){at}")
        }
        Kind::SyncBound => {
            let often = scene.per_second(scene.steady.syncs);
            format!("the host waited for the GPU {often} times a second and launched only then{at}")
        }
        Kind::CopyBound => format!("the launching thread was busy copying{at}"),
        Kind::LaunchBound => format!("the launching thread was busy with its own work between launches{at}"),
        Kind::HostSleep => format!("the launching thread slept{at}"),
        Kind::AllocChurn => format!("the launching thread took and freed device memory in the loop{at}"),
        kind => kind.name().replace('_', " "),
    }
}

fn had_it(part: &Part, scene: &Scene<'_>) -> String {
    let programs = programs(part, scene);
    if programs.is_empty() { "who had it is not known".to_owned() } else { format!("{} had it", named(&programs)) }
}

/// What those at the ends of the chains did: on a CPU, ready without one because of whom, or waiting for what. What was
/// behind it all comes first. Ready is not busy: who is ready gets nothing done.
fn doing(story: &Story, scene: &Scene<'_>) -> String {
    let mut said: Vec<(bool, u64, String)> = Vec::new();
    let (running, ready) = (story.all.running_ns(), story.all.ready_ns());
    let computes = matches!(story.root, Kind::CpuBoundWorker | Kind::LockContention);
    let at = scene.line(&story.root_part().leaf_stacks).map(|line| format!(" ({line})")).unwrap_or_default();
    let ran = if computes { at.as_str() } else { "" };
    said.push((computes, running, format!("running {}{ran}", scene.percent(running))));
    let had = format!("ready without a CPU {}{}", scene.percent(ready), holders(story, scene));
    said.push((story.root == Kind::CpuContention, ready, had));
    for (kind, part) in &story.parts {
        let waiting = part.ns.saturating_sub(part.running_ns()).saturating_sub(part.ready_ns());
        let here = if *kind == story.root { at.as_str() } else { "" };
        let text = format!("{} {}{here}", waits(*kind), scene.percent(waiting));
        said.push((*kind == story.root && !computes, waiting, text));
    }
    said.retain(|(first, ns, _)| *first || *ns > story.ns / LEAST_SAID);
    said.sort_by_key(|(first, ns, _)| (!*first, std::cmp::Reverse(*ns)));
    let texts: Vec<String> = said.into_iter().filter(|(_, ns, _)| *ns > 0).map(|(.., text)| text).collect();
    format!("{} of the time", texts.join(", "))
}

/// Who had the CPU meanwhile, each with its share.
fn holders(story: &Story, scene: &Scene<'_>) -> String {
    let mut programs = programs(&story.all, scene);
    programs.retain(|program| program.ns > story.ns / LEAST_SAID / 2);
    let each = |program: &Program| {
        let own = if program.own { "the job's own " } else { "" };
        format!("{own}{} had it {}", program.words(), scene.percent(program.ns))
    };
    let texts: Vec<String> = programs.iter().take(3).map(each).collect();
    if texts.is_empty() { String::new() } else { format!(" ({})", texts.join(", ")) }
}

/// What a thread without work of its own did.
fn waits(kind: Kind) -> &'static str {
    match kind {
        Kind::DiskIo => "waiting for the disk",
        Kind::HostSleep => "asleep",
        Kind::NetworkIo => "waiting for the network",
        Kind::CpuThrottled => "without CPU quota",
        Kind::HostMemoryPressure => "waiting for memory",
        Kind::LockContention => "waiting for a lock",
        Kind::OutsideProcess => "waiting for a process that was not traced",
        Kind::CpuBoundWorker => "in CUDA calls or starting",
        _ => "waiting for something that could not be followed",
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
        links.extend(last_links(story, part, scene));
    }
    if story.kind == Kind::CpuContention {
        links.extend(holder_links(part, scene));
    }
    links
}

/// Those at the ends of the chains, each state that matters; what they were ready behind comes last.
fn last_links(story: &Story, part: &Part, scene: &Scene<'_>) -> Vec<Link> {
    let computes = matches!(story.root, Kind::CpuBoundWorker | Kind::LockContention);
    let (running, ready) = (story.all.running_ns(), story.all.ready_ns());
    let matters = |ns: u64| ns > story.ns / LEAST_SAID;
    let mut links = Vec::new();
    if computes && (matters(running) || !matters(ready)) {
        let worked = if matters(ready) { running } else { part.ns };
        links.push(Link { ns: worked, ..last_link(story, part, scene) });
    } else if story.root == Kind::CpuContention && matters(running) {
        let state = State::RunningHost.words().to_owned();
        links.push(Link { ns: running, what: WORK.into(), state, ..last_link(story, part, scene) });
    } else if !computes && story.root != Kind::CpuContention {
        links.push(last_link(story, part, scene));
    }
    if matters(ready) || story.root == Kind::CpuContention {
        let state = State::Ready.words().to_owned();
        let (what, line) = (READY.to_owned(), None);
        let evidence = Some(HELD.to_owned());
        let ready = Link { ns: ready, what, state, line, evidence, ..last_link(story, part, scene) };
        let behind = std::iter::once(ready).chain(holder_links(&story.all, scene));
        if computes || story.root == Kind::CpuContention {
            links.extend(behind);
        } else {
            links.splice(0..0, behind);
        }
    }
    links
}

/// Who had the CPU, as links.
fn holder_links(part: &Part, scene: &Scene<'_>) -> Vec<Link> {
    let link = |program: Program| Link {
        layer: "process".into(),
        who: program.words(),
        what: "had the CPU".into(),
        line: None,
        state: "running".into(),
        ns: program.ns,
        evidence: Some(HELD.into()),
    };
    let shown = programs(part, scene).into_iter().filter(|program| program.ns > part.ns / LEAST_SAID / 2);
    shown.take(3).map(link).collect()
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
        None => most(story.all.doing.iter().map(|(doing, ns)| (*doing, *ns))).map_or("", |(doing, _)| doing.words()),
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
        Kind::CpuBoundWorker | Kind::LockContention => WORK,
        Kind::DiskIo => "wait for the disk",
        Kind::NetworkIo => "wait for the network",
        Kind::HostSleep => "sleep",
        Kind::CpuContention => READY,
        Kind::CpuThrottled => "could run, but have no quota",
        Kind::HostMemoryPressure => "wait for memory",
        Kind::ProcessChurn => "start, work shortly and end",
        _ => "wait",
    };
    let state = most(part.doing.iter().map(|(doing, ns)| (*doing, *ns))).map_or("", |(doing, _)| doing.words());
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
        && let Some(program) = programs(part, scene).into_iter().next()
    {
        (pid, name, line) = (program.first(), Some(program.name), None);
    }
    RootCause { kind: story.root.name().to_owned(), pid, name, detail: because(story, scene), line }
}
