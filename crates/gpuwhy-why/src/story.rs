// SPDX-License-Identifier: Apache-2.0
//! Idle time put together to stories: for each process that launches, what it waited for and what stood behind it.

use crate::blame::{Cause, Cost, Costs, Gap, Votes};
use crate::kind::{self, Circumstances, Kind};
use crate::scene::Scene;
use crate::state::State;
use crate::timeline::ThreadIndex;
use crate::walk::Leaf;
use gpuwhy_model::OpId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The normal state of a worker is to work. Something else at the chain's end is the story if it takes this share.
const REMARKABLE: f64 = 0.3;

/// What is known of one end of a story.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub(crate) ns: u64,
    /// Who stood at the end.
    pub(crate) threads: HashMap<ThreadIndex, u64>,
    /// Who had their CPU.
    pub(crate) holders: HashMap<u32, u64>,
    pub(crate) head_stacks: Votes,
    pub(crate) leaf_stacks: Votes,
    pub(crate) head_states: BTreeMap<State, u64>,
    /// Which calls they were in.
    pub(crate) ops: HashMap<OpId, u64>,
    /// What they were doing, in words.
    pub(crate) leaf_states: BTreeMap<&'static str, u64>,
    /// The threads from the launching one to the end; those of the costliest cause.
    pub(crate) path: Vec<ThreadIndex>,
    path_ns: u64,
    /// Some of it was waiting for Python's lock.
    pub(crate) gil_ns: u64,
}

impl Part {
    fn add(&mut self, cause: &Cause, cost: &Cost) {
        self.ns += cost.ns;
        *self.threads.entry(cause.thread).or_default() += cost.ns;
        if let Leaf::Ready(Some(holder)) = cause.leaf {
            *self.holders.entry(holder).or_default() += cost.ns;
        }
        if let Leaf::Cuda(op) | Leaf::BlockedIn(op) = cause.leaf {
            *self.ops.entry(op).or_default() += cost.ns;
        }
        if let Some(state) = cause.head {
            *self.head_states.entry(state).or_default() += cost.ns;
        }
        *self.leaf_states.entry(leaf_words(cause.leaf)).or_default() += cost.ns;
        self.head_stacks.merge(&cost.head_stacks);
        self.leaf_stacks.merge(&cost.leaf_stacks);
        self.gil_ns += if cause.gil { cost.ns } else { 0 };
        if cost.ns > self.path_ns {
            (self.path_ns, self.path) = (cost.ns, cost.path.clone());
        }
    }

    fn merge(&mut self, other: &Self) {
        self.ns += other.ns;
        for (thread, ns) in &other.threads {
            *self.threads.entry(*thread).or_default() += ns;
        }
        for (holder, ns) in &other.holders {
            *self.holders.entry(*holder).or_default() += ns;
        }
        for (op, ns) in &other.ops {
            *self.ops.entry(*op).or_default() += ns;
        }
        for (state, ns) in &other.head_states {
            *self.head_states.entry(*state).or_default() += ns;
        }
        for (state, ns) in &other.leaf_states {
            *self.leaf_states.entry(state).or_default() += ns;
        }
        self.head_stacks.merge(&other.head_stacks);
        self.leaf_stacks.merge(&other.leaf_stacks);
        self.gil_ns += other.gil_ns;
        if other.path_ns > self.path_ns {
            (self.path_ns, self.path) = (other.path_ns, other.path.clone());
        }
    }
}

/// The entry with most time.
pub(crate) fn most<K: Copy + Ord>(sums: impl IntoIterator<Item = (K, u64)>) -> Option<(K, u64)> {
    sums.into_iter().max_by_key(|(key, ns)| (*ns, std::cmp::Reverse(*key)))
}

fn leaf_words(leaf: Leaf) -> &'static str {
    match leaf {
        Leaf::Running => State::RunningHost.words(),
        Leaf::Forking => "running, making a process",
        Leaf::Cuda(_) => State::RunningCuda.words(),
        Leaf::Reclaiming => "running, reclaiming memory",
        Leaf::Ready(_) => State::Ready.words(),
        Leaf::Throttled => State::Throttled.words(),
        Leaf::Blocked(state, _) => state.words(),
        Leaf::BlockedIn(_) => State::BlockedGpu.words(),
        Leaf::Absent => "not running yet",
    }
}

