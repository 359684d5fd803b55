// SPDX-License-Identifier: Apache-2.0
//! Reads files and memory of untrusted processes.
//!
//! gpuwhy has root's rights, and an untrusted target controls what root reads: the length of its command line, the
//! targets of the paths in its mappings, the time until a page of its memory arrives. So:
//!
//! - Each file of `/proc` has a size limit ([`ProcFile`]); the rest is cut off.
//! - A path is first resolved without opening its target ([`look_at`], [`look_in_root_of`], …), and only a [`Seen`]
//!   regular file can be opened. Opening a device can have effects: `/dev/watchdog` reboots the machine.
//! - Memory ([`Memory`]) is read into buffers whose size the reader chooses, by a call that SIGKILL can always end.
//!
//! This crate cannot limit time: any of these calls may wait for a file system controlled by the target. Code that
//! cannot wait uses a separate reader process (gpuwhy-capture's `lookups`).
//!
//! `clippy.toml` of the crates that read processes forbids `std::fs::read` and similar functions.

mod file;
mod memory;
mod proc;

pub use file::{Seen, look_at, look_at_mapping, look_at_program, look_in_root_of};
pub use memory::Memory;
pub use proc::{ProcFile, open_file, read_at_most, read_file, read_proc, read_text};
