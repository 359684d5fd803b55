// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy trace`: record a job into a run file.

use crate::cli::{HostPart, Layers, Probes, Trace};
use crate::trace::{self, AlertSettings, Display, Settings};
use gpuwhy_capture::{Flavour, HostOptions, Options, Targets};
use gpuwhy_memory::alerts::Rule;
use std::process::ExitCode;

pub(crate) fn run(args: &Trace) -> anyhow::Result<ExitCode> {
    let ended = trace::record(&settings(args))?;
    Ok(ExitCode::from(ended.exit_code))
}

fn settings(args: &Trace) -> Settings {
    let targets = match (args.cmd.is_empty(), args.pid.is_empty()) {
        (true, true) => Targets::All,
        _ => Targets::Pids(args.pid.clone()),
    };
    let wanted = |part: HostPart| !args.no_host && args.host.contains(&part);
    Settings {
        capture: Options {
            targets,
            all_layers: args.layers == Layers::All,
            flavour: args.probes.map(|probes| match probes {
                Probes::Session => Flavour::Session,
                Probes::Multi => Flavour::Multi,
                Probes::Plain => Flavour::Plain,
            }),
            find_callers: !args.callers_from_proc,
            ring_bytes: args.ring_kib << 10,
            host: HostOptions {
                sched: wanted(HostPart::Sched),
                memory: wanted(HostPart::Memory),
                io: wanted(HostPart::Io),
                cpu_samples: wanted(HostPart::Sched) && !args.no_stack,
            },
            stacks: !args.no_stack,
        },
        samples: wanted(HostPart::Samples),
        nvml: None,
        command: args.cmd.clone(),
        extra_env: Vec::new(),
        duration: args.duration,
        db: args.db.clone(),
        max_size: args.max_size.0,
        display: match (args.json, args.quiet) {
            (true, _) => Display::Json,
            (_, true) => Display::Quiet,
            _ => Display::Human,
        },
        budget: args.budget,
        alerts: AlertSettings { rules: Rule::chosen(&args.alert), command: args.on_alert.clone() },
        explain: true,
    }
}