/// What a process lost, and why.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) kind: Kind,
    pub(crate) root: Kind,
    pub(crate) launcher: ThreadIndex,
    /// All of it.
    pub(crate) ns: u64,
    /// What stood at the ends, by its kind.
    pub(crate) parts: BTreeMap<Kind, Part>,
    /// All parts together.
    pub(crate) all: Part,
    /// How long the same held the launching thread up while the GPU had work.
    pub(crate) busy_ns: u64,
    /// Of it, the own work that such a hold-up may have put off.
    late_ns: u64,
    /// The processes it is about.
    pids: BTreeSet<u32>,
}

impl Story {
    /// How many GPUs it is about: what it cost is a mean over them.
    pub(crate) fn gpus(&self, scene: &Scene<'_>) -> u64 {
        let used: u64 = self.pids.iter().map(|pid| scene.gpus_of.get(pid).copied().unwrap_or(1)).sum();
        used.clamp(1, scene.gpus)
    }

    /// The part that the root cause is about.
    pub(crate) fn root_part(&self) -> &Part {
        self.parts.get(&self.root).unwrap_or(&self.all)
    }
}

#[derive(Default)]
struct Growing {
    parts: BTreeMap<Kind, Part>,
    launchers: HashMap<ThreadIndex, u64>,
}

/// Puts causes together, costliest story first.
pub(crate) fn stories(costs: &Costs, scene: &Scene<'_>) -> Vec<Story> {
    let mut grouped: BTreeMap<(Kind, u32), Growing> = BTreeMap::new();
    // In a fixed order, so that equal runs are told in equal words.
    let mut ordered: Vec<(&Cause, &Cost)> = costs.iter().collect();
    ordered.sort_by_key(|(cause, _)| **cause);
    let gil: u64 = costs.iter().filter(|(cause, _)| cause.gil && cause.gap != Gap::Busy).map(|(_, cost)| cost.ns).sum();
    let gil_matters = gil > scene.steady.idle_ns / 10;
    let mut busy: BTreeMap<(Kind, u32), u64> = BTreeMap::new();
    let mut by_nvml: BTreeMap<(Kind, u32), u64> = BTreeMap::new();
    let mut late: BTreeMap<(Kind, u32), u64> = BTreeMap::new();
    for (cause, cost) in ordered {
        let around = Circumstances { gil_matters, ..circumstances(cause, cost, scene) };
        let (kind, root) = kind::of(cause, &around);
        let pid = scene.thread(cause.launcher).pid;
        if cause.gap == Gap::Busy {
            *busy.entry((kind, pid)).or_default() += cost.ns;
            continue;
        }
        if cause.gap == Gap::ByNvml {
            // As far as the host knew, the GPU was busy then: it was counted there, too.
            *by_nvml.entry((kind, pid)).or_default() += cost.ns;
        }
        let mut cost = cost.clone();
        if cause.gap == Gap::ByNvml {
            cost.ns = (cost.ns as f64 * scene.nvml_factor) as u64;
        }
        if cause.gap != Gap::Drained {
            *late.entry((kind, pid)).or_default() += cost.ns;
        }
        let story = grouped.entry((kind, pid)).or_default();
        story.parts.entry(root).or_default().add(cause, &cost);
        *story.launchers.entry(cause.launcher).or_default() += cost.ns;
    }
    let held_up = |kind: Kind, pid: u32| {
        let of = |sums: &BTreeMap<(Kind, u32), u64>| sums.get(&(kind, pid)).copied().unwrap_or(0);
        of(&busy).saturating_sub(of(&by_nvml))
    };
    let mut stories: Vec<Story> = grouped
        .into_iter()
        .filter_map(|((kind, pid), Growing { parts, launchers })| {
            let launcher = most(launchers)?.0;
            let mut all = Part::default();
            parts.values().for_each(|part| all.merge(part));
            Some(Story {
                kind,
                root: root(&parts)?,
                launcher,
                ns: all.ns,
                parts,
                all,
                busy_ns: held_up(kind, pid),
                late_ns: late.get(&(kind, pid)).copied().unwrap_or(0),
                pids: BTreeSet::from([pid]),
            })
        })
        .collect();
    share_out_own_work(&mut stories, scene);
    let mut stories = join_processes(stories);
    stories.sort_by_key(|story| std::cmp::Reverse(story.ns));
    stories
}

