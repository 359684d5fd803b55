// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy profile`: what PyTorch's own profiler traces and memory snapshots say.

use crate::cli::Profile;
use crate::output;
use crate::profile::{self, Report, Source};
use gpuwhy_model::{Finding, units};
use gpuwhy_view::{Style, profile_memory, profile_trace};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &Profile) -> anyhow::Result<ExitCode> {
    let reports = profile::analyse(args)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document(&reports)?)?)?;
    } else {
        print(&reports, args.include_warmup, output::stdout_style(), &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// All findings, worst first.
fn findings(reports: &[(Source, Report)]) -> Vec<Finding> {
    let mut all: Vec<Finding> = reports.iter().flat_map(|(_, report)| report.findings().to_vec()).collect();
    Finding::sort(&mut all);
    all
}

/// `gpuwhy.profile/1`, described in docs/profile-json.md. `trace` and `memory` are those of the first file of
/// each kind; with several, `files` has every one.
fn document(reports: &[(Source, Report)]) -> anyhow::Result<Value> {
    let mut document = json!({ "schema": "gpuwhy.profile/1" });
    let mut files = Vec::new();
    for (source, report) in reports {
        let path = source.path.to_string_lossy();
        let (key, body) = match report {
            Report::Trace(report) => ("trace", serde_json::to_value(report)?),
            Report::Memory(report) => ("memory", serde_json::to_value(report)?),
        };
        if document.get(key).is_none() {
            document[key] = body.clone();
        }
        let several = reports.iter().filter(|(other, _)| other.kind == source.kind).count() > 1;
        files.push(if several { json!({ "path": path, key: body }) } else { json!({ "path": path }) });
    }
    document["files"] = files.into();
    document["findings"] = serde_json::to_value(findings(reports))?;
    document["warnings"] = reports.iter().flat_map(|(_, report)| report.warnings().iter().cloned()).collect();
    Ok(document)
}

fn print(
    reports: &[(Source, Report)],
    include_warmup: bool,
    style: Style,
    out: &mut impl Write,
) -> std::io::Result<()> {
    for (source, report) in reports {
        let path = units::safe(&source.path.to_string_lossy(), 500);
        writeln!(out, "{}\n", style.bold(&path))?;
        let lines = match report {
            Report::Trace(report) => profile_trace::lines(report, include_warmup, style),
            Report::Memory(report) => profile_memory::lines(report, style),
        };
        for line in lines {
            writeln!(out, "{line}")?;
        }
        for warning in report.warnings() {
            writeln!(out, "{} {}", style.yellow("warning:"), units::safe(warning, 500))?;
        }
        writeln!(out)?;
    }
    for finding in findings(reports) {
        writeln!(out, "{}", finding.to_text())?;
    }
    Ok(())
}
