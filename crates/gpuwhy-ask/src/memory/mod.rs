// SPDX-License-Identifier: Apache-2.0
//! From a run file to what is known about its GPU memory: the store's events are handed to gpuwhy-memory, twice, first for
//! the job's steps and then for all the rest. Whoever shows memory, on a screen or to a program, asks here.

mod bundle;
mod compare;
mod live;
mod read_back;
mod source;

use crate::{Error, Part, Result, Stop};
pub use bundle::{Bundled, write_bundle};
pub use compare::{Compared, compare};
pub use gpuwhy_bundle::report::json as report_json;
use gpuwhy_memory::alerts::{Alert, Kind, Level};
pub use gpuwhy_memory::compare::Comparison;
pub use gpuwhy_memory::live::Picture;
pub use gpuwhy_memory::report::{Holder, Report};
use gpuwhy_memory::{Analyser, Facts, ProcessFact, SiteFact, StepFinder, Unreported, backward_stacks};
use gpuwhy_model::{Class, Finding, MemoryEvent, Severity, TensorEvent, ops, units};
use gpuwhy_store::{AlertRow, LetGo, LossRow, Reader, RunFacts, Session, StackTrace};
pub use live::{Following, Look, State};
pub use read_back::{ReadBack, is_events_file, read_back};
use source::Sources;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// What is known, and the run it is of.
#[derive(Debug, Clone)]
pub struct Examined {
    /// What is known.
    pub report: Report,
    /// The run.
    pub session: Session,
}

/// Examines a run's memory, or that of a part of it.
pub fn examine(reader: &Reader, part: &Part) -> Result<Examined> {
    examine_unless(&|| false, reader, part)
}

/// The same, and an error if it is told to stop meanwhile.
pub fn examine_unless(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Examined> {
    let asked = Asked::new(reader, part)?;
    let mut finder = StepFinder::new(asked.facts.from_ns, asked.facts.to_ns);
    let mut stacks = BTreeSet::new();
    asked.play(stop, reader, |event| {
        finder.feed(event);
        if let MemoryEvent::Tensor(TensorEvent { stack: Some(stack), .. }) = event {
            stacks.insert(*stack);
        }
        ControlFlow::Continue(())
    })?;
    let words = sites(reader, &stacks.into_iter().collect::<Vec<_>>())?;
    let backward = backward_stacks(&words);
    let mut analyser = Analyser::new(asked.facts.clone(), finder.finish()).with_backward(backward);
    asked.play(stop, reader, |event| {
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
        None => Ok(Examined { report, session: asked.session }),
    }
}

/// A part of a run that is asked about, and what is known beforehand.
struct Asked {
    session: Session,
    facts: Facts,
    gpus: Vec<gpuwhy_model::sample::Gpu>,
}

impl Asked {
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

    /// All events up to the part's end. From the run's beginning, whatever part is asked about: whether a process has
    /// tensors, and what is live, began before.
    fn play<F>(&self, stop: &Stop<'_>, reader: &Reader, mut each: F) -> Result<()>
    where
        F: FnMut(&MemoryEvent) -> ControlFlow<()>,
    {
        let end = Some(self.facts.to_ns.saturating_add(1));
        reader.replay_memory(0, end, |event| if stop() { ControlFlow::Break(()) } else { each(event) })?;
        if stop() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Stacks in words; those the file does not know are missing.
fn sites(reader: &Reader, ids: &[u64]) -> Result<HashMap<u64, SiteFact>> {
    let sources = Sources::of(reader)?;
    Ok(reader.stack_text(ids)?.into_iter().map(|(id, trace)| (id, site(trace, &sources))).collect())
}

/// What people were alerted of in that time; of these processes, and of whole GPUs.
fn alerts(reader: &Reader, from: u64, to: u64, pids: &[u32]) -> Result<Vec<Alert>> {
    let wanted = |pid: Option<u32>| pids.is_empty() || pid.is_none_or(|pid| pids.contains(&pid));
    let alert = |row: AlertRow| {
        Some(Alert {
            // A file of somebody else's may have other words.
            level: Level::by_name(&row.level)?,
            kind: Kind::by_name(&row.kind)?,
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

/// What is wrong with a run's memory, for an explanation of the whole: what is worth an engineer's time, and whatever costs
/// time, which is accounted for there, too.
pub(crate) fn findings(stop: &Stop<'_>, reader: &Reader, part: &Part) -> Result<Vec<Finding>> {
    let mut found = examine_unless(stop, reader, part)?.report.findings;
    found.retain(|finding| finding.severity >= Severity::Medium || finding.lost_ns > 0);
    Ok(found)
}

fn gather(run: RunFacts, from_ns: u64, to_ns: u64, only: &[u32], let_go: &[LetGo]) -> Facts {
    let process = |one: gpuwhy_store::Process| {
        let ended_ns = one.ended.map(|at| at.max(0).cast_unsigned());
        (one.pid, ProcessFact { pid: one.pid, name: one.name, ended_ns })
    };
    Facts {
        from_ns,
        to_ns,
        only: only.to_vec(),
        lost: run.loss.iter().filter(|row| is_memory(row)).map(|row| row.count).sum(),
        notes: notes(let_go, to_ns),
        unreported: unreported(let_go, to_ns),
        processes: run.processes.into_iter().map(process).collect(),
        gpu_seconds: run.gpu_seconds,
        gpu_processes: run.gpu_processes,
        alerts: Vec::new(),
    }
}

/// Whether an allocation, a free or a report was lost. What is not known may be any.
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

/// When the allocator's reports were not followed, up to a moment.
fn unreported(let_go: &[LetGo], to_ns: u64) -> Vec<Unreported> {
    let mut times: Vec<Unreported> = Vec::new();
    for one in let_go.iter().filter(|one| one.op.as_deref() == report_name()) {
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

fn notes(let_go: &[LetGo], to_ns: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let mut before = let_go.iter().filter(|one| one.at_ns <= to_ns);
    // Launches that are sampled are nothing to memory.
    if let Some(one) = before.clone().find(|one| one.action == "sample" && one.op.as_deref() == report_name()) {
        let at = units::time(one.at_ns);
        notes.push(format!(
            "from {at} on the budget was tight: allocations below 1 MiB have a line now and then only (trace with --budget none)"
        ));
    }
    if let Some(one) = before.find(|one| one.action == "detach") {
        let (at, op) = (units::time(one.at_ns), one.op.as_deref().unwrap_or("something"));
        notes.push(format!("from {at} on {op} was not followed, to stay within the budget: live bytes are not exact"));
    }
    notes
}

/// A stack in the words of the analysis.
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
