// SPDX-License-Identifier: Apache-2.0
//! Whose line it was.
//!
//! The kernel walks a thread's Python frames (`bpf/python.h`) and sends addresses; this crate tells it where things
//! are in a process ([`python::find`]), and turns what it sends into files, functions and lines ([`python::Code`]),
//! stacks as the run file keeps them ([`Stack`]) and the one line that is yours ([`owner`]).
//!
//! Pure, but for [`python::find`] and [`python::Memory`], which look into processes.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read their own files"))]

mod bounded;
mod owner;
pub mod python;
mod stack;

pub use bounded::Bounded;
pub use owner::{Owner, frame_owner, owner, without_place};
pub use stack::{Frame, Stack};
