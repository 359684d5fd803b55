// SPDX-License-Identifier: Apache-2.0
//! Writes the simulated CUDA stack into a folder, for programs that are not written in Rust:
//! `cargo run --release -p simgpu --example install -- FOLDER`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [folder] = arguments.as_slice() else {
        eprintln!("usage: install FOLDER");
        return ExitCode::from(2);
    };
    match simgpu::install(Path::new(folder)) {
        Ok(installed) => {
            println!("{}", installed.dir.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot install into {}: {error}", Path::new(folder).display());
            ExitCode::FAILURE
        }
    }
}
