// SPDX-License-Identifier: Apache-2.0
//! A story in words: its title, its clause in the verdict, its chain and its root cause.

use crate::holders::{Program, base, named, programs};
use crate::kind::Kind;
use crate::scene::Scene;
use crate::state::State;
use crate::story::{ChainTotals, Story, most};
use crate::timeline::ThreadIndex;
use gpuwhy_model::{Link, RootCause};

/// Threads and states with less than one part in so many of a story are left out of its sentence.
const LEAST_SAID: u64 = 20;
/// A program's name that is longer does not go into a title.
const TITLE_NAME: usize = 24;
const HELD: &str = "SELECT holder_name, holder_pid, SUM(duration_ns) FROM cpu_held GROUP BY 1, 2 ORDER BY 3 DESC";

/// What feeds the launching thread with input.
enum Feeder {
    /// Data workers, or whatever fills the queue it reads from.
    Data,
    /// Another program, by name.
    Program(String),
    /// Not known: no other process was seen at the end of the chain.
    Unknown,
}

impl Feeder {
    fn of(story: &Story, scene: &Scene<'_>) -> Self {
        let part = story.root_part();
        let is_worker =
            |name: &str| ["data_worker", "dataworker", "dataload", "data_load"].iter().any(|w| name.contains(w));
        let pids = part.threads.keys().map(|index| scene.thread(*index).pid);
        let named = pids.clone().any(|pid| is_worker(&scene.name(pid).to_lowercase()));
        let queued = || story.all.head_stacks.ranked().first().is_some_and(|(stack, _)| scene.in_queue(*stack));
        if named || queued() {
            return Self::Data;
        }
        let ends = most(part.threads.iter().map(|(index, ns)| (*index, *ns))).map(|(index, _)| scene.thread(index).pid);
        match ends.filter(|pid| !story.ranks.contains(pid)) {
            Some(pid) => Self::Program(short_name(&scene.name(pid))),
            None => Self::Unknown,
        }
    }
}

/// A program's name, unless it is too long for a title.
fn short_name(name: &str) -> String {
    let name = base(name);
    if name.chars().count() <= TITLE_NAME { name.to_owned() } else { "another process".to_owned() }
}

/// The finding in a few words, without its cost.
pub(crate) fn title(story: &Story, scene: &Scene<'_>) -> String {
    let title = match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => "Waiting for a process that was not traced",
        Kind::InputStarved => match Feeder::of(story, scene) {
            Feeder::Data => "Data loading is too slow",
            Feeder::Program(name) => return format!("Waiting for {name}"),
            Feeder::Unknown => "Waiting for input",
        },
        Kind::CpuContention => "The launching thread waits for a CPU",
        Kind::CpuThrottled => "The job's CPU quota is used up",
        Kind::DiskIo => "The launching thread waits for the disk",
        Kind::NetworkIo => "The launching thread waits for the network",
        Kind::LockContention if is_gil(story) => "Waiting for the GIL",
        Kind::LockContention => "Waiting for a lock",
        Kind::HostMemoryPressure => "Host memory is short",
        Kind::ProcessChurn => "Processes are started again and again",
        Kind::SyncBound => "Too many synchronizations",
        Kind::CopyBound => "Copies between host and device take too long",
        Kind::LaunchBound => "Python and launch overhead keep the GPU waiting",
        Kind::HostSleep => "The launching thread sleeps",
        Kind::AllocChurn => "GPU memory is allocated and freed too often",
        kind => return kind.name().replace('_', " "),
    };
    title.to_owned()
}

