// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy explain`: where the time went, and why.

use crate::cli::Explain;
use crate::explain::{self, Explained, Part};
use gpuwhy_store::Reader;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.explain/1";

pub(crate) fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    let reader = Reader::open(&args.db)?;
    let part = Part { from: args.from, to: args.to, since: args.since, pids: args.pid.clone() };
    let explained = explain::explain(&reader, &part)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, &json(&args.db.display().to_string(), &explained)?)?;
    writeln!(out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn json(run: &str, explained: &Explained) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(&explained.report)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("schema".into(), SCHEMA.into());
        object.insert("run".into(), run.into());
        object.insert("start_monotonic_ns".into(), explained.session.start_monotonic_ns.into());
    }
    Ok(value)
}
