// SPDX-License-Identifier: Apache-2.0
//! Finds the job's steps from repeating calls.
//!
//! A call site (thread, function, stack) that is passed once a step marks it: the number of launches between two passes is
//! about constant. Sites inside a loop of a step are passed unevenly, and sites passed only sometimes have fewer others
//! with the same count. So: of the sites with even distances, take those with about the commonest count; of these, one
//! that waits for the GPU.

use crate::robust::median;
use gpuwhy_model::MemoryEvent;
use gpuwhy_model::ops::{Class, OpId, TorchOp, torch_op};
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// The rank of the allocator's reports; calls rank higher.
const TENSOR: u8 = 0;
/// Fewer passes show no pattern.
pub const FEWEST: usize = 8;
/// How even distances must be: 1 is always the same number of launches.
const EVEN: f64 = 0.8;
/// Distances are compared within groups of at least this many, and at most this many groups.
const AROUND: usize = 32;
const GROUPS: usize = 64;
/// Counts agree if they differ by at most one plus one in this many.
const CLOSE: u64 = 20;
/// A site that agrees with this share of the most others is as good, if it is passed about as often (a few of its passes
/// may be missing) or as evenly.
const AGREED: f64 = 0.75;
/// Marks must cover this share of the time in which the process works, or of its launches, and reach to this share of the
/// time before its end: repetition while a model loads is not steps. Time alone is not enough: between the first copy of
/// its model and its first step, a short job loads libraries for longer than its steps last.
const COVERED: f64 = 0.4;
const UP_TO_END: f64 = 0.2;
/// Call sites followed in a process, and passes kept of all of them (16 bytes each).
const MOST_SITES: usize = 1 << 14;
const MOST_PASSES: usize = 1 << 21;

/// How certain it is that the marks are steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// No pattern: there are no steps.
    #[default]
    None,
    /// Few passes, or uneven ones.
    Low,
    /// Even, but few or alone.
    Medium,
    /// Many, even, and several sites agree.
    High,
}

/// The steps of a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessSteps {
    /// How certain they are.
    pub certainty: Certainty,
    /// The call that marks a step: the function, and the stack it is called from.
    pub marker: Option<(OpId, Option<u64>)>,
    /// The time of each mark, in order. Step 1 ends at the first, if there was none before.
    pub marks: Vec<u64>,
    /// Steps before the selected time range.
    pub before: u64,
    /// Launches in a step, the median.
    pub launches: u64,
    /// A step's length, the median, ns.
    pub step_ns: u64,
    /// The first and last time at which the process launched, waited or allocated.
    pub active_ns: (u64, u64),
    /// Whether PyTorch's allocator reports in this process.
    pub has_tensors: bool,
}

