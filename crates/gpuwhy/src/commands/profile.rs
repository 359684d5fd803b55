// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy profile`: what PyTorch's own profiler traces and memory snapshots say.

use crate::cli::Profile;
use crate::output;
use crate::profile::{self, Analysed, Report};
use gpuwhy_model::{Finding, units};
use gpuwhy_view::{Style, profile_memory, profile_trace};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &Profile) -> anyhow::Result<ExitCode> {
    let files = profile::analyse(args)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document(&files)?)?)?;
    } else {
        print(&files, args.include_warmup, output::stdout_style(), &mut out)?;
    }
    out.flush()?;
    // What could be read has been told; that something could not shows in the exit code, too.
    let failed = files.iter().any(|file| file.outcome.is_err());
    Ok(ExitCode::from(u8::from(failed)))
}

/// All findings, worst first, each with the file it is about where there are several.
fn findings(files: &[Analysed]) -> Vec<Finding> {
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

/// What could not be read or told of a file.
fn warnings(file: &Analysed) -> Vec<String> {
    let told = match &file.outcome {
        Ok(report) => report.warnings().to_vec(),
        Err(error) => return vec![output::one_sentence(error)],
    };
    let named = |warning: String| file.label.as_ref().map_or(warning.clone(), |label| format!("{label}: {warning}"));
    told.into_iter().map(named).collect()
}

/// `gpuwhy.profile/1`, described in docs/profile-json.md. `trace` and `memory` are those of the first file of
/// each kind; with several, `files` has every one.
fn document(files: &[Analysed]) -> anyhow::Result<Value> {
    let mut document = json!({ "schema": "gpuwhy.profile/1" });
    let mut listed = Vec::new();
    for file in files {
        let mut entry = json!({ "path": file.source.path.to_string_lossy() });
        let (key, body) = match &file.outcome {
            Ok(Report::Trace(report)) => ("trace", serde_json::to_value(report)?),
            Ok(Report::Memory(report)) => ("memory", serde_json::to_value(report)?),
            Err(error) => ("error", output::one_sentence(error).into()),
        };
        if file.outcome.is_ok() && document.get(key).is_none() {
            document[key] = body.clone();
        }
        if file.label.is_some() || file.outcome.is_err() {
            entry[key] = body;
        }
        listed.push(entry);
    }
    document["files"] = listed.into();
    document["findings"] = serde_json::to_value(findings(files))?;
    document["warnings"] = files.iter().flat_map(warnings).collect();
    Ok(document)
}

fn print(files: &[Analysed], include_warmup: bool, style: Style, out: &mut impl Write) -> std::io::Result<()> {
    for file in files {
        let path = units::safe(&file.source.path.to_string_lossy(), 500);
        let label = file.label.as_ref().map(|label| format!(" ({})", units::safe(label, 80))).unwrap_or_default();
        writeln!(out, "{}{label}\n", style.bold(&path))?;
        let lines = match file.report() {
            Some(Report::Trace(report)) => profile_trace::lines(report, include_warmup, style),
            Some(Report::Memory(report)) => profile_memory::lines(report, style),
            None => Vec::new(),
        };
        for line in lines {
            writeln!(out, "{line}")?;
        }
        for warning in warnings(file) {
            writeln!(out, "{} {}", style.yellow("warning:"), units::safe(&warning, 500))?;
        }
        writeln!(out)?;
    }
    for finding in findings(files) {
        writeln!(out, "{}", finding.to_text())?;
    }
    Ok(())
}
