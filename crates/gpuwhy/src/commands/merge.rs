// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy merge`: one run file out of several.

use crate::cli::Merge;
use crate::output;
use crate::trace::privileges;
use crate::trace::sudo::Caller;
use anyhow::Context;
use gpuwhy_model::units;
use gpuwhy_store::{MergeRequest, MergedRun};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

pub(crate) fn run(args: &Merge) -> anyhow::Result<ExitCode> {
    let caller = Caller::from_env();
    let runs = super::run_files(&args.runs)?;
    let request = MergeRequest {
        inputs: &runs,
        output: &args.output,
        version: env!("CARGO_PKG_VERSION"),
        owner: caller.as_ref().map(Caller::owner),
    };
    let stopped = super::stop_flag().context("cannot install signal handlers")?;
    let go_on = || !stopped.load(Ordering::Relaxed);
    // With the rights of the user who called sudo, as a trace makes its file.
    let merge = || {
        output::say_which_lack_wal(runs.iter().map(std::path::PathBuf::as_path));
        output::patiently("merging", || gpuwhy_store::merge(&request, go_on))
    };
    let merged = privileges::with_rights_of(caller.as_ref(), merge)??;
    let (events, size) = (units::count(merged.stored), units::bytes(merged.size_bytes));
    let runs = merged.runs.len();
    let first = format!("{}: {runs} runs, {events} events, {size}", args.output.display());
    output::show([first].into_iter().chain(merged.runs.iter().map(|run| units::safe(&line(run), 1_000))))?;
    Ok(ExitCode::SUCCESS)
}

/// How the ids and times of a run were shifted.
fn line(run: &MergedRun) -> String {
    let processes = match run.pid_offset {
        0 => "process ids unchanged".to_owned(),
        offset => format!("process ids + {offset}"),
    };
    let began = match run.clock_offset_ns {
        0 => "started first".to_owned(),
        later => format!("started {} later", units::time(later)),
    };
    let end = if run.unfinished { ", incomplete: gpuwhy was killed" } else { "" };
    format!("  {}: {processes}, {began}{end}", run.path.display())
}
