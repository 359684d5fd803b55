// SPDX-License-Identifier: Apache-2.0
//! Reading what belongs to processes that gpuwhy does not trust.
//!
//! gpuwhy has root's rights where its targets have none, and a target chooses what root reads: how long its command
//! line is, what lies behind the paths in its mappings, how long a page of its memory takes to arrive. So:
//!
//! - Files of `/proc` have a largest size each, by [`ProcFile`]; the rest is cut off.
//! - A path is first looked at without opening what it leads to ([`look_at`], [`look_in_root_of`], …), and only a
//!   [`Seen`] regular file can be opened. Opening a device can do things: `/dev/watchdog` reboots the machine.
//! - Memory ([`Memory`]) is read into buffers of the reader's own size, by a call that SIGKILL always ends.
//!
//! What this crate cannot bound is time: any of these calls may wait for a file system that its owner wrote. Whoever
//! cannot wait asks a process made for that (gpuwhy-capture's `lookups`).
//!
//! `clippy.toml` of the crates that look into processes refuses `std::fs::read` and its like.

mod file;
mod memory;
mod proc;

pub use file::{Seen, look_at, look_at_mapping, look_at_program, look_in_root_of};
pub use memory::Memory;
pub use proc::{ProcFile, open_file, read_at_most, read_file, read_proc, read_text};
