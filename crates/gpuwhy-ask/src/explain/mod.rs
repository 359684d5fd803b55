// SPDX-License-Identifier: Apache-2.0
//! From a run file to its explanation: what the store knows is handed to gpuwhy-why, event by event.

mod facts;
mod keep;

use crate::{Error, Part, Result, memory};
use gpuwhy_model::Finding;
use gpuwhy_store::{Reader, Session};
use gpuwhy_why::{Explainer, FrameFact, Report, StackFact};
use std::collections::HashMap;
use std::ops::ControlFlow;

pub use keep::keep;

/// An explanation and the run it is of.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The explanation.
    pub report: Report,
    /// The run.
    pub session: Session,
}

/// Explains a run, or a part of it.
pub fn explain(reader: &Reader, part: &Part) -> Result<Explained> {
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
        ControlFlow::Continue(())
    })?;
    let mut failed = None;
    let mut report = explainer.finish(&mut |ids| match stacks(reader, ids) {
        Ok(words) => words,
        Err(error) => {
            failed = Some(error);
            HashMap::new()
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    report.findings.extend(memory::findings(reader, part)?);
    Finding::sort(&mut report.findings);
    Ok(Explained { report, session })
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
