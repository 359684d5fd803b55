// SPDX-License-Identifier: Apache-2.0
//! Groups idle time into stories: for each launching process, what it waited for and the root cause.

use crate::blame::{Cause, Cost, Costs, Gap, Votes};
use crate::kind::{self, Circumstances, Kind};
use crate::scene::Scene;
use crate::state::State;
use crate::timeline::ThreadIndex;
use crate::walk::Leaf;
use gpuwhy_model::OpId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A worker normally computes. Another root cause wins from this share of the story on.
const REMARKABLE: f64 = 0.3;

/// Sums over chains that end in the same kind of cause.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChainTotals {
    pub(crate) ns: u64,
    /// Threads at the chains' ends, with their time.
    pub(crate) threads: HashMap<ThreadIndex, u64>,
    /// Tasks that had their CPU.
    pub(crate) holders: HashMap<u32, u64>,
    pub(crate) head_stacks: Votes,
    pub(crate) leaf_stacks: Votes,
    pub(crate) head_states: BTreeMap<State, u64>,
    /// CUDA calls they were in.
    pub(crate) ops: HashMap<OpId, u64>,
    /// What they were doing.
    pub(crate) doing: BTreeMap<Doing, u64>,
    /// The costliest chain: the threads from the launching one to its end.
    pub(crate) path: Vec<ThreadIndex>,
    path_ns: u64,
    /// Time spent waiting for the GIL.
    pub(crate) gil_ns: u64,
}

impl ChainTotals {
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
        *self.doing.entry(Doing::of(cause.leaf)).or_default() += cost.ns;
        self.head_stacks.merge(&cost.head_stacks);
        self.leaf_stacks.merge(&cost.leaf_stacks);
        self.gil_ns += if cause.gil { cost.ns } else { 0 };
        if cost.ns > self.path_ns {
            (self.path_ns, self.path) = (cost.ns, cost.path.clone());
        }
    }

    /// How long they were on a CPU.
    pub(crate) fn running_ns(&self) -> u64 {
        self.doing.iter().filter(|(doing, _)| doing.is_running()).map(|(_, ns)| ns).sum()
    }

    /// How long they were ready without a CPU.
    pub(crate) fn ready_ns(&self) -> u64 {
        self.doing.get(&Doing::Ready).copied().unwrap_or(0)
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
        for (doing, ns) in &other.doing {
            *self.doing.entry(*doing).or_default() += ns;
        }
        self.head_stacks.merge(&other.head_stacks);
        self.leaf_stacks.merge(&other.leaf_stacks);
        self.gil_ns += other.gil_ns;
        if other.path_ns > self.path_ns {
            (self.path_ns, self.path) = (other.path_ns, other.path.clone());
        }
    }
}

/// The entry with most time; of equal ones the smallest key.
pub(crate) fn most<K: Copy + Ord>(sums: impl IntoIterator<Item = (K, u64)>) -> Option<(K, u64)> {
    sums.into_iter().max_by_key(|(key, ns)| (*ns, std::cmp::Reverse(*key)))
}

/// What a thread at the end of a chain was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Doing {
    Running,
    Forking,
    InCuda,
    Reclaiming,
    Ready,
    Throttled,
    Waiting(State),
    Absent,
}

impl Doing {
    fn of(leaf: Leaf) -> Self {
        match leaf {
            Leaf::Running => Self::Running,
            Leaf::Forking => Self::Forking,
            Leaf::Cuda(_) => Self::InCuda,
            Leaf::Reclaiming => Self::Reclaiming,
            Leaf::Ready(_) => Self::Ready,
            Leaf::Throttled => Self::Throttled,
            Leaf::Blocked(state, _) => Self::Waiting(state),
            Leaf::BlockedIn(_) => Self::Waiting(State::BlockedGpu),
            Leaf::Absent => Self::Absent,
        }
    }

