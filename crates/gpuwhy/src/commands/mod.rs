// SPDX-License-Identifier: Apache-2.0
//! One file per command.

mod check;
mod demo;
mod explain;
mod hold;
mod mcp;
mod memory;
mod merge;
mod profile;
mod query;
mod repair;
mod share;
mod stacks;
mod trace;

use crate::cli::Command;
use anyhow::bail;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs a command and says how gpuwhy should exit.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    if reads_only(&command) {
        crate::trace::privileges::renounce()?;
    }
    match command {
        Command::Check(args) => check::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Stacks(args) => stacks::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Share(args) => share::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Mcp(args) => mcp::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Hold(args) => hold::run(&args),
    }
}

/// Commands that only read files and therefore drop root's rights. `mcp` drops even more, on its own.
fn reads_only(command: &Command) -> bool {
    let explains = matches!(command, Command::Explain(_) | Command::Memory(_) | Command::Stacks(_));
    let files = matches!(command, Command::Merge(_) | Command::Repair(_) | Command::Share(_));
    explains || files || matches!(command, Command::Query(_) | Command::Profile(_))
}

/// The run files among the arguments. A pattern like `run.db*` also matches the -wal and -shm of a killed run, which
/// are read together with their run file.
fn run_files(arguments: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    for path in arguments {
        match gpuwhy_store::main_file(path) {
            None => runs.push(path.clone()),
            Some(main) if arguments.contains(&main) => {}
            Some(main) => {
                bail!("{} is part of the run file {1}: give {1} instead", path.display(), main.display())
            }
        }
    }
    Ok(runs)
}

/// Set by Ctrl-C, SIGTERM or SIGHUP, so that a partial result can be removed.
fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    Ok(stopped)
}
