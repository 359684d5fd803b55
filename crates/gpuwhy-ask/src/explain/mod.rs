// SPDX-License-Identifier: Apache-2.0
//! From a run file to its explanation: what the store knows is handed to gpuwhy-why, event by event.

mod facts;
mod keep;

use crate::{Error, Part, Result, Stop, memory};
use gpuwhy_model::Finding;
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

/// Explains a run, or a part of it: where its time went, and, on a thread of its own meanwhile, what is wrong with its memory.
pub fn explain(reader: &Reader, part: &Part) -> Result<Explained> {
    explain_unless(&|| false, reader, part)
}

/// The same, and an error if it is told to stop meanwhile.
pub fn explain_unless(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Explained> {
    let (failed, path) = (AtomicBool::new(false), reader.path());
    let in_vain = || failed.load(Ordering::Relaxed) || stop();
    let (explained, memory) = std::thread::scope(|scope| {
        let beside = std::thread::Builder::new().name("memory".into());
        let beside = beside.spawn_scoped(scope, || memory::findings(&in_vain, &Reader::open(path)?, part));
        let explained = explain_time(stop, reader, part);
        failed.store(explained.is_err(), Ordering::Relaxed);
        let memory = match beside {
            Ok(thread) => thread.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault)),
            // No thread is to be had: then one after the other.
            Err(_) if explained.is_ok() => memory::findings(stop, reader, part),
            Err(_) => Ok(Vec::new()),
        };
        (explained, memory)
    });
    let mut explained = explained?;
    explained.report.findings.extend(memory?);
    Finding::sort(&mut explained.report.findings);
    Ok(explained)
}

fn explain_time(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Explained> {
    let session = reader.session()?;
    let (from, to) = part.span(session.duration_ns)?;
    let facts = facts::gather(reader.facts(from, Some(to))?, from, to, &part.pids);
    if let Some(pid) = part.pids.iter().find(|pid| !facts.is_traced(**pid)) {
        return Err(Error::UnknownProcess { pid: *pid });
    }
    let mut explainer = Explainer::new(facts);
    // From the beginning, whatever part is asked about: what was going on then may have begun long before.
    reader.replay(0, Some(to), |event| {
        explainer.feed(event);
        if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if stop() {
        return Err(Error::Stopped);
    }
    let mut failed = None;
    let report = explainer.finish(&mut |ids| match stacks(reader, ids) {
        Ok(words) => words,
        Err(error) => {
            failed = Some(error);
            HashMap::new()
        }
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Explained { report, session }),
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