impl ProcessSteps {
    /// The number of the step at this time, starting at 1 at the beginning of the run.
    pub fn step_at(&self, at_ns: u64) -> u64 {
        self.before.saturating_add(self.marks.partition_point(|mark| *mark < at_ns) as u64 + 1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Site {
    tid: u32,
    op: OpId,
    /// The stack; for a launch without one, the function.
    place: u64,
    stack: Option<u64>,
}

/// A pass of a site: when, and after how many of the process's launches.
#[derive(Debug, Clone, Copy)]
struct Pass {
    at: u64,
    launches: u64,
}

#[derive(Default)]
struct Passes {
    class_rank: u8,
    /// Before the selected time range.
    before: u64,
    count: u64,
    passes: Vec<Pass>,
    /// There were too many: the site cannot mark steps.
    dropped: bool,
}

#[derive(Default)]
struct Process {
    launches: u64,
    sites: HashMap<Site, Passes>,
    kept: usize,
    has_tensors: bool,
    active_ns: Option<(u64, u64)>,
}

/// Finds the steps of every process. The first pass over a run's events.
#[derive(Default)]
pub struct StepFinder {
    span: (u64, u64),
    processes: BTreeMap<u32, Process>,
}

impl StepFinder {
    /// Finds steps in a time range.
    pub fn new(from_ns: u64, to_ns: u64) -> Self {
        Self { span: (from_ns, to_ns), processes: BTreeMap::new() }
    }

    /// Takes the next event, in order of time.
    pub fn feed(&mut self, event: &MemoryEvent) {
        let at = event.at_ns();
        if let MemoryEvent::Tensor(tensor) = event {
            self.processes.entry(tensor.pid).or_default().has_tensors = true;
        }
        if at > self.span.1 {
            return;
        }
        let (site, rank, launches) = match event {
            MemoryEvent::Tensor(tensor) => {
                if tensor.op != torch_op(TorchOp::Alloc) {
                    return;
                }
                let place = tensor.stack.unwrap_or(0);
                (Site { tid: tensor.tid, op: tensor.op, place, stack: tensor.stack }, TENSOR, 0)
            }
            MemoryEvent::Call(call) => {
                let Some(class) = call.op.get().map(|op| op.class) else { return };
                let rank = match class {
                    Class::Sync => 4,
                    Class::Copy => 3,
                    Class::Collective => 2,
                    Class::Launch => 1,
                    _ => return,
                };
                if call.flags.inner {
                    return;
                }
                let place = call.stack.or(call.arg0.filter(|_| class == Class::Launch)).unwrap_or(0);
                let launches = if class == Class::Launch { call.calls() } else { 0 };
                (Site { tid: call.tid, op: call.op, place, stack: call.stack }, rank, launches)
            }
        };
        let process = self.processes.entry(event.pid()).or_default();
        if at < self.span.0 {
            process.pass_before(site, rank);
        } else {
            process.pass(site, rank, launches, at);
        }
    }

    /// The steps of every process that did anything.
    pub fn finish(self) -> BTreeMap<u32, ProcessSteps> {
        self.processes.into_iter().map(|(pid, process)| (pid, process.steps())).collect()
    }
}

impl Process {
    fn pass(&mut self, site: Site, class_rank: u8, launches: u64, at: u64) {
        self.launches = self.launches.saturating_add(launches);
        let active = self.active_ns.get_or_insert((at, at));
        active.1 = at;
        let pass = Pass { at, launches: self.launches };
        let Some(entry) = self.site(site, class_rank) else { return };
        entry.count += 1;
        if entry.dropped {
            return;
        }
        entry.passes.push(pass);
        self.kept += 1;
        if self.kept > MOST_PASSES {
            self.drop_commonest();
        }
    }

    /// Before the selected time range, only the number of passes counts.
    fn pass_before(&mut self, site: Site, class_rank: u8) {
        if let Some(entry) = self.site(site, class_rank) {
            entry.before += 1;
        }
    }

    fn site(&mut self, site: Site, class_rank: u8) -> Option<&mut Passes> {
        let known = self.sites.len();
        match self.sites.entry(site) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(_) if known >= MOST_SITES => None,
            Entry::Vacant(entry) => Some(entry.insert(Passes { class_rank, ..Passes::default() })),
        }
    }

    /// Drops half of the kept passes, of the most frequent sites first, because these are inside steps. Sites that wait for
    /// the GPU mark steps best and are dropped last.
    fn drop_commonest(&mut self) {
        let mut kept: Vec<(&Site, &mut Passes)> = self.sites.iter_mut().filter(|(_, passes)| !passes.dropped).collect();
        // Ties are broken the same way every time.
        kept.sort_by_key(|(site, passes)| (Reverse(passes.passes.len() >> passes.class_rank), **site));
        for (_, passes) in kept {
            if self.kept <= MOST_PASSES / 2 {
                break;
            }
            self.kept -= passes.passes.len();
            passes.passes = Vec::new();
            passes.dropped = true;
        }
    }

    fn steps(self) -> ProcessSteps {
        let active = self.active_ns.unwrap_or_default();
        let has_tensors = self.has_tensors;
        let nothing = ProcessSteps { active_ns: active, has_tensors, ..ProcessSteps::default() };
        let mut even: Vec<Candidate<'_>> =
            self.sites.iter().filter_map(|(site, passes)| candidate(*site, passes, active, self.launches)).collect();
        // Ties are broken the same way every time.
        even.sort_by_key(|one| (one.passes.passes[0].at, one.site));
        let Some(best) = choose(&mut even) else { return nothing };
        let passes = &best.passes.passes;
        let certainty = match passes.len() {
            16.. if best.even >= 0.95 && best.agreed >= 2 => Certainty::High,
            12.. if best.even >= 0.9 => Certainty::Medium,
            _ => Certainty::Low,
        };
        let middle = |distance: fn(&Pass, &Pass) -> u64| {
            let mut all: Vec<f64> = passes.windows(2).map(|pair| distance(&pair[0], &pair[1]) as f64).collect();
            median(&mut all) as u64
        };
        ProcessSteps {
            certainty,
            marker: Some((best.site.op, best.site.stack)),
            marks: passes.iter().map(|pass| pass.at).collect(),
            before: best.passes.before,
            launches: middle(launches_between),
            step_ns: middle(|one, next| next.at.saturating_sub(one.at)),
            active_ns: active,
            has_tensors,
        }
    }
}

struct Candidate<'a> {
    site: Site,
    passes: &'a Passes,
    even: f64,
    /// Sites passed about as often, including this one.
    agreed: usize,
}

impl Candidate<'_> {
    /// Whether both are passed about as often.
    fn is_close(&self, other: &Self) -> bool {
        self.passes.count.abs_diff(other.passes.count) <= 1 + other.passes.count / CLOSE
    }

