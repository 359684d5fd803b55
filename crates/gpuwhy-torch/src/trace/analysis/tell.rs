// SPDX-License-Identifier: Apache-2.0
//! Asks every thread of the trace where its launches were made from and what filled the devices' idle time.

use super::idle::{self, Gap, IdleTable};
use super::names::Meaning;
use super::timeline::{self, Cause, ForwardOrigins, Label, Listener, Origin, Query, ThreadRows};
use crate::trace::rows::{Rows, Span, ThreadId, Trace};
use std::cmp::Reverse;

/// What the threads tell.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) idle: IdleTable,
    /// For each call, where it was made from.
    pub(crate) origins: Vec<Origin>,
    pub(crate) forward: ForwardOrigins,
}

/// One thread to be asked.
struct Job<'a> {
    rows: ThreadRows<'a>,
    asked: Vec<Query>,
    origins: &'a mut [Origin],
    /// Whether what it cannot explain is put to the main thread.
    pass_on: bool,
}

impl Job<'_> {
    fn size(&self) -> usize {
        self.rows.ops.len() + self.rows.calls.len() + self.rows.python.len() + self.rows.annotations.len()
    }
}

/// What some threads told.
struct Part {
    idle: IdleTable,
    forward: ForwardOrigins,
    left: Vec<Query>,
}

/// Asks all threads, on two threads of our own.
pub(crate) fn tell(trace: &Trace, meanings: &[Meaning], gaps: &[Gap], steady_from: i64) -> Told {
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
        let asked = queries.remove(&thread).unwrap_or_default();
        jobs.push(Job { rows: mine, asked, origins: own, pass_on: Some(thread) != main });
    }
    // The longest goes to one side, and to the other as many as make up for it.
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
        let two = scope.spawn(|| ask(two, meanings, gaps, steady_from));
        (ask(one, meanings, gaps, steady_from), two.join().ok())
    });
    let mut forward = ForwardOrigins::default();
    let mut left = Vec::new();
    for part in [Some(one), two].into_iter().flatten() {
        idle.absorb(part.idle);
        forward.extend(part.forward);
        left.extend(part.left);
    }
    // Where the launching thread did nothing it may have waited for the main one: ask that.
    left.sort_by_key(|query: &Query| (query.from, query.gap));
    let mine = main.map(|thread| of_thread(rows, thread)).unwrap_or_default();
    let mut heard = Heard { origins: &mut [], gaps, idle: &mut idle, left: None };
    timeline::sweep(mine, meanings, &left, &mut ForwardOrigins::default(), &mut heard);
    Told { idle, origins, forward }
}

fn ask(jobs: Vec<Job<'_>>, meanings: &[Meaning], gaps: &[Gap], steady_from: i64) -> Part {
    let mut part = Part { idle: IdleTable::new(steady_from), forward: ForwardOrigins::default(), left: Vec::new() };
    for job in jobs {
        let left = job.pass_on.then_some(&mut part.left);
        let mut heard = Heard { origins: job.origins, gaps, idle: &mut part.idle, left };
        timeline::sweep(job.rows, meanings, &job.asked, &mut part.forward, &mut heard);
    }
    part
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

/// Puts what a sweep finds where it belongs.
struct Heard<'a> {
    origins: &'a mut [Origin],
    gaps: &'a [Gap],
    idle: &'a mut IdleTable,
    /// Where time goes that the thread cannot explain; to the table when there is nobody else to ask.
    left: Option<&'a mut Vec<Query>>,
}

impl Listener for Heard<'_> {
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