/// The same story of several processes, as of the ranks of a job, is one.
fn join_processes(stories: Vec<Story>) -> Vec<Story> {
    let mut joined: BTreeMap<(Kind, Kind), Story> = BTreeMap::new();
    for story in stories {
        let Some(known) = joined.get_mut(&(story.kind, story.root)) else {
            joined.insert((story.kind, story.root), story);
            continue;
        };
        known.pids.extend(&story.pids);
        if story.ns > known.ns {
            known.launcher = story.launcher;
        }
        known.ns += story.ns;
        known.busy_ns += story.busy_ns;
        known.all.merge(&story.all);
        for (kind, part) in &story.parts {
            known.parts.entry(*kind).or_default().merge(part);
        }
    }
    joined.into_values().collect()
}

/// A thread that was held up while the GPU had work does later, while it has none, what it would have done then: its own
/// work in an idle interval is the fault of what held it up, as far as that reaches.
fn share_out_own_work(stories: &mut [Story], scene: &Scene<'_>) {
    let pid_of = |story: &Story| scene.thread(story.launcher).pid;
    let innocent = [Kind::LaunchBound, Kind::SyncBound, Kind::ColdStart, Kind::Unresolved];
    for own in 0..stories.len() {
        if stories[own].kind != Kind::LaunchBound {
            continue;
        }
        let pid = pid_of(&stories[own]);
        let guilty: Vec<usize> = (0..stories.len())
            .filter(|other| pid_of(&stories[*other]) == pid && !innocent.contains(&stories[*other].kind))
            .collect();
        let held_up: u64 = guilty.iter().map(|other| stories[*other].busy_ns).sum();
        // What is done after a wait for the GPU is not late: nothing before that wait could put it off.
        let shared = stories[own].late_ns.min(held_up);
        for other in guilty {
            let part = (shared as f64 * stories[other].busy_ns as f64 / held_up.max(1) as f64) as u64;
            stories[other].ns += part;
            stories[own].ns -= part.min(stories[own].ns);
        }
    }
}

fn root(parts: &BTreeMap<Kind, Part>) -> Option<Kind> {
    let total: u64 = parts.values().map(|part| part.ns).sum();
    let normal = [Kind::CpuBoundWorker, Kind::LockContention, Kind::Unresolved];
    let other = most(parts.iter().filter(|(kind, _)| !normal.contains(kind)).map(|(kind, part)| (*kind, part.ns)));
    match other {
        Some((kind, ns)) if ns as f64 >= total as f64 * REMARKABLE => Some(kind),
        _ => most(parts.iter().map(|(kind, part)| (*kind, part.ns))).map(|(kind, _)| kind),
    }
}

fn circumstances(cause: &Cause, cost: &Cost, scene: &Scene<'_>) -> Circumstances {
    let launcher = scene.thread(cause.launcher);
    let stack = cost.head_stacks.ranked().first().map(|(stack, _)| *stack);
    let holder = if let Leaf::Ready(Some(holder)) = cause.leaf { Some(holder) } else { None };
    let holder = holder.and_then(|holder| scene.timeline.holders.get(holder as usize)).map(|holder| holder.pid);
    Circumstances {
        same_process: cost.path.iter().all(|thread| scene.thread(*thread).pid == launcher.pid),
        in_queue: stack.is_some_and(|stack| scene.in_queue(stack)),
        has_stack: stack.is_some(),
        memory_short: scene.memory_short,
        holder_traced: holder.is_some_and(|pid| scene.facts.is_traced(pid)),
        holder_is_sibling: holder == Some(launcher.pid),
        gil_matters: false,
        holder_short_lived: holder.is_some_and(|pid| scene.short_lived.contains(&pid)),
        many_short_lived: !scene.short_lived.is_empty(),
        short_lived: cost.path.iter().any(|thread| scene.short_lived.contains(&scene.thread(*thread).pid)),
        launches: scene.launchers.contains(&cause.thread),
        copies_matter: scene.copies_matter,
    }
}
