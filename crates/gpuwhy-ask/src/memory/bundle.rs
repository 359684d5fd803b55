// SPDX-License-Identifier: Apache-2.0
//! Writes a bundle: a folder with everything about a run's memory. Plays the run twice, as for a report: first for the
//! steps and the header, then for the events, which go to the files and to the analysis at once.

use super::{RunInput, sites};
use crate::{Error, Part, Result, Stop};
use gpuwhy_bundle::alerts::Alerts;
use gpuwhy_bundle::{
    CsvWriter, EventsWriter, Folder, Header, Site, Steps, Timeline, WrittenFile, page, picture, report,
};
use gpuwhy_memory::{Analyser, ProcessSteps, Report, Sieve, SiteFact, StepFinder, backward_stacks};
use gpuwhy_model::MemoryEvent;
use gpuwhy_store::Reader;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Files written event by event.
const JSON: &str = "events.json";
const CSV: &str = "events.csv";

/// Characters kept of the traced command: a reader limits the length of strings.
const MOST_OF_COMMAND: usize = 4096;

/// A bundle that was written.
#[derive(Debug, Clone)]
pub struct Bundled {
    /// Its files.
    pub files: Vec<WrittenFile>,
    /// Events in it.
    pub events: u64,
    /// The report.
    pub report: Report,
}

/// Writes a bundle of a run's memory, or a time range of it, into a folder. `run` is the run file's name, `version` that
/// of gpuwhy.
pub fn write_bundle(
    stop: &Stop<'_>,
    reader: &Reader,
    part: &Part,
    (run, version): (&str, &str),
    folder: &Path,
) -> Result<Bundled> {
    let input = RunInput::new(reader, part)?;
    // First of all: a folder that cannot be used should fail now and not after minutes of work.
    let mut folder = Folder::take(folder)?;
    let first = FirstPass::run(stop, reader, &input)?;
    let ids: Vec<u64> = first.stacks.iter().copied().collect();
    let words = sites(reader, &ids)?;
    let header = header(&input, &first, &words, (run, version));
    let backward = backward_stacks(&words);
    let mut analyser = Analyser::new(input.facts.clone(), first.steps).with_backward(backward).in_detail();
    write_events(stop, reader, &input, &header, (&mut folder, &mut analyser))?;
    let known = |ids: &[u64]| ids.iter().filter_map(|id| Some((*id, words.get(id)?.clone()))).collect();
    let report = analyser.finish(&mut |ids| known(ids));
    write_report(&mut folder, &header, &report)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let made_unix_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let files = folder.finish(version, made_unix_ns, &header.run, &header.part)?;
    Ok(Bundled { files, events: header.event_count, report })
}

/// Results of the first pass.
struct FirstPass {
    steps: BTreeMap<u32, ProcessSteps>,
    stacks: BTreeSet<u64>,
    events: u64,
}

impl FirstPass {
    fn run(stop: &Stop<'_>, reader: &Reader, input: &RunInput) -> Result<Self> {
        let mut finder = StepFinder::new(input.facts.from_ns, input.facts.to_ns);
        let mut sieve = Sieve::new(&input.facts.only);
        let (mut stacks, mut events) = (BTreeSet::new(), 0);
        input.play(stop, reader, |event| {
            finder.feed(event);
            if sieve.keeps(event) {
                events += 1;
                stacks.extend(stack(event));
            }
            ControlFlow::Continue(())
        })?;
        let mut steps = finder.finish();
        steps.retain(|pid, _| input.facts.wants(*pid));
        stacks.extend(steps.values().filter_map(|steps| steps.marker.and_then(|marker| marker.1)));
        Ok(Self { steps, stacks, events })
    }
}

fn stack(event: &MemoryEvent) -> Option<u64> {
    match event {
        MemoryEvent::Tensor(tensor) => tensor.stack,
        MemoryEvent::Call(call) => call.stack,
    }
}

