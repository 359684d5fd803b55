// SPDX-License-Identifier: Apache-2.0
//! From paths to reports: finds PyTorch's files, reads them with progress, and joins their findings.

mod sources;

pub use sources::{FileKind, Source, in_folder};

use crate::{Error, Result, Stop};
use gpuwhy_model::Finding;
use gpuwhy_torch::snapshot::{self, MemoryReport};
use gpuwhy_torch::trace::{self, Rules, TraceReport};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The analysis of one file.
pub enum Report {
    /// A profiler trace.
    Trace(Box<TraceReport>),
    /// A memory snapshot.
    Memory(Box<MemoryReport>),
}

impl Report {
    /// Its findings.
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Trace(report) => &report.findings,
            Self::Memory(report) => &report.findings,
        }
    }

    /// What could not be read, or is not certain.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Trace(report) => &report.warnings,
            Self::Memory(report) => &report.warnings,
        }
    }
}

/// A file and its analysis.
pub struct Analysed {
    /// The file.
    pub source: Source,
    /// Its report, or why it could not be read.
    pub outcome: Result<Report>,
    /// Its name among several of its kind: `rank 3`, else the file name.
    pub label: Option<String>,
}

impl Analysed {
    /// Its report, if it could be read.
    pub fn report(&self) -> Option<&Report> {
        self.outcome.as_ref().ok()
    }
}

/// The files and options of an analysis.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Leave out memory snapshots.
    pub traces_only: bool,
    /// Leave out profiler traces.
    pub snapshots_only: bool,
    /// Findings and rankings cover warm-up steps, too.
    pub include_warmup: bool,
    /// Leave out CPU ops and Python functions.
    pub quick: bool,
    /// The GPU's memory as its vendor states it, GiB.
    pub gpu_gb: Option<f64>,
    /// Only this device.
    pub device: Option<u32>,
    /// Kernel categories instead of the built-in ones.
    pub rules: Option<PathBuf>,
}

/// Called with a file and its size before it is read. The function it returns is called with the number of bytes done,
/// and dropped at the end.
pub type Watch<'a> = dyn Fn(&Path, u64) -> Box<dyn FnMut(u64)> + 'a;

/// Finds the files and analyses each. A file that cannot be read does not stop the others; it is an error only if none can.
pub fn analyse(question: &Question, watch: &Watch<'_>, stop: &Stop<'_>) -> Result<Vec<Analysed>> {
    let sources = sources::find(&question.paths, !question.traces_only, !question.snapshots_only)?;
    let options = trace_options(question)?;
    let mut files: Vec<Analysed> = Vec::new();
    // Traces first: they say how much memory the GPU has.
    let (traces, snapshots): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| source.kind == FileKind::Trace);
    for source in traces.into_iter().chain(snapshots) {
        if stop() {
            return Err(Error::Stopped);
        }
        let outcome = match source.kind {
            FileKind::Trace => {
                read_trace(&source.path, &options, watch, stop).map(|report| Report::Trace(Box::new(report)))
            }
            FileKind::Snapshot => {
                let given = question.gpu_gb.map(|gb| (gb * GIB) as u64);
                let options = snapshot::Options {
                    device: question.device,
                    capacity_bytes: given.or_else(|| capacity(&files)),
                    ..Default::default()
                };
                read_snapshot(&source.path, &options, watch, stop).map(|report| Report::Memory(Box::new(report)))
            }
        };
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

/// GPU vendors write GB for 2^30 bytes.
const GIB: f64 = (1u64 << 30) as f64;

/// Labels files by rank, else by name, where there are several of a kind.
fn label(files: &mut [Analysed]) {
    for kind in [FileKind::Trace, FileKind::Snapshot] {
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

fn trace_options(question: &Question) -> Result<trace::Options> {
    let rules = match &question.rules {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.clone(), source })?;
            Some(Rules::parse(&text).map_err(|source| Error::Trace { path: path.clone(), source })?)
        }
    };
    let device = question.device.map(|device| device as i32);
    Ok(trace::Options { include_warmup: question.include_warmup, quick: question.quick, device, rules, workers: 0 })
}

/// A file whose reads fail once `stop` says so.
struct Stoppable<'a> {
    file: File,
    stop: &'a Stop<'a>,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if (self.stop)() { Err(io::Error::other("stopped")) } else { self.file.read(into) }
    }
}

/// A file and its size.
fn open(path: &Path) -> Result<(File, u64)> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    opened.map(|(size, file)| (file, size)).map_err(|source| Error::Io { path: path.into(), source })
}

fn read_trace(path: &Path, options: &trace::Options, watch: &Watch<'_>, stop: &Stop<'_>) -> Result<TraceReport> {
    let (file, size) = open(path)?;
    let progress = watch(path, size);
    trace::analyse(Stoppable { file, stop }, options, progress)
        .map_err(|source| Error::Trace { path: path.into(), source })
}

/// The GPUs' memory, if all traces agree on it.
fn capacity(files: &[Analysed]) -> Option<u64> {
    let mut sizes = files.iter().flat_map(|file| match file.report() {
        Some(Report::Trace(report)) => report.devices.as_slice(),
        _ => &[],
    });
    let first = sizes.next()?.memory_bytes?;
    sizes.all(|device| device.memory_bytes == Some(first)).then_some(first)
}

fn read_snapshot(path: &Path, options: &snapshot::Options, watch: &Watch<'_>, stop: &Stop<'_>) -> Result<MemoryReport> {
    let (file, size) = open(path)?;
    let mut progress = watch(path, size);
    let report = snapshot::analyse(Stoppable { file, stop }, options, Some(&mut |done| progress(done)));
    report.map_err(|source| Error::Snapshot { path: path.into(), source })
}

/// All findings, worst first; titles start with the file's label if it has one.
pub fn findings(files: &[Analysed]) -> Vec<Finding> {
    let mut all = Vec::new();
    for file in files {
        for finding in file.report().map(Report::findings).unwrap_or_default() {
            let mut finding = finding.clone();
            if let Some(label) = &file.label {
                finding.title = format!("{label}: {}", finding.title);
            }
            all.push(finding);
        }
    }
    Finding::sort(&mut all);
    all
}

/// What of a file could not be read, or is not certain.
pub fn warnings(file: &Analysed) -> Vec<String> {
    let warnings = match &file.outcome {
        Ok(report) => report.warnings().to_vec(),
        Err(error) => return vec![error.to_string()],
    };
    let named = |warning: String| file.label.as_ref().map_or(warning.clone(), |label| format!("{label}: {warning}"));
    warnings.into_iter().map(named).collect()
}
