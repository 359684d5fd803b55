// SPDX-License-Identifier: Apache-2.0
//! Python stacks: which line of code a thread was in.
//!
//! The kernel walks a thread's Python frames (`bpf/python.h`) and sends addresses. This crate finds the interpreter's
//! structures in a process ([`python::find`]), and turns the addresses into files, functions and lines
//! ([`python::Code`]), stacks for the run file ([`Stack`]) and the line of your code ([`owner`]).
//!
//! Pure, except for [`python::find`] and [`python::Memory`], which read processes.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read their own files"))]

mod bounded;
mod owner;
pub mod python;
mod stack;

pub use bounded::Bounded;
pub use owner::{Owner, frame_owner, owner, without_place};
pub use stack::{Frame, Stack};
