// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy profile`: what PyTorch's own profiler traces and memory snapshots say.

use crate::cli::Profile;
use crate::output;
use crate::progress::Progress;
use gpuwhy_ask::profile::{self, Analysed, Question, Report, findings, warnings};
use gpuwhy_model::units;
use gpuwhy_view::{Style, profile_memory, profile_trace};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &Profile) -> anyhow::Result<ExitCode> {
    let files = profile::analyse(&question(args), &watch, &|| false)?;
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

fn question(args: &Profile) -> Question {
    Question {
        paths: args.paths.clone(),
        traces_only: args.trace_only,
        snapshots_only: args.memory_only,
        include_warmup: args.include_warmup,
        quick: args.quick,
        gpu_gb: args.gpu_gb,
        device: args.device,
        rules: args.rules.clone(),
    }
}

fn watch(path: &Path, size: u64) -> Box<dyn FnMut(u64)> {
    let mut progress = Progress::new(path, size);
    Box::new(move |done| progress.at(done))
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
            Err(error) => ("error", error.to_string().into()),
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
