// SPDX-License-Identifier: Apache-2.0
//! From paths to reports: which files are meant, reading them with progress, one answer of several.

mod progress;
mod sources;

pub(crate) use sources::{Kind, Source};

use crate::cli::Profile;
use anyhow::Context;
use gpuwhy_model::Finding;
use gpuwhy_torch::snapshot::{self, MemoryReport};
use gpuwhy_torch::trace::{self, Rules, TraceReport};
use progress::Progress;
use std::fs::File;

/// What one file said.
pub(crate) enum Report {
    /// A profiler trace.
    Trace(Box<TraceReport>),
    /// A memory snapshot.
    Memory(Box<MemoryReport>),
}

impl Report {
    /// What was concluded.
    pub(crate) fn findings(&self) -> &[Finding] {
        match self {
            Self::Trace(report) => &report.findings,
            Self::Memory(report) => &report.findings,
        }
    }

    /// What could not be read or told.
    pub(crate) fn warnings(&self) -> &[String] {
        match self {
            Self::Trace(report) => &report.warnings,
            Self::Memory(report) => &report.warnings,
        }
    }
}

/// A file and what came of it.
pub(crate) struct Analysed {
    /// The file.
    pub(crate) source: Source,
    /// What it said, or why it could not be read.
    pub(crate) outcome: anyhow::Result<Report>,
    /// What to call it where there are several of its kind: `rank 3`, else its name.
    pub(crate) label: Option<String>,
}

impl Analysed {
    /// What it said.
    pub(crate) fn report(&self) -> Option<&Report> {
        self.outcome.as_ref().ok()
    }
}

/// Finds the files meant and analyses each. One that cannot be read takes nothing from the others; if none can,
/// that is an error.
pub(crate) fn analyse(args: &Profile) -> anyhow::Result<Vec<Analysed>> {
    let sources = sources::find(&args.paths, !args.trace_only, !args.memory_only)?;
    let options = trace_options(args)?;
    let mut files: Vec<Analysed> = Vec::new();
    // Traces first: they tell how much memory the GPU has.
    let (traces, snapshots): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| source.kind == Kind::Trace);
    for source in traces.into_iter().chain(snapshots) {
        let outcome = match source.kind {
            Kind::Trace => read_trace(&source, &options).map(|report| Report::Trace(Box::new(report))),
            Kind::Snapshot => {
                let given = args.gpu_gb.map(|gb| (gb * GIB) as u64);
                let options = snapshot::Options {
                    device: args.device,
                    capacity_bytes: given.or_else(|| capacity(&files)),
                    ..Default::default()
                };
                read_snapshot(&source, &options).map(|report| Report::Memory(Box::new(report)))
            }
        };
        let outcome = outcome.with_context(|| source.path.display().to_string());
        files.push(Analysed { source, outcome, label: None });
    }
    if files.iter().all(|file| file.outcome.is_err())
        && let Some(Analysed { outcome: Err(error), .. }) = files.pop()
    {
        return Err(error);
    }
    label(&mut files);
    Ok(files)
}

/// What "80 GB" means on a GPU's box: such sizes are counted in powers of two.
const GIB: f64 = (1u64 << 30) as f64;

/// Names files by rank, or by name, where a reader would mix them up.
fn label(files: &mut [Analysed]) {
    for kind in [Kind::Trace, Kind::Snapshot] {
        if files.iter().filter(|file| file.source.kind == kind).count() < 2 {
            continue;
        }
        for file in files.iter_mut().filter(|file| file.source.kind == kind) {
            let rank = match &file.outcome {
                Ok(Report::Trace(report)) => report.rank.map(|rank| format!("rank {rank}")),
                _ => None,
            };
            let name = || file.source.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.label = Some(rank.unwrap_or_else(name));
        }
    }
}

fn trace_options(args: &Profile) -> anyhow::Result<trace::Options> {
    let rules = match &args.rules {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            Some(Rules::parse(&text).with_context(|| path.display().to_string())?)
        }
    };
    let device = args.device.map(|device| device as i32);
    Ok(trace::Options { include_warmup: args.include_warmup, quick: args.quick, device, rules, workers: 0 })
}

fn read_trace(source: &Source, options: &trace::Options) -> anyhow::Result<TraceReport> {
    let file = File::open(&source.path)?;
    let mut progress = Progress::new(&source.path, file.metadata()?.len());
    Ok(trace::analyse(file, options, |done| progress.at(done))?)
}

/// The GPUs' memory, where the traces agree on it.
fn capacity(files: &[Analysed]) -> Option<u64> {
    let mut sizes = files.iter().flat_map(|file| match file.report() {
        Some(Report::Trace(report)) => report.devices.as_slice(),
        _ => &[],
    });
    let first = sizes.next()?.memory_bytes?;
    sizes.all(|device| device.memory_bytes == Some(first)).then_some(first)
}

fn read_snapshot(source: &Source, options: &snapshot::Options) -> anyhow::Result<MemoryReport> {
    let file = File::open(&source.path)?;
    let mut progress = Progress::new(&source.path, file.metadata()?.len());
    Ok(snapshot::analyse(file, options, Some(&mut |done| progress.at(done)))?)
}