fn header(input: &RunInput, first: &FirstPass, words: &HashMap<u64, SiteFact>, (run, version): (&str, &str)) -> Header {
    let number_of: HashMap<u64, u32> = first.stacks.iter().copied().zip(0..).collect();
    let (session, facts) = (&input.session, &input.facts);
    let gpu = |gpu: &gpuwhy_model::sample::Gpu| gpuwhy_bundle::Gpu {
        gpu: gpu.gpu,
        name: gpu.name.clone(),
        uuid: gpu.uuid.clone(),
    };
    let process = |one: &gpuwhy_memory::ProcessFact| gpuwhy_bundle::Process {
        pid: one.pid,
        name: one.name.clone(),
        ended_ns: one.ended_ns,
    };
    let steps = first.steps.iter().map(|(pid, steps)| Steps::new(*pid, steps, |stack| number_of.get(&stack).copied()));
    let mut header = Header {
        gpuwhy: version.to_owned(),
        run: gpuwhy_bundle::Run {
            file: run.to_owned(),
            start_unix_ns: session.start_unix_ns,
            start_monotonic_ns: session.start_monotonic_ns,
            duration_ns: session.duration_ns,
            command: session.command.as_deref().map(|command| command.chars().take(MOST_OF_COMMAND).collect()),
        },
        part: gpuwhy_bundle::Selection { from_ns: facts.from_ns, to_ns: facts.to_ns, pids: facts.only.clone() },
        lost: facts.lost,
        unreported: facts.unreported.clone(),
        notes: facts.notes.clone(),
        alerts: facts.alerts.clone(),
        processes: facts.processes.values().map(process).collect(),
        gpus: input.gpus.iter().map(gpu).collect(),
        steps: steps.collect(),
        sites: first.stacks.iter().zip(0..).map(|(stack, site)| Site::new(site, *stack, words.get(stack))).collect(),
        event_count: first.events,
        ..Header::default()
    };
    header.set_devices(&facts.gpu_seconds, &facts.gpu_processes);
    header
}

/// `events.json` and `events.csv`, and the analysis.
fn write_events(
    stop: &Stop<'_>,
    reader: &Reader,
    input: &RunInput,
    header: &Header,
    (folder, analyser): (&mut Folder, &mut Analyser),
) -> Result<()> {
    let (json, csv) = (folder.begin(JSON)?, folder.begin(CSV)?);
    let mut json = EventsWriter::new(json, header).map_err(|source| folder.cannot(JSON, source))?;
    let mut csv = CsvWriter::new(csv, header).map_err(|source| folder.cannot(CSV, source))?;
    let mut sieve = Sieve::new(&input.facts.only);
    let mut failed = None;
    input.play(stop, reader, |event| {
        analyser.feed(event);
        if sieve.keeps(event) {
            let json = json.event(event).map_err(|source| folder.cannot(JSON, source));
            failed = json.and_then(|()| csv.event(event).map_err(|source| folder.cannot(CSV, source))).err();
        }
        if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if json.written() != header.event_count {
        return Err(gpuwhy_bundle::Error::Changed.into());
    }
    let json = json.finish().map_err(|source| folder.cannot(JSON, source))?;
    folder.end(json)?;
    let csv = csv.finish().map_err(|source| folder.cannot(CSV, source))?;
    Ok(folder.end(csv)?)
}

/// The files made from the report.
fn write_report(folder: &mut Folder, header: &Header, report: &Report) -> Result<()> {
    let run = &header.run;
    let timeline = Timeline::new(run, report);
    let mut output = folder.begin("timeline.json")?;
    timeline.write(&mut output).map_err(|source| folder.cannot("timeline.json", source))?;
    folder.end(output)?;
    let stats = report::stats(&run.file, run.start_monotonic_ns, report).map_err(gpuwhy_bundle::Error::from)?;
    folder.put("stats.json", &pretty(&stats)?)?;
    folder.put("alerts.json", &pretty(&Alerts::new(&run.file, run.start_monotonic_ns, report))?)?;
    folder.put("timeline.png", &picture::png(&timeline)?)?;
    folder.put("timeline.html", page::html(&timeline)?.as_bytes())?;
    Ok(())
}

fn pretty(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(gpuwhy_bundle::Error::from).map_err(Error::from)?;
    text.push(b'\n');
    Ok(text)
}