/// The cause in the verdict, after a colon or "because": `the data workers cannot keep up`.
pub(crate) fn clause(story: &Story, scene: &Scene<'_>) -> String {
    match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => {
            "the job waits for a process that was not traced".to_owned()
        }
        Kind::InputStarved => starved(story, scene),
        Kind::CpuContention => {
            let programs = programs(story.root_part(), scene);
            let take = if programs.len() == 1 { "takes" } else { "take" };
            format!("{} {take} the launching thread's CPU", named(&programs))
        }
        Kind::CpuThrottled => "the job's CPU quota is used up".to_owned(),
        Kind::DiskIo => "the launching thread waits for the disk".to_owned(),
        Kind::NetworkIo => "the launching thread waits for the network".to_owned(),
        Kind::LockContention if is_gil(story) => "another thread holds the GIL".to_owned(),
        Kind::LockContention => "the launching thread waits for a lock".to_owned(),
        Kind::HostMemoryPressure => "host memory is short".to_owned(),
        Kind::ProcessChurn => "processes are started again and again".to_owned(),
        Kind::SyncBound => "the launching thread waits for the GPU too often".to_owned(),
        Kind::CopyBound => "copies between host and device take too long".to_owned(),
        Kind::LaunchBound => "the launching thread is busy with Python and launches".to_owned(),
        Kind::HostSleep => "the launching thread sleeps".to_owned(),
        Kind::AllocChurn => "GPU memory is allocated and freed too often".to_owned(),
        kind => kind.name().replace('_', " "),
    }
}

/// Who does not deliver the input, and what keeps them from it.
fn starved(story: &Story, scene: &Scene<'_>) -> String {
    let feeder = Feeder::of(story, scene);
    let workers = scene.named_pids(&story.root_part().threads).difference(&story.ranks).count();
    let (who, many) = match feeder {
        Feeder::Data if workers > 1 => ("the data workers".to_owned(), true),
        Feeder::Data if workers == 1 => ("the data worker".to_owned(), false),
        Feeder::Data => ("data loading".to_owned(), false),
        Feeder::Program(name) => (name, false),
        Feeder::Unknown => return "the input does not arrive in time".to_owned(),
    };
    let verb = |one: &str, more: &str| if many { more.to_owned() } else { one.to_owned() };
    let does = match story.root {
        Kind::DiskIo => verb("waits for the disk", "wait for the disk"),
        Kind::NetworkIo => verb("waits for the network", "wait for the network"),
        Kind::HostSleep => verb("sleeps", "sleep"),
        Kind::CpuContention => verb("does not get a CPU", "do not get a CPU"),
        Kind::CpuThrottled => verb("has used up its CPU quota", "have used up their CPU quota"),
        Kind::HostMemoryPressure => verb("waits for memory", "wait for memory"),
        Kind::LockContention => verb("waits for a lock", "wait for a lock"),
        _ => "cannot keep up".to_owned(),
    };
    format!("{who} {does}")
}

/// The root cause in one line, with figures. Every share is of the steady time.
pub(crate) fn cause(story: &Story, scene: &Scene<'_>) -> String {
    let part = story.root_part();
    let at = blamed_line(story, scene).map(|line| format!(" ({line})")).unwrap_or_default();
    let who = scene.all_of(&part.threads);
    match story.kind {
        Kind::InputStarved if story.root == Kind::OutsideProcess => {
            format!("{who} waits for a process that was not traced")
        }
        Kind::InputStarved => format!("{who}: {}", doing(story, scene)),
        Kind::CpuContention => {
            format!("{} had the CPU while the launching thread was ready to run", named(&programs(part, scene)))
        }
        Kind::CpuThrottled => "the job's cgroup used up its CPU quota".to_owned(),
        Kind::DiskIo => format!("the launching thread itself waits for the disk{at}"),
        Kind::NetworkIo => format!("the launching thread itself waits for the network{at}"),
        Kind::LockContention if is_gil(story) => format!("{who} holds the GIL: {}", doing(story, scene)),
        Kind::LockContention => {
            format!("{who} holds a lock that the launching thread needs: {}", doing(story, scene))
        }
        Kind::HostMemoryPressure => format!("host memory is short: the launching thread waits for pages{at}"),
        Kind::ProcessChurn => format!("{} short-lived processes{at}", scene.short_lived.len()),
        Kind::SyncBound => {
            let often = scene.per_second(scene.steady.syncs);
            format!("{often} waits for the GPU a second{at}; the next launch comes only after each")
        }
        Kind::CopyBound => format!("the launching thread is busy copying{}{at}", inside(&story.all)),
        Kind::LaunchBound => format!("the launching thread is busy with its own work between launches{at}"),
        Kind::HostSleep => format!("the launching thread sleeps{at}"),
        Kind::AllocChurn => {
            format!("the launching thread allocates and frees GPU memory in the loop{}{at}", inside(part))
        }
        kind => kind.name().replace('_', " "),
    }
}