    /// Whether it was on a CPU with its own work.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::Forking | Self::InCuda)
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Running => State::RunningHost.words(),
            Self::Forking => "running, starting a process",
            Self::InCuda => State::RunningCuda.words(),
            Self::Reclaiming => "running, reclaiming memory",
            Self::Ready => State::Ready.words(),
            Self::Throttled => State::Throttled.words(),
            Self::Waiting(state) => state.words(),
            Self::Absent => "not started yet",
        }
    }
}

/// Time a process lost, with one kind of cause.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) kind: Kind,
    pub(crate) root: Kind,
    pub(crate) launcher: ThreadIndex,
    pub(crate) ns: u64,
    /// Sums by root cause.
    pub(crate) parts: BTreeMap<Kind, ChainTotals>,
    /// Sums of all root causes together.
    pub(crate) all: ChainTotals,
    /// How long the same cause held the launching thread up while the GPU was busy.
    pub(crate) busy_ns: u64,
    /// The part of `ns` in which it is unknown whether the GPU was busy.
    unknown_ns: u64,
    /// The part of `ns` that NVML's figures stand for: how much of it the GPU was idle is an estimate.
    estimated_ns: u64,
    /// Whether `ns` is more than the time for which the GPU is known to have been idle.
    pub(crate) is_at_most: bool,
    /// The part of `ns` that is own work which such a hold-up may have delayed.
    late_ns: u64,
    /// The processes that were held up: ranks of the job.
    pub(crate) ranks: BTreeSet<u32>,
}

impl Story {
    /// Whether most of its time is known only as a hold-up of the launching thread, not as GPU idle time.
    pub(crate) fn is_about_pace(&self) -> bool {
        self.unknown_ns > self.ns / 2
    }

    /// The sums of the root cause.
    pub(crate) fn root_part(&self) -> &ChainTotals {
        self.parts.get(&self.root).unwrap_or(&self.all)
    }
}

#[derive(Default)]
struct Growing {
    parts: BTreeMap<Kind, ChainTotals>,
    unknown_ns: u64,
    estimated_ns: u64,
    launchers: HashMap<ThreadIndex, u64>,
}

/// Groups causes into stories, costliest first.
pub(crate) fn stories(costs: &Costs, scene: &Scene<'_>) -> Vec<Story> {
    let mut grouped: BTreeMap<(Kind, u32), Growing> = BTreeMap::new();
    // In a fixed order, so that equal runs give equal texts.
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
        let sets_pace = scene.paced.contains(&pid) && kind::sets_pace(kind, root);
        if cause.gap == Gap::Busy {
            *busy.entry((kind, pid)).or_default() += cost.ns;
            if !sets_pace {
                continue;
            }
        }
        if cause.gap == Gap::ByNvml {
            // To the host the GPU seemed busy then: this time was counted there, too.
            *by_nvml.entry((kind, pid)).or_default() += cost.ns;
        }
        let mut cost = cost.clone();
        if cause.gap == Gap::ByNvml {
            cost.ns = (cost.ns as f64 * scene.nvml_factor) as u64;
        }
        if cause.gap != Gap::Drained && cause.gap != Gap::Busy {
            *late.entry((kind, pid)).or_default() += cost.ns;
        }
        let story = grouped.entry((kind, pid)).or_default();
        story.parts.entry(root).or_default().add(cause, &cost);
        story.unknown_ns += if cause.gap == Gap::Busy { cost.ns } else { 0 };
        story.estimated_ns += if cause.gap == Gap::ByNvml { cost.ns } else { 0 };
        *story.launchers.entry(cause.launcher).or_default() += cost.ns;
    }
    let held_up = |kind: Kind, pid: u32| {
        let of = |sums: &BTreeMap<(Kind, u32), u64>| sums.get(&(kind, pid)).copied().unwrap_or(0);
        of(&busy).saturating_sub(of(&by_nvml))
    };
    let mut stories: Vec<Story> = grouped
        .into_iter()
        .filter_map(|((kind, pid), Growing { parts, unknown_ns, estimated_ns, launchers })| {
            let launcher = most(launchers)?.0;
            let mut all = ChainTotals::default();
            parts.values().for_each(|part| all.merge(part));
            Some(Story {
                kind,
                root: root(&parts)?,
                launcher,
                ns: all.ns,
                parts,
                all,
                busy_ns: held_up(kind, pid),
                unknown_ns,
                estimated_ns,
                is_at_most: false,
                late_ns: late.get(&(kind, pid)).copied().unwrap_or(0),
                ranks: BTreeSet::from([pid]),
            })
        })
        .collect();
    share_out_own_work(&mut stories, scene);
    let mut stories = join_processes(stories);
    fit(&mut stories, scene);
    mark_upper_bounds(&mut stories, scene);
    stories.sort_by_key(|story| std::cmp::Reverse(story.ns));
    stories
}

