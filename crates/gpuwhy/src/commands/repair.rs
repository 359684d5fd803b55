// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy repair`: turns what a killed gpuwhy left behind into one complete file.

use crate::cli::Repair;
use crate::output;
use crate::trace::privileges;
use crate::trace::sudo::Caller;
use anyhow::bail;
use gpuwhy_model::units;
use gpuwhy_store::{RepairRequest, Repaired};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &Repair) -> anyhow::Result<ExitCode> {
    let runs = super::run_files(&args.runs)?;
    if let (Some(output), [_, _, ..]) = (&args.output, runs.as_slice()) {
        bail!(
            "-o {} names one file, but {} run files were given: repair them one at a time",
            output.display(),
            runs.len()
        );
    }
    let caller = Caller::from_env();
    let mut damaged = false;
    for run in &runs {
        let owner = caller.as_ref().map(Caller::owner);
        let request = RepairRequest { path: run, output: args.output.as_deref(), owner };
        // With the rights of the user who called sudo, as a trace makes its file.
        let repair = || output::patiently("repairing", || gpuwhy_store::repair(&request));
        let repaired = privileges::with_rights_of(caller.as_ref(), repair)??;
        damaged |= !repaired.damage.is_empty();
        output::show(lines(run, &repaired).iter().map(|line| units::safe(line, 1_000)))?;
    }
    Ok(if damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the file contains now, and what is missing or damaged.
fn lines(run: &Path, repaired: &Repaired) -> Vec<String> {
    let Repaired { stored, lost, processes, duration_ns, .. } = *repaired;
    let processes =
        if processes == 1 { "1 process".to_owned() } else { format!("{} processes", units::count(processes)) };
    let mut lines = vec![format!(
        "{}: {} events of {processes} in {}, {} lost; one file, {}",
        repaired.path.display(),
        units::count(stored),
        units::time(duration_ns),
        units::count(lost),
        units::bytes(repaired.size_bytes),
    )];
    lines.extend(
        repaired
            .wal_bytes
            .filter(|bytes| *bytes > 0)
            .map(|bytes| format!("  {} of that came from {}-wal", units::bytes(bytes), run.display())),
    );
    if repaired.lacks_wal {
        lines.push(format!(
            "  {0}-wal is missing, so what came after {1} is missing. If you still have it, put it next to a fresh copy \
             of {0} and repair that copy",
            run.display(),
            units::time(duration_ns)
        ));
    }
    if !repaired.has_end {
        lines.push(
            "  the run is incomplete: gpuwhy was killed; how many events it had not stored yet is unknown".to_owned(),
        );
    }
    if let Some(first) = repaired.damage.first() {
        lines.push(format!(
            "  the file is damaged ({first}): `sqlite3 {} .recover` saves what is readable",
            repaired.path.display()
        ));
    }
    lines
}
