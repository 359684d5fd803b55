// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory`: the memory report of a run file, or of a bundle.

mod compare;
mod live;
mod terminal;

use crate::cli::Memory;
use crate::output;
use crate::progress::Progress;
use crate::trace::privileges;
use crate::trace::sudo::Caller;
use anyhow::{Context, bail};
use gpuwhy_ask::memory::{self, Report};
use gpuwhy_model::units;
use gpuwhy_store::Reader;
use gpuwhy_view::finding_view::Detail;
use gpuwhy_view::{MemorySection, MemoryView};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// A report and its run.
struct LoadedReport {
    report: Report,
    run: String,
    start_monotonic_ns: u64,
}

pub(crate) fn run(args: &Memory) -> anyhow::Result<ExitCode> {
    if !args.compare.is_empty() {
        return compare::run(args);
    }
    if args.live {
        return live::run(args);
    }
    let run = args.run();
    let path = run.as_path();
    // An unreadable file counts as a run file: opening that gives the error.
    let is_events = memory::is_events_file(path).unwrap_or(false);
    if let Some(folder) = &args.bundle {
        if is_events {
            bail!("{} is already part of a bundle: write the bundle from the run file", path.display());
        }
        return bundle(args, path, folder);
    }
    let loaded = if is_events { read_back(args, path)? } else { examine(args, path)? };
    if args.json {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let json = memory::report_json(&loaded.run, loaded.start_monotonic_ns, &loaded.report)?;
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let detail = if args.full { Detail::Full } else { Detail::Short };
        let run = path.display().to_string();
        let view = MemoryView { report: &loaded.report, sections: &sections(args), detail, run: &run };
        output::show(view.lines(output::stdout_columns(), output::stdout_style()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(args: &Memory, path: &Path) -> anyhow::Result<LoadedReport> {
    let part = args.of.part();
    let examined = output::patiently("examining memory", || anyhow::Ok(memory::examine(&output::open(path)?, &part)?))?;
    let start_monotonic_ns = examined.session.start_monotonic_ns;
    Ok(LoadedReport { report: examined.report, run: path.display().to_string(), start_monotonic_ns })
}

fn read_back(args: &Memory, path: &Path) -> anyhow::Result<LoadedReport> {
    if args.of.has_times() {
        bail!(
            "{} covers a fixed time range: for another, use the run file with --from, --to or --since",
            path.display()
        );
    }
    let mut progress = Progress::new(path, std::fs::metadata(path).map_or(0, |found| found.len()));
    let read = memory::read_back(path, &args.of.part().pids, |done| progress.at(done))?;
    Ok(LoadedReport { report: read.report, run: read.run.file, start_monotonic_ns: read.run.start_monotonic_ns })
}

fn bundle(args: &Memory, path: &Path, folder: &Path) -> anyhow::Result<ExitCode> {
    let (part, caller) = (args.of.part(), Caller::from_env());
    let stopped = super::stop_flag().context("cannot listen to signals")?;
    let stop = || stopped.load(Ordering::Relaxed);
    let of = (path.display().to_string(), env!("CARGO_PKG_VERSION"));
    let write = || memory::write_bundle(&stop, &Reader::open(path)?, &part, (&of.0, of.1), folder);
    // With the rights of the user who called sudo, as a trace creates its file.
    let patient = || output::patiently("writing the bundle", write);
    let bundled = privileges::with_rights_of(caller.as_ref(), patient)??;
    let size = bundled.files.iter().map(|file| file.bytes).sum();
    let (files, events) = (bundled.files.len(), units::count(bundled.events));
    output::say(&format!("wrote {}: {files} files, {events} events, {}", folder.display(), units::bytes(size)));
    for file in &bundled.files {
        output::say(&format!("  {:<14} {}", file.name, units::bytes(file.bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// The sections whose flags were given.
fn sections(args: &Memory) -> Vec<MemorySection> {
    [
        (args.oom, MemorySection::Oom),
        (args.leaks, MemorySection::Leaks),
        (args.at_peak, MemorySection::AtPeak),
        (args.fragmentation, MemorySection::Fragmentation),
        (args.gap, MemorySection::Gap),
    ]
    .into_iter()
    .filter_map(|(wanted, section)| wanted.then_some(section))
    .collect()
}
