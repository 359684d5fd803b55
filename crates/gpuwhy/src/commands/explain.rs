// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy explain`: where the time went, and why.

use crate::cli::{Explain, FailOn};
use crate::output;
use crate::trace::privileges;
use crate::trace::sudo::Caller;
use gpuwhy_ask::{Explained, Part, explain};
use gpuwhy_model::Severity;
use gpuwhy_view::ExplainView;
use gpuwhy_view::finding_view::Detail;
use gpuwhy_why::process_calls::ProcessCalls;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.explain/1";
/// Exit code if `--fail-on` finds something. 1 is gpuwhy's own failure, 2 wrong usage.
const FOUND: u8 = 3;

pub(crate) fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    let part = args.of.part();
    let (explained, calls) = output::patiently("explaining", || look(args.of.run.path(), &part, args.per_process))?;
    let whole = part.is_whole();
    if whole {
        // With the rights of the user who called sudo, who may own the file. A failure does not change the answer.
        let keep = || explain::keep(args.of.run.path(), &explained);
        let _ = privileges::with_rights_of(Caller::from_env().as_ref(), keep);
    }
    if args.json {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let run = args.of.run.path().display().to_string();
        let calls = args.per_process.then_some(calls.as_slice());
        serde_json::to_writer_pretty(&mut out, &json(&run, &explained, calls)?)?;
        writeln!(out)?;
        out.flush()?;
    } else {
        let detail = if args.full { Detail::Full } else { Detail::Short };
        output::show(text(args.of.run.path(), &explained, &calls, detail))?;
    }
    let bad = args.fail_on.map(severity).is_some_and(|least| worst(&explained) >= Some(least));
    Ok(ExitCode::from(if bad { FOUND } else { 0 }))
}

/// The explanation as text.
pub(super) fn text(db: &Path, explained: &Explained, calls: &[ProcessCalls], detail: Detail) -> Vec<String> {
    let run = &db.display().to_string();
    let view = ExplainView { report: &explained.report, per_process: calls, run, detail };
    view.lines(output::stdout_columns(), output::stdout_style())
}

fn look(db: &Path, part: &Part, per_process: bool) -> anyhow::Result<(Explained, Vec<ProcessCalls>)> {
    let reader = output::open(db)?;
    let explained = explain::explain(&reader, part)?;
    let calls = if per_process { gpuwhy_ask::process_calls(&reader, &explained.report)? } else { Vec::new() };
    Ok((explained, calls))
}

fn worst(explained: &Explained) -> Option<Severity> {
    explained.report.findings.iter().map(|finding| finding.severity).max()
}

fn severity(fail_on: FailOn) -> Severity {
    match fail_on {
        FailOn::Low => Severity::Low,
        FailOn::Medium => Severity::Medium,
        FailOn::High => Severity::High,
        FailOn::Critical => Severity::Critical,
    }
}

fn json(run: &str, explained: &Explained, calls: Option<&[ProcessCalls]>) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(&explained.report)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("schema".into(), SCHEMA.into());
        object.insert("run".into(), run.into());
        object.insert("start_monotonic_ns".into(), explained.session.start_monotonic_ns.into());
        if let Some(calls) = calls {
            object.insert("per_process".into(), serde_json::to_value(calls)?);
        }
    }
    Ok(value)
}
