// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory --compare`: what changed from run to run.

use crate::cli::Memory;
use crate::output;
use gpuwhy_ask::memory::{self, Compared};
use gpuwhy_view::memory_compare;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.memory-compare/1";

pub(super) fn run(args: &Memory) -> anyhow::Result<ExitCode> {
    let part = args.of.part();
    let compared = output::patiently("comparing memory", || memory::compare(&|| false, &args.compare, &part))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &json(&compared)?)?;
        writeln!(out)?;
    } else {
        let columns = output::stdout_columns();
        for line in memory_compare::lines(&compared.comparison, columns, output::stdout_style()) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn json(compared: &Compared) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(&compared.comparison)?;
    if let Some(runs) = value.get_mut("runs").and_then(serde_json::Value::as_array_mut) {
        for (run, path) in runs.iter_mut().zip(&compared.paths) {
            run["run"] = path.display().to_string().into();
        }
    }
    value["schema"] = SCHEMA.into();
    Ok(value)
}