    /// Orders by length of the steps: fewer passes mean longer steps.
    fn is_longer(&self, other: &Self) -> Ordering {
        other.passes.count.cmp(&self.passes.count).then(self.even.total_cmp(&other.even))
    }
}

/// The site that marks steps: preferably one that waits for the GPU, among those as good as the one with most agreement.
fn choose<'c, 'a>(even: &'c mut [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
    let mut counts: Vec<u64> = even.iter().map(|one| one.passes.count).collect();
    counts.sort_unstable();
    for one in even.iter_mut() {
        let (count, by) = (one.passes.count, 1 + one.passes.count / CLOSE);
        let upto = counts.partition_point(|other| *other <= count.saturating_add(by));
        one.agreed = upto - counts.partition_point(|other| *other < count.saturating_sub(by));
    }
    // Tensors count for agreement, but mark steps only if nothing else does: under a tight budget they lose their stacks.
    let calls = even.iter().any(|one| one.passes.class_rank > TENSOR);
    let may_mark = |one: &&Candidate<'_>| !calls || one.passes.class_rank > TENSOR;
    let lead =
        even.iter().rev().filter(may_mark).max_by(|a, b| {
            (a.agreed, a.passes.class_rank).cmp(&(b.agreed, b.passes.class_rank)).then(a.is_longer(b))
        })?;
    let is_as_good = |one: &&Candidate<'_>| {
        one.agreed as f64 >= AGREED * lead.agreed as f64 && (one.is_close(lead) || one.even >= lead.even)
    };
    even.iter()
        .rev()
        .filter(may_mark)
        .filter(is_as_good)
        .max_by(|a, b| (a.passes.class_rank, a.agreed).cmp(&(b.passes.class_rank, b.agreed)).then(a.is_longer(b)))
}

fn launches_between(one: &Pass, next: &Pass) -> u64 {
    next.launches.saturating_sub(one.launches)
}

/// A site that may mark steps, and how even the launches between its passes are.
fn candidate<'a>(site: Site, passes: &'a Passes, active: (u64, u64), launches: u64) -> Option<Candidate<'a>> {
    let (first, last) = (passes.passes.first()?, passes.passes.last()?);
    let at_work = active.1.saturating_sub(active.0) as f64;
    let covers = last.at.saturating_sub(first.at) as f64 >= COVERED * at_work
        || launches_between(first, last) as f64 >= COVERED * launches as f64;
    let reaches_end = active.1.saturating_sub(last.at) as f64 <= UP_TO_END * at_work;
    if passes.dropped || passes.passes.len() < FEWEST || !covers || !reaches_end {
        return None;
    }
    // Without launches there are no steps.
    let even = evenness(&passes.passes)?;
    (even >= EVEN).then_some(Candidate { site, passes, even, agreed: 0 })
}

