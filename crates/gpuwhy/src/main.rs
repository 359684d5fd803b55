// SPDX-License-Identifier: Apache-2.0
//! gpuwhy: why a GPU job is slow, stalls or runs out of memory. This crate only wires: each command is
//! one file under `commands/`, and what it does lives in the rooms it calls.

mod cli;
mod commands;
#[cfg(target_env = "gnu")]
mod glibc;
mod output;
mod progress;
mod thinned;
mod trace;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let traces = matches!(cli.command, cli::Command::Trace(_));
    if !traces {
        restore_sigpipe();
    }
    output::set_verbose(cli.verbose);
    match commands::run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpuwhy: {}", output::one_sentence(&error));
            if let Some(error) = error.downcast_ref::<gpuwhy_capture::CaptureError>() {
                output::details(error.refusals().iter().flat_map(gpuwhy_capture::Refusal::lines));
            }
            // `trace -- CMD` passes on CMD's exit code, so its own failure has a code no job uses.
            ExitCode::from(if traces { 125 } else { 1 })
        }
    }
}

/// Rust ignores SIGPIPE; `gpuwhy query … | head` should end quietly instead of with an error. A trace goes on
/// when nobody reads its progress any more: the run file is what it is for.
fn restore_sigpipe() {
    // SAFETY: sets a signal's default action before any thread exists.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
