// SPDX-License-Identifier: Apache-2.0
//! gpuwhy: why a GPU job is slow, stalls or runs out of memory. This crate only connects the others: each command is
//! one file under `commands/`, and the work is done by the crates it calls.

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
            // `trace -- CMD` passes on CMD's exit code, so gpuwhy's own failure has a distinct code.
            ExitCode::from(if traces { 125 } else { 1 })
        }
    }
}

/// Rust ignores SIGPIPE, but `gpuwhy query … | head` should end quietly. `trace` keeps ignoring it: the recording
/// continues even if its progress output is closed.
fn restore_sigpipe() {
    // SAFETY: sets a signal's default action before any thread exists.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