/// ` in cudaMalloc, cudaFree`; nothing where no call is known.
fn inside(part: &ChainTotals) -> String {
    let ops = ops(part);
    if ops.is_empty() { ops } else { format!(" in {ops}") }
}

/// What the threads at the ends of the chains did: running, ready without a CPU and because of whom, or waiting for what.
/// The root cause comes first. Ready is kept apart from running: a ready thread gets nothing done.
fn doing(story: &Story, scene: &Scene<'_>) -> String {
    let mut said: Vec<(bool, u64, String)> = Vec::new();
    let (running, ready) = (story.all.running_ns(), story.all.ready_ns());
    let computes = matches!(story.root, Kind::CpuBoundWorker | Kind::LockContention);
    let at = scene.line(&story.root_part().leaf_stacks).map(|line| format!(" ({line})")).unwrap_or_default();
    let ran = if computes { at.as_str() } else { "" };
    said.push((computes, running, format!("running{ran}")));
    said.push((story.root == Kind::CpuContention, ready, format!("ready without a CPU{}", holders(story, scene))));
    for (kind, part) in &story.parts {
        let waiting = part.ns.saturating_sub(part.running_ns()).saturating_sub(part.ready_ns());
        let here = if *kind == story.root { at.as_str() } else { "" };
        said.push((*kind == story.root && !computes, waiting, format!("{}{here}", waits(*kind))));
    }
    said.retain(|(first, ns, _)| *first || *ns > story.ns / LEAST_SAID);
    said.sort_by_key(|(first, ns, _)| (!*first, std::cmp::Reverse(*ns)));
    said.retain(|(_, ns, _)| *ns > 0);
    let mut of = " of the time";
    let each = |(_, ns, text): (bool, u64, String)| format!("{}{} {text}", scene.percent(ns), std::mem::take(&mut of));
    let texts: Vec<String> = said.into_iter().map(each).collect();
    if texts.is_empty() { "doing nothing that gpuwhy could follow".to_owned() } else { texts.join(", ") }
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

/// What a thread did that neither ran nor was ready.
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
    // Too many waits: the waits are to blame, not the work between them.
    let chosen = match story.kind {
        Kind::SyncBound => scene.line(&scene.steady.sync_stacks),
        Kind::AllocChurn => scene.line(&scene.steady.alloc_stacks),
        _ => None,
    };
    chosen.or_else(|| scene.line(&part.leaf_stacks)).or_else(|| scene.line(&part.head_stacks))
}

pub(crate) fn is_gil(story: &Story) -> bool {
    story.all.gil_ns > story.ns / 2
}

/// The two costliest calls.
pub(crate) fn ops(part: &ChainTotals) -> String {
    let mut ranked: Vec<(u64, &str)> =
        part.ops.iter().filter_map(|(op, ns)| op.get().map(|op| (*ns, op.name.as_str()))).collect();
    ranked.sort_by_key(|(ns, name)| (std::cmp::Reverse(*ns), *name));
    let names: Vec<&str> = ranked.iter().take(2).map(|(_, name)| *name).collect();
    names.join(", ")
}

/// The links from the launching thread to the cause.
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

