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

/// Finds the files meant and analyses each.
pub(crate) fn analyse(args: &Profile) -> anyhow::Result<Vec<(Source, Report)>> {
    let sources = sources::find(&args.paths, !args.trace_only, !args.memory_only)?;
    let options = trace_options(args)?;
    let mut reports: Vec<(Source, Report)> = Vec::new();
    // Traces first: they tell how much memory the GPU has.
    let (traces, snapshots): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| source.kind == Kind::Trace);
    for source in traces.into_iter().chain(snapshots) {
        let said = || source.path.display().to_string();
        let report = match source.kind {
            Kind::Trace => Report::Trace(Box::new(read_trace(&source, &options).with_context(said)?)),
            Kind::Snapshot => {
                let given = args.gpu_gb.map(|gb| (gb * 1e9) as u64);
                let options = snapshot::Options {
                    device: args.device,
                    capacity_bytes: given.or_else(|| capacity(&reports)),
                    ..Default::default()
                };
                Report::Memory(Box::new(read_snapshot(&source, &options).with_context(said)?))
            }
        };
        reports.push((source, report));
    }
    Ok(reports)
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
fn capacity(reports: &[(Source, Report)]) -> Option<u64> {
    let mut sizes = reports.iter().flat_map(|(_, report)| match report {
        Report::Trace(report) => report.devices.as_slice(),
        Report::Memory(_) => &[],
    });
    let first = sizes.next()?.memory_bytes?;
    sizes.all(|device| device.memory_bytes == Some(first)).then_some(first)
}

fn read_snapshot(source: &Source, options: &snapshot::Options) -> anyhow::Result<MemoryReport> {
    let file = File::open(&source.path)?;
    // How large a gzipped pickle will be is not known beforehand.
    let size = if source.is_gzipped() { 0 } else { file.metadata()?.len() };
    let mut progress = Progress::new(&source.path, size);
    Ok(snapshot::analyse(file, options, Some(&mut |done| progress.at(done)))?)
}