/// Scales the stories down so that together they do not exceed the time for which the GPUs can have been idle: NVML's
/// windows do not cover the steady state evenly, and their share is an estimate.
fn fit(stories: &mut [Story], scene: &Scene<'_>) {
    let there = scene.idle_most_ns.min(scene.steady_ns * scene.gpus);
    let total: u64 = stories.iter().map(|story| story.ns).sum();
    if total <= there {
        return;
    }
    for story in stories {
        story.ns = (u128::from(story.ns) * u128::from(there) / u128::from(total)) as u64;
    }
}

/// Where the stories claim more time than the GPUs are known to have been idle, those with uncertain time are upper bounds.
fn mark_upper_bounds(stories: &mut [Story], scene: &Scene<'_>) {
    /// One part in so many does not matter.
    const SMALL: u64 = 50;
    let idle = |story: &&mut Story| !story.is_about_pace();
    let claimed: u64 = stories.iter_mut().filter(idle).map(|story| story.ns).sum();
    if claimed <= scene.steady.certain_ns + scene.steady_ns / SMALL {
        return;
    }
    for story in stories.iter_mut().filter(idle) {
        story.is_at_most = story.unknown_ns + story.estimated_ns > story.ns / SMALL;
    }
}

/// Merges the same story of several processes, such as the ranks of a job.
fn join_processes(stories: Vec<Story>) -> Vec<Story> {
    let mut joined: BTreeMap<(Kind, Kind), Story> = BTreeMap::new();
    for story in stories {
        let Some(known) = joined.get_mut(&(story.kind, story.root)) else {
            joined.insert((story.kind, story.root), story);
            continue;
        };
        if story.ns > known.ns {
            known.launcher = story.launcher;
        }
        known.ns += story.ns;
        known.ranks.extend(&story.ranks);
        known.busy_ns += story.busy_ns;
        known.unknown_ns += story.unknown_ns;
        known.estimated_ns += story.estimated_ns;
        known.all.merge(&story.all);
        for (kind, part) in &story.parts {
            known.parts.entry(*kind).or_default().merge(part);
        }
    }
    joined.into_values().collect()
}

/// Moves own work to the cause that delayed it: a thread held up while the GPU was busy does its own work later, while the
/// GPU is idle. At most as much is moved as the thread was held up.
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
        // Work after a wait for the GPU is not late: nothing before that wait could delay it.
        let shared = stories[own].late_ns.min(held_up);
        for other in guilty {
            let part = (shared as f64 * stories[other].busy_ns as f64 / held_up.max(1) as f64) as u64;
            // Time already counted as a hold-up is now known as GPU idle time.
            let counted = part.min(stories[other].unknown_ns);
            stories[other].unknown_ns -= counted;
            stories[other].ns += part - counted;
            stories[own].ns -= part.min(stories[own].ns);
        }
    }
}

fn root(parts: &BTreeMap<Kind, ChainTotals>) -> Option<Kind> {
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