/// 1 minus the relative deviation of the distances from the median of their group. Groups, because gpuwhy may pause
/// launches to stay within the budget, so that later steps have fewer. A site in a loop of a step has one large distance
/// among small ones and is far from even. `None` if most distances are 0.
fn evenness(passes: &[Pass]) -> Option<f64> {
    let mut distances: Vec<f64> = passes.windows(2).map(|pair| launches_between(&pair[0], &pair[1]) as f64).collect();
    let (mut sum, mut off) = (0.0, 0.0);
    let groups = (distances.len() / AROUND).clamp(1, GROUPS);
    let size = distances.len().div_ceil(groups).max(1);
    for group in distances.chunks_mut(size) {
        let middle = median(group);
        sum += group.iter().sum::<f64>();
        off += group.iter().map(|distance| (distance - middle).abs()).sum::<f64>();
    }
    (sum > 0.0 && median(&mut distances) > 0.0).then(|| 1.0 - off / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More passes than are kept: the site that waits once a step still marks the steps.
    #[test]
    fn a_long_run_keeps_its_marks() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        let steps = MOST_PASSES as u64 / 10;
        for step in 0..steps {
            for launch in 0..24 {
                process.pass(site(launch), 1, 1, step * 100 + launch);
            }
            process.pass(site(99), 4, 0, step * 100 + 50);
        }
        assert!(process.kept <= MOST_PASSES);
        let found = process.steps();
        assert_eq!((found.marks.len() as u64, found.launches, found.step_ns), (steps, 24, 100));
        assert_eq!(found.marker, Some((OpId(99), Some(99))));
    }

    /// Reports have stacks for most of the run only; the wait has one throughout.
    #[test]
    fn tensors_that_lose_their_stacks_do_not_mark_steps() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        for step in 0..100 {
            for tensor in 0..5 {
                process.pass(site(if step < 85 { tensor } else { 9 }), 0, 0, step * 100 + tensor);
            }
            process.pass(site(20), 1, 1, step * 100 + 40);
            process.pass(site(20), 1, 1, step * 100 + 41);
            process.pass(site(30), 4, 0, step * 100 + 50);
        }
        let found = process.steps();
        assert_eq!((found.marks.len(), found.marker), (100, Some((OpId(30), Some(30)))));
        assert_eq!(found.certainty, Certainty::Medium, "no other site agrees");
    }

    /// As with PyTorch's optimizers: the model is copied, libraries load for seconds, then there is a second of steps.
    #[test]
    fn a_pause_before_the_first_step_hides_no_steps() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        process.pass(site(1), 3, 0, 0);
        for step in 0..100 {
            process.pass(site(20), 1, 7, 4_000 + step * 10);
            process.pass(site(30), 4, 0, 4_000 + step * 10 + 5);
        }
        let found = process.steps();
        assert_eq!((found.marks.len(), found.marker), (100, Some((OpId(30), Some(30)))));
    }

    /// After a while most launches are paused to stay within the budget: later steps have fewer, but all equally many.
    #[test]
    fn paused_launches_hide_no_steps() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        for step in 0..200 {
            process.pass(site(20), 1, if step < 60 { 29 } else { 7 }, step * 100 + 40);
            process.pass(site(30), 4, 0, step * 100 + 50);
        }
        let found = process.steps();
        assert_eq!((found.marks.len(), found.marker), (200, Some((OpId(30), Some(30)))));
        assert_eq!((found.certainty >= Certainty::Medium, found.launches), (true, 7));
    }

    /// Sampling drops some passes of launches; the wait is complete.
    #[test]
    fn the_wait_marks_steps_where_launches_agree_with_each_other_better() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        for step in 0..120 {
            (0..8).filter(|launch| step % 40 != 7 || launch % 2 == 0).for_each(|launch| {
                process.pass(site(launch), 1, 1, step * 100 + launch);
            });
            process.pass(site(30), 4, 0, step * 100 + 50);
        }
        let found = process.steps();
        assert_eq!((found.marks.len(), found.marker), (120, Some((OpId(30), Some(30)))));
    }

    /// As in a GAN: five passes of one network, whose loss is printed, for each pass of the other, which waits for nothing.
    #[test]
    fn a_wait_in_a_loop_of_a_step_marks_no_step() {
        let mut process = Process::default();
        let site = |place: u64| Site { tid: 1, op: OpId(place as u16), place, stack: Some(place) };
        for step in 0..200 {
            for pass in 0..5 {
                (0..8).for_each(|launch| process.pass(site(launch), 1, 1, step * 100 + pass * 10 + launch));
                process.pass(site(50), 4, 0, step * 100 + pass * 10 + 9);
            }
            (20..30).for_each(|launch| process.pass(site(launch), 1, 1, step * 100 + 60 + launch));
        }
        let found = process.steps();
        assert_eq!((found.marks.len(), found.certainty), (200, Certainty::High), "{:?}", found.marker);
    }

    #[test]
    fn the_step_at_a_time() {
        let steps = ProcessSteps { marks: vec![10, 20, 30], ..ProcessSteps::default() };
        assert_eq!([0, 10, 11, 30, 31].map(|at| steps.step_at(at)), [1, 1, 2, 3, 4]);
        let later = ProcessSteps { before: 7, ..steps };
        assert_eq!([0, 10, 11, 30, 31].map(|at| later.step_at(at)), [8, 8, 9, 10, 11]);
    }
}
