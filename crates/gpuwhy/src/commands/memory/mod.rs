// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory`: what GPU memory was used for, and what was wrong with it; from a run file, or from what `--bundle` made
//! of one.

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
use gpuwhy_view::{MemorySection, MemoryView};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// What is known, of which run.
struct Known {
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
    // What cannot be looked at is taken for a run file, which says so.
    let is_events = memory::is_events_file(path).unwrap_or(false);
    if let Some(folder) = &args.bundle {
        if is_events {
            bail!("{} is a bundle's events already: make a bundle from the run file", path.display());
        }
        return bundle(args, path, folder);
    }
    let known = if is_events { read_back(args, path)? } else { examine(args, path)? };
    if args.json {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let json = memory::report_json(&known.run, known.start_monotonic_ns, &known.report)?;
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let view = MemoryView { report: &known.report, sections: &sections(args) };
        output::show(view.lines(output::stdout_columns(), output::stdout_style()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(args: &Memory, path: &Path) -> anyhow::Result<Known> {
    let part = args.of.part();
    let examined =
        output::patiently("looking at its memory", || anyhow::Ok(memory::examine(&output::open(path)?, &part)?))?;
    let start_monotonic_ns = examined.session.start_monotonic_ns;
    Ok(Known { report: examined.report, run: path.display().to_string(), start_monotonic_ns })
}

fn read_back(args: &Memory, path: &Path) -> anyhow::Result<Known> {
    if args.of.has_times() {
        bail!(
            "{} is of one part of its run, and that is shown: for another, ask the run file with --from, --to or --since",
            path.display()
        );
    }
    let mut progress = Progress::new(path, std::fs::metadata(path).map_or(0, |found| found.len()));
    let read = memory::read_back(path, &args.of.part().pids, |done| progress.at(done))?;
    Ok(Known { report: read.report, run: read.run.file, start_monotonic_ns: read.run.start_monotonic_ns })
}

fn bundle(args: &Memory, path: &Path, folder: &Path) -> anyhow::Result<ExitCode> {
    let (part, caller) = (args.of.part(), Caller::from_env());
    let stopped = super::stop_flag().context("cannot listen to signals")?;
    let stop = || stopped.load(Ordering::Relaxed);
    let of = (path.display().to_string(), env!("CARGO_PKG_VERSION"));
    let write = || memory::write_bundle(&stop, &Reader::open(path)?, &part, (&of.0, of.1), folder);
    // With the rights of the user who called sudo, as a trace makes its file.
    let patient = || output::patiently("writing the bundle", write);
    let bundled = privileges::with_rights_of(caller.as_ref(), patient)??;
    let size = bundled.files.iter().map(|file| file.bytes).sum();
    let (files, events) = (bundled.files.len(), units::count(bundled.events));
    output::say(&format!("{}: {files} files, {events} events, {}", folder.display(), units::bytes(size)));
    for file in &bundled.files {
        output::say(&format!("  {:<14} {}", file.name, units::bytes(file.bytes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// What was asked for; nothing is everything.
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
