// SPDX-License-Identifier: Apache-2.0
//! Answers about a run's GPU memory. Plays the store's events to gpuwhy-memory twice: first to find the job's steps, then
//! for everything else. Every view of memory, on a screen or for a program, uses this.

mod bundle;
mod compare;
mod live;
mod read_back;
mod source;

use crate::{Error, Part, Result, Stop};
pub use bundle::{Bundled, write_bundle};
pub use compare::{Compared, compare};
pub use gpuwhy_bundle::report::json as report_json;
use gpuwhy_memory::alerts::{Alert, AlertKind, Level};
pub use gpuwhy_memory::compare::Comparison;
pub use gpuwhy_memory::live::Picture;
pub use gpuwhy_memory::report::{Holder, Report};
use gpuwhy_memory::{Analyser, Facts, ProcessFact, SiteFact, StepFinder, Unreported, backward_stacks};
use gpuwhy_model::{Class, Finding, MemoryEvent, Severity, TensorEvent, ops, units};
use gpuwhy_store::{AlertRow, LetGo, LossRow, Reader, RunFacts, Session, StackTrace};
pub use live::{LiveRun, LiveUpdate, State};
pub use read_back::{ReadBack, is_events_file, read_back};
use source::Sources;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// A memory report and its run.
#[derive(Debug, Clone)]
pub struct Examined {
    /// The report.
    pub report: Report,
    /// The run.
    pub session: Session,
}

/// Examines a run's memory, or a time range of it.
pub fn examine(reader: &Reader, part: &Part) -> Result<Examined> {
    examine_unless(&|| false, reader, part)
}

