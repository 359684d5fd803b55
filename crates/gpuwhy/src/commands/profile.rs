// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy profile`: analyses PyTorch's own profiler traces and memory snapshots.

use crate::cli::Profile;
use crate::output;
use crate::progress::Progress;
use gpuwhy_ask::profile::{self, Analysed, Question, Report, findings, warnings};
use gpuwhy_view::finding_view::Detail;
use gpuwhy_view::{ProfileFile, ProfileReport, ProfileView};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &Profile) -> anyhow::Result<ExitCode> {
    let files = profile::analyse(&question(args), &watch, &|| false)?;
    if args.json {
        let mut out = BufWriter::new(std::io::stdout().lock());
        writeln!(out, "{}", serde_json::to_string_pretty(&document(&files)?)?)?;
        out.flush()?;
    } else {
        let findings = findings(&files);
        let view = ProfileView {
            files: files.iter().map(file_view).collect(),
            findings: &findings,
            include_warmup: args.include_warmup,
            detail: if args.full { Detail::Full } else { Detail::Short },
            full_command: full_command(args),
        };
        output::show(view.lines(output::stdout_columns(), output::stdout_style()))?;
    }
    // The files that could be read are shown; the exit code says that another could not.
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

/// `gpuwhy.profile/1`, described in docs/profile-json.md. `trace` and `memory` are the first file of each kind; with
/// several, `files` has them all.
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

fn file_view(file: &Analysed) -> ProfileFile<'_> {
    ProfileFile {
        path: file.source.path.to_string_lossy().into_owned(),
        label: file.label.as_deref(),
        report: file.report().map(|report| match report {
            Report::Trace(report) => ProfileReport::Trace(report),
            Report::Memory(report) => ProfileReport::Memory(report),
        }),
        warnings: warnings(file),
    }
}

/// This command with `--full`, to be pasted into a shell.
fn full_command(args: &Profile) -> String {
    let mut words = vec!["gpuwhy profile --full".to_owned()];
    let switches = [
        ("--include-warmup", args.include_warmup),
        ("--memory-only", args.memory_only),
        ("--trace-only", args.trace_only),
        ("--quick", args.quick),
    ];
    words.extend(switches.into_iter().filter(|(_, given)| *given).map(|(switch, _)| switch.to_owned()));
    words.extend(args.gpu_gb.map(|gb| format!("--gpu-gb {gb}")));
    words.extend(args.device.map(|device| format!("--device {device}")));
    words.extend(args.rules.as_deref().map(|rules| format!("--rules {}", quoted(rules))));
    words.extend(args.paths.iter().map(|path| quoted(path)));
    words.join(" ")
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
