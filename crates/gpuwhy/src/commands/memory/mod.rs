// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory`: what GPU memory was used for, and what was wrong with it.

mod compare;
mod live;
mod terminal;

use crate::cli::Memory;
use crate::output;
use gpuwhy_ask::{Examined, memory};
use gpuwhy_store::Reader;
use gpuwhy_view::{MemorySection, MemoryView};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// The JSON's name and version.
const SCHEMA: &str = "gpuwhy.memory/1";

pub(crate) fn run(args: &Memory) -> anyhow::Result<ExitCode> {
    if !args.compare.is_empty() {
        return compare::run(args);
    }
    if args.live {
        return live::run(args);
    }
    let part = args.of.part();
    let examined = output::patiently("looking at its memory", || memory::examine(&Reader::open(&args.of.db)?, &part))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &json(&args.of.db.display().to_string(), &examined)?)?;
        writeln!(out)?;
    } else {
        let view = MemoryView { report: &examined.report, sections: &sections(args) };
        for line in view.lines(output::stdout_columns(), output::stdout_style()) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
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

fn json(run: &str, examined: &Examined) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(&examined.report)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("schema".into(), SCHEMA.into());
        object.insert("run".into(), run.into());
        object.insert("start_monotonic_ns".into(), examined.session.start_monotonic_ns.into());
    }
    Ok(value)
}
