// SPDX-License-Identifier: Apache-2.0
//! Sweeps every thread of the trace: where its launches came from, and what it did while devices were idle.

use super::idle::{self, Gap, IdleTable};
use super::names::Meaning;
use super::timeline::{self, Cause, ForwardOrigins, Label, Listener, Origin, Query, ThreadRows};
use crate::trace::rows::{Rows, Span, ThreadId, Trace};
use std::cmp::Reverse;

/// The result of all sweeps.
#[derive(Default)]
pub(crate) struct Attribution {
    pub(crate) idle: IdleTable,
    /// For each call, where it came from.
    pub(crate) origins: Vec<Origin>,
    pub(crate) forward: ForwardOrigins,
}

/// A thread to sweep.
struct ThreadSweep<'a> {
    rows: ThreadRows<'a>,
    queries: Vec<Query>,
    origins: &'a mut [Origin],
    /// Whether time it cannot explain is passed on to the main thread.
    pass_on: bool,
}

impl ThreadSweep<'_> {
    fn size(&self) -> usize {
        self.rows.ops.len() + self.rows.calls.len() + self.rows.python.len() + self.rows.annotations.len()
    }
}

/// The result of some threads' sweeps.
struct Swept {
    idle: IdleTable,
    forward: ForwardOrigins,
    left: Vec<Query>,
}

/// Sweeps all threads of the trace, on two threads of our own.
pub(crate) fn attribute(trace: &Trace, meanings: &[Meaning], gaps: &[Gap], steady_from: i64) -> Attribution {
    let rows = &trace.rows;
    let mut idle = IdleTable::new(steady_from);
    let mut queries = idle::plan(gaps, rows, meanings, &mut idle);
    let mut origins = vec![Origin::NOWHERE; rows.calls.len()];
    let main = main_thread(trace);
    let mut jobs = Vec::new();
    let mut rest = origins.as_mut_slice();
    for thread in 0..trace.threads as ThreadId {
        let mine = of_thread(rows, thread);
        let (own, others) = rest.split_at_mut(mine.calls.len());
        rest = others;
        let queries = queries.remove(&thread).unwrap_or_default();
        jobs.push(ThreadSweep { rows: mine, queries, origins: own, pass_on: Some(thread) != main });
    }
    // Balance the two sides: always give the next largest to the smaller one.
    jobs.sort_by_key(|job| Reverse(job.size()));
    let (mut one, mut two, mut ahead) = (Vec::new(), Vec::new(), 0);
    for job in jobs {
        if ahead <= 0 {
            ahead += job.size() as i64;
            one.push(job);
        } else {
            ahead -= job.size() as i64;
            two.push(job);
        }
    }
    let (one, two) = std::thread::scope(|scope| {
        let two = scope.spawn(|| sweep_all(two, meanings, gaps, steady_from));
        (sweep_all(one, meanings, gaps, steady_from), two.join().ok())
    });
    let mut forward = ForwardOrigins::default();
    let mut left = Vec::new();
    for swept in [Some(one), two].into_iter().flatten() {
        idle.absorb(swept.idle);
        forward.extend(swept.forward);
        left.extend(swept.left);
    }
    // Where the launching thread did nothing, it may have waited for the main thread: sweep that for the rest.
    left.sort_by_key(|query: &Query| (query.from, query.gap));
    let mine = main.map(|thread| of_thread(rows, thread)).unwrap_or_default();
    let mut collector = Collector { origins: &mut [], gaps, idle: &mut idle, left: None };
    timeline::sweep(mine, meanings, &left, &mut ForwardOrigins::default(), &mut collector);
    Attribution { idle, origins, forward }
}

fn sweep_all(jobs: Vec<ThreadSweep<'_>>, meanings: &[Meaning], gaps: &[Gap], steady_from: i64) -> Swept {
    let mut swept = Swept { idle: IdleTable::new(steady_from), forward: ForwardOrigins::default(), left: Vec::new() };
    for job in jobs {
        let left = job.pass_on.then_some(&mut swept.left);
        let mut collector = Collector { origins: job.origins, gaps, idle: &mut swept.idle, left };
        timeline::sweep(job.rows, meanings, &job.queries, &mut swept.forward, &mut collector);
    }
    swept
}

/// The thread that runs the training loop: most annotations, Python and forward ops.
fn main_thread(trace: &Trace) -> Option<ThreadId> {
    let mut weight = vec![0usize; trace.threads];
    let mut add = |thread: ThreadId, n: usize| {
        if let Some(slot) = weight.get_mut(thread as usize) {
            *slot += n;
        }
    };
    trace.rows.annotations.iter().for_each(|row| add(row.thread, 1000));
    trace.rows.python.iter().for_each(|row| add(row.thread, 1));
    trace.rows.ops.iter().filter(|op| op.forward_thread == 0).for_each(|op| add(op.thread, 1));
    (0..).zip(weight).filter(|(_, weight)| *weight > 0).max_by_key(|(_, weight)| *weight).map(|(thread, _)| thread)
}

fn of_thread(rows: &Rows, thread: ThreadId) -> ThreadRows<'_> {
    fn mine<R: Span>(rows: &[R], thread: ThreadId) -> &[R] {
        let from = rows.partition_point(|row| row.thread() < thread);
        &rows[from..from + rows[from..].partition_point(|row| row.thread() == thread)]
    }
    ThreadRows {
        ops: mine(&rows.ops, thread),
        calls: mine(&rows.calls, thread),
        python: mine(&rows.python, thread),
        annotations: mine(&rows.annotations, thread),
    }
}

/// Collects the results of a sweep.
struct Collector<'a> {
    origins: &'a mut [Origin],
    gaps: &'a [Gap],
    idle: &'a mut IdleTable,
    /// Takes time that the thread cannot explain; `None`: it goes to the table as unknown.
    left: Option<&'a mut Vec<Query>>,
}

impl Listener for Collector<'_> {
    fn call(&mut self, index: usize, origin: Origin) {
        if let Some(slot) = self.origins.get_mut(index) {
            *slot = origin;
        }
    }

    fn time(&mut self, gap: u32, label: Label, from: i64, to: i64) {
        match &mut self.left {
            Some(left) if label.cause == Cause::Unknown => left.push(Query { from, to, gap }),
            _ => self.idle.add(self.gaps[gap as usize].device, gap, label, from, to),
        }
    }
}
