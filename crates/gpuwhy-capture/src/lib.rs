// SPDX-License-Identifier: Apache-2.0
//! Capture: eBPF probes on the CUDA libraries of the traced processes, and the events they produce.
//!
//! [`Capture`] is the entry point: it loads the programs (`bpf/`), finds the libraries ([`libraries`]), follows new
//! mappings ([`map_watch`]), and returns [`record::Record`]s and loss counts. [`needs`] checks the machine; [`process`]
//! and [`system`] describe processes and the machine.
//!
//! Does not know about run files or output. All times are `CLOCK_MONOTONIC` nanoseconds.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read their own files"))]

mod arch;
mod attach;
pub mod batch;
pub mod calibrate;
mod callers;
pub mod capture;
mod confined;
mod elf;
pub mod error;
mod features;
pub mod governor;
mod host;
mod host_record;
pub mod libraries;
mod lookups;
pub mod map_watch;
#[cfg(test)]
mod mutated;
mod names;
pub mod needs;
mod perf;
pub mod process;
mod procmaps;
mod programs;
mod python;
mod quota;
pub mod record;
pub mod sample;
pub mod secrets;
mod sockets;
pub mod source_lines;
mod syscalls;
pub mod system;
mod told_record;

pub use arch::FirstInstruction;
pub use capture::{Capture, Missed, OpTraps, Options, ProbePrices, Targets};
pub use error::{CaptureError, Result};
pub use host::{HostOptions, SAMPLE_NS};
pub use libraries::AttachedLibrary;
pub use lookups::ProcessNames;
pub use programs::{Flavour, Refusal, Share, StackCounts, Traps};
pub use record::{Life, LifeEvent, Record};
