// SPDX-License-Identifier: Apache-2.0
//! From a run file to its explanation: what the store knows is handed to gpuwhy-why, event by event.

mod facts;
mod keep;

use crate::memory;
use anyhow::bail;
use gpuwhy_model::Finding;
use gpuwhy_store::{Reader, Session};
use gpuwhy_why::{Explainer, FrameFact, Report, StackFact};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

pub(crate) use keep::keep;

/// Which part of a run to explain.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// From when on, since the run began.
    pub(crate) from: Option<Duration>,
    /// Until when.
    pub(crate) to: Option<Duration>,
    /// Only the last so much.
    pub(crate) since: Option<Duration>,
    /// Only what these processes launch.
    pub(crate) pids: Vec<u32>,
}

/// An explanation and the run it is of.
pub(crate) struct Explained {
    pub(crate) report: Report,
    pub(crate) session: Session,
}

/// Explains a run, or a part of it.
pub(crate) fn explain(reader: &Reader, part: &Part) -> anyhow::Result<Explained> {
    let session = reader.session()?;
    let (from, to) = span(part, session.duration_ns)?;
    let facts = facts::gather(reader.facts(from, Some(to))?, from, to, &part.pids);
    if let Some(pid) = part.pids.iter().find(|pid| !facts.is_traced(**pid)) {
        bail!("process {pid} is not in this run; `gpuwhy query \"SELECT * FROM processes\"` lists those that are");
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

/// The asked-for part, ns since the run began.
pub(crate) fn span(part: &Part, duration_ns: u64) -> anyhow::Result<(u64, u64)> {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let to = part.to.map_or(duration_ns, |to| ns(to).min(duration_ns));
    let from = match part.since {
        Some(since) => to.saturating_sub(ns(since)),
        None => part.from.map_or(0, ns),
    };
    if from >= to && duration_ns > 0 {
        let length = gpuwhy_model::units::time(duration_ns);
        bail!("there is nothing between --from and --to: the run is {length} long");
    }
    Ok((from, to))
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
