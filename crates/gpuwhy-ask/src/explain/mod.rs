// SPDX-License-Identifier: Apache-2.0
//! Explains a run file: feeds the store's facts and events to gpuwhy-why.

mod facts;
mod jobs;
mod keep;

use crate::{Asked, Error, Part, Result, Stop, memory};
use gpuwhy_model::Job;
use gpuwhy_store::{Reader, Session};
use gpuwhy_why::{Explainer, FrameFact, Report, StackFact};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

pub use keep::keep;

/// An explanation and the run it is of.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The explanation.
    pub report: Report,
    /// The run.
    pub session: Session,
}

/// Explains a run, or a time range of it, job by job: where the time went and, on a second thread, problems with memory.
pub fn explain(reader: &Reader, part: &Part) -> Result<Explained> {
    explain_unless(&|| false, reader, part)
}

/// The same; an error if `stop` asks it to stop.
pub fn explain_unless(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Explained> {
    let asked = Asked::find(reader, part)?;
    // All of the jobs' processes, not only the named ones.
    let pids = if asked.all { Vec::new() } else { asked.pids() };
    let of_jobs = &Part { pids, ..part.clone() };
    let (failed, path) = (AtomicBool::new(false), reader.path());
    let in_vain = || failed.load(Ordering::Relaxed) || stop();
    let (explained, memory) = std::thread::scope(|scope| {
        let beside = std::thread::Builder::new().name("memory".into());
        let beside = beside.spawn_scoped(scope, || memory::findings(&in_vain, &Reader::open(path)?, of_jobs));
        let explained = explain_time(stop, reader, &asked);
        failed.store(explained.is_err(), Ordering::Relaxed);
        let memory = match beside {
            Ok(thread) => thread.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault)),
            // Without a thread: one after the other.
            Err(_) if explained.is_ok() => memory::findings(stop, reader, of_jobs),
            Err(_) => Ok(Vec::new()),
        };
        (explained, memory)
    });
    let (explained, chosen) = explained?;
    let report = jobs::together(explained, memory?, chosen, &asked);
    Ok(Explained { report, session: asked.session })
}

/// Explains the chosen jobs, in one pass over the events.
fn explain_time(stop: &Stop<'_>, reader: &Reader, asked: &Asked) -> Result<(Vec<jobs::Explained>, jobs::Chosen)> {
    let run = reader.facts(asked.from_ns, Some(asked.to_ns))?;
    let chosen = jobs::choose(reader, asked)?;
    let explainer = |job: &Option<Job>| Explainer::new(facts::gather(&run, asked.from_ns, asked.to_ns, job.as_ref()));
    let mut explainers: Vec<Explainer> = chosen.explained.iter().map(explainer).collect();
    drop(run);
    // Always from the beginning: an interval in the time range may have started long before.
    reader.replay(0, Some(asked.to_ns), |event| {
        explainers.iter_mut().for_each(|explainer| explainer.feed(event));
        if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if stop() {
        return Err(Error::Stopped);
    }
    let mut failed = None;
    let mut words = |ids: &[u64]| match stacks(reader, ids) {
        Ok(words) => words,
        Err(error) => {
            failed = Some(error);
            HashMap::new()
        }
    };
    let reports = explainers.into_iter().map(|explainer| explainer.finish(&mut words));
    let named = chosen.explained.iter().cloned().zip(reports);
    let explained = named.map(|(job, report)| jobs::Explained { job, report }).collect();
    match failed {
        Some(error) => Err(error.into()),
        None => Ok((explained, chosen)),
    }
}

fn stacks(reader: &Reader, ids: &[u64]) -> gpuwhy_store::Result<HashMap<u64, StackFact>> {
    let texts = reader.stack_text(ids)?;
    let words = |trace: gpuwhy_store::StackTrace| StackFact {
        top_line: trace.top_line,
        frames: trace
            .frames
            .into_iter()
            .map(|frame| FrameFact { file: frame.file, line: frame.line.unwrap_or(0), function: frame.function })
            .collect(),
    };
    Ok(texts.into_iter().map(|(id, trace)| (id, words(trace))).collect())
}