/// The same; returns an error if `stop` says so meanwhile.
pub fn examine_unless(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Examined> {
    let input = RunInput::new(reader, part)?;
    let mut finder = StepFinder::new(input.facts.from_ns, input.facts.to_ns);
    let mut stacks = BTreeSet::new();
    input.play(stop, reader, |event| {
        finder.feed(event);
        if let MemoryEvent::Tensor(TensorEvent { stack: Some(stack), .. }) = event {
            stacks.insert(*stack);
        }
        ControlFlow::Continue(())
    })?;
    let words = sites(reader, &stacks.into_iter().collect::<Vec<_>>())?;
    let backward = backward_stacks(&words);
    let mut analyser = Analyser::new(input.facts.clone(), finder.finish()).with_backward(backward);
    input.play(stop, reader, |event| {
        analyser.feed(event);
        ControlFlow::Continue(())
    })?;
    let mut failed = None;
    let report = analyser.finish(&mut |ids| {
        let (known, unknown): (Vec<u64>, Vec<u64>) = ids.iter().partition(|id| words.contains_key(id));
        let mut all = sites(reader, &unknown).unwrap_or_else(|error| {
            failed = Some(error);
            HashMap::new()
        });
        all.extend(known.iter().filter_map(|id| Some((*id, words.get(id)?.clone()))));
        all
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(Examined { report, session: input.session }),
    }
}

/// A time range of a run, and the facts the analysis needs before the first event.
struct RunInput {
    session: Session,
    facts: Facts,
    gpus: Vec<gpuwhy_model::sample::Gpu>,
}

impl RunInput {
    fn new(reader: &Reader, part: &Part) -> Result<Self> {
        let session = reader.session()?;
        let (from, to) = part.span(session.duration_ns)?;
        let mut run = reader.facts(from, Some(to))?;
        let gpus = std::mem::take(&mut run.gpus);
        let let_go = about(reader.memory_let_go()?, &part.pids);
        let facts = gather(run, from, to, &part.pids, &let_go);
        let facts = Facts { alerts: alerts(reader, from, to, &part.pids)?, ..facts };
        match part.pids.iter().find(|pid| !facts.processes.contains_key(pid)) {
            Some(pid) => Err(Error::UnknownProcess { pid: *pid }),
            None => Ok(Self { session, facts, gpus }),
        }
    }

    /// Plays all events up to the end of the range. Always starts at the beginning of the run: tensors allocated before the
    /// range may still be live in it.
    fn play<F>(&self, stop: &Stop<'_>, reader: &Reader, mut each: F) -> Result<()>
    where
        F: FnMut(&MemoryEvent) -> ControlFlow<()>,
    {
        let end = Some(self.facts.to_ns.saturating_add(1));
        reader.replay_memory(0, end, |event| if stop() { ControlFlow::Break(()) } else { each(event) })?;
        if stop() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Resolves stacks; those missing from the file are left out.
fn sites(reader: &Reader, ids: &[u64]) -> Result<HashMap<u64, SiteFact>> {
    let sources = Sources::of(reader)?;
    Ok(reader.stack_text(ids)?.into_iter().map(|(id, trace)| (id, site(trace, &sources))).collect())
}

/// Alerts in a time range, about these processes and about whole GPUs.
fn alerts(reader: &Reader, from: u64, to: u64, pids: &[u32]) -> Result<Vec<Alert>> {
    let wanted = |pid: Option<u32>| pids.is_empty() || pid.is_none_or(|pid| pids.contains(&pid));
    let alert = |row: AlertRow| {
        Some(Alert {
            // A file written by another gpuwhy may have other names.
            level: Level::by_name(&row.level)?,
            kind: AlertKind::by_name(&row.kind)?,
            id: row.id,
            at_ns: row.at_ns,
            cleared_ns: row.cleared_ns,
            rule: row.rule,
            pid: row.pid,
            device: row.device,
            gpu: row.gpu,
            value: row.value,
            threshold: row.threshold,
            text: row.text,
        })
    };
    let rows = reader.alerts(from, to)?.into_iter().filter(|row| wanted(row.pid));
    Ok(rows.filter_map(alert).collect())
}

/// Findings about memory for `explain`: those of at least medium severity, and all that cost time, since `explain` accounts
/// for all time.
pub(crate) fn findings(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Vec<Finding>> {
    let mut found = examine_unless(stop, reader, part)?.report.findings;
    found.retain(|finding| finding.severity >= Severity::Medium || finding.lost_ns > 0);
    Ok(found)
}

fn gather(run: RunFacts, from_ns: u64, to_ns: u64, only: &[u32], pauses: &[LetGo]) -> Facts {
    let process = |one: gpuwhy_store::Process| {
        let ended_ns = one.ended.map(|at| at.max(0).cast_unsigned());
        (one.pid, ProcessFact { pid: one.pid, name: one.name, ended_ns })
    };
    Facts {
        from_ns,
        to_ns,
        only: only.to_vec(),
        lost: run.loss.iter().filter(|row| is_memory(row)).map(|row| row.count).sum(),
        notes: notes(pauses, to_ns),
        unreported: unreported(pauses, to_ns),
        processes: run.processes.into_iter().map(process).collect(),
        gpu_seconds: run.gpu_seconds,
        gpu_processes: run.gpu_processes,
        alerts: Vec::new(),
    }
}

/// Whether an allocation, a free or a report was lost. A loss of unknown ops may be one.
fn is_memory(row: &LossRow) -> bool {
    let memory = |name: &str| {
        let class = ops::table().iter().find(|op| op.name == name).map(|op| op.class);
        matches!(class, Some(Class::Alloc | Class::Free | Class::Tensor))
    };
    row.loses_event && row.op.as_deref().is_none_or(memory)
}

/// What was given up in the processes that are asked about; without any, in all.
fn about(let_go: Vec<LetGo>, pids: &[u32]) -> Vec<LetGo> {
    let wanted = |pid: Option<u32>| pids.is_empty() || pid.is_none_or(|pid| pids.contains(&pid));
    let_go.into_iter().filter(|one| wanted(one.pid)).collect()
}

/// The name of the allocator's reports.
fn report_name() -> Option<&'static str> {
    ops::torch_op(ops::TorchOp::Alloc).get().map(|op| op.name.as_str())
}

/// The times up to `to_ns` in which the allocator's reports were paused.
fn unreported(pauses: &[LetGo], to_ns: u64) -> Vec<Unreported> {
    let mut times: Vec<Unreported> = Vec::new();
    for one in pauses.iter().filter(|one| one.op.as_deref() == report_name()) {
        match one.action.as_str() {
            "detach" if one.at_ns <= to_ns => {
                times.push(Unreported { from_ns: one.at_ns, to_ns: to_ns.saturating_add(1), pid: one.pid })
            }
            "attach" => {
                let same = times.iter_mut().filter(|time| time.pid == one.pid);
                same.for_each(|time| time.to_ns = time.to_ns.min(one.at_ns));
            }
            _ => {}
        }
    }
    times
}

/// What pauses and sampling mean for the figures.
fn notes(pauses: &[LetGo], to_ns: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let mut before = pauses.iter().filter(|one| one.at_ns <= to_ns);
    // Sampled launches do not matter for memory.
    if let Some(one) = before.clone().find(|one| one.action == "sample" && one.op.as_deref() == report_name()) {
        let at = units::time(one.at_ns);
        notes.push(format!(
            "from {at} on, only some allocations below 1 MiB have a line, to stay within the budget (trace with --budget none)"
        ));
    }
    if let Some(one) = before.find(|one| one.action == "detach") {
        let (at, op) = (units::time(one.at_ns), one.op.as_deref().unwrap_or("an op"));
        notes.push(format!("from {at} on, {op} was paused to stay within the budget: live bytes are not exact"));
    }
    notes
}

/// A stack as the analysis needs it.
fn site(trace: StackTrace, sources: &Sources) -> SiteFact {
    let place = trace.top_line;
    let (mut line, mut function, mut top) = (None, None, None);
    if let Some((at, name)) = place.as_deref().and_then(|place| place.rsplit_once(' ')) {
        line = Some(at.rsplit('/').next().unwrap_or(at).to_owned());
        function = Some(name.to_owned());
        top = at.rsplit_once(':').and_then(|(file, number)| Some((file, number.parse().ok()?)));
    }
    let source = sources.of_stack(top, &trace.frames);
    let frame = |frame: gpuwhy_store::StackFrame| {
        let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
        format!("{}:{line} {}", frame.file, frame.function)
    };
    SiteFact { line, place, function, source, frames: trace.frames.into_iter().map(frame).collect() }
}