/// The threads at the ends of the chains, one link for each state that matters; the programs that had their CPU come last.
fn last_links(story: &Story, part: &ChainTotals, scene: &Scene<'_>) -> Vec<Link> {
    let computes = matches!(story.root, Kind::CpuBoundWorker | Kind::LockContention);
    let (running, ready) = (story.all.running_ns(), story.all.ready_ns());
    let matters = |ns: u64| ns > story.ns / LEAST_SAID;
    let mut links = Vec::new();
    if computes && (matters(running) || !matters(ready)) {
        let worked = if matters(ready) { running } else { part.ns };
        links.push(Link { ns: worked, ..last_link(story, part, scene) });
    } else if story.root == Kind::CpuContention && matters(running) {
        let state = State::RunningHost.words().to_owned();
        links.push(Link { ns: running, what: works(part, scene).into(), state, ..last_link(story, part, scene) });
    } else if !computes && story.root != Kind::CpuContention {
        links.push(last_link(story, part, scene));
    }
    if matters(ready) || story.root == Kind::CpuContention {
        let state = State::Ready.words().to_owned();
        let (what, line) = (waits_for_cpu(part, scene).to_owned(), None);
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

/// The programs that had the CPU, as links.
fn holder_links(part: &ChainTotals, scene: &Scene<'_>) -> Vec<Link> {
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
        (Kind::CpuContention, _) => "is ready but has no CPU".to_owned(),
        (Kind::CpuThrottled, _) => "is ready but has no CPU quota left".to_owned(),
        (Kind::DiskIo, _) => "waits for the disk".to_owned(),
        (Kind::NetworkIo, _) => "waits for the network".to_owned(),
        (Kind::HostMemoryPressure, _) => "waits for memory".to_owned(),
        (Kind::HostSleep, _) => "sleeps".to_owned(),
        (Kind::SyncBound, _) => "launches only after waiting for the GPU".to_owned(),
        (Kind::CopyBound, _) => format!("copies ({})", ops(&story.all)),
        (Kind::AllocChurn, _) => format!("allocates and frees GPU memory ({})", ops(&story.all)),
        _ => "is busy between launches".to_owned(),
    };
    let thread = scene.thread(story.launcher);
    // The state of a wait on the way to its own work says nothing about these kinds.
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

/// SQL that shows a thread's time off the CPU, or where its time went.
fn thread_evidence(tid: u32, head: Option<State>) -> String {
    match head {
        Some(_) => format!(
            "SELECT wait, top_line, SUM(weight), SUM(blocked_ns * weight) FROM off_cpu LEFT JOIN stack_traces USING (stack_id) \
             WHERE tid = {tid} GROUP BY 1, 2 ORDER BY 4 DESC"
        ),
        None => format!("SELECT state, op, ns FROM ledger WHERE tid = {tid} ORDER BY ns DESC"),
    }
}

/// Whether [`Scene::all_of`] names several processes: the verb follows it.
fn is_many(part: &ChainTotals, scene: &Scene<'_>) -> bool {
    scene.named_pids(&part.threads).len() > 1
}

fn works(part: &ChainTotals, scene: &Scene<'_>) -> &'static str {
    if is_many(part, scene) { "work on the CPU" } else { "works on the CPU" }
}

fn waits_for_cpu(part: &ChainTotals, scene: &Scene<'_>) -> &'static str {
    if is_many(part, scene) { "are ready but have no CPU" } else { "is ready but has no CPU" }
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

fn last_link(story: &Story, part: &ChainTotals, scene: &Scene<'_>) -> Link {
    let of_many = |one, more| if is_many(part, scene) { more } else { one };
    let what = match story.root {
        Kind::CpuBoundWorker | Kind::LockContention => works(part, scene),
        Kind::DiskIo => of_many("waits for the disk", "wait for the disk"),
        Kind::NetworkIo => of_many("waits for the network", "wait for the network"),
        Kind::HostSleep => of_many("sleeps", "sleep"),
        Kind::CpuContention => waits_for_cpu(part, scene),
        Kind::CpuThrottled => of_many("has no CPU quota left", "have no CPU quota left"),
        Kind::HostMemoryPressure => of_many("waits for memory", "wait for memory"),
        Kind::ProcessChurn => "start, work briefly and end",
        _ => of_many("waits", "wait"),
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

/// The first few, in order.
fn sorted(mut ids: Vec<String>) -> String {
    ids.sort();
    ids.truncate(16);
    ids.join(", ")
}

/// The cause at the end of the chain.
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
    RootCause { kind: story.root.name().to_owned(), pid, name, detail: cause(story, scene), line }
}
