// SPDX-License-Identifier: Apache-2.0
//! The run file against an independent truth: what was put in is what comes out, whatever happens between.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in test functions; their helpers are the same")]

mod cpus;
mod damage;
mod facts;
mod findings;
mod guarded;
mod index;
mod memory;
mod merge;
mod off_cpu;
mod place;
mod queries;
mod repair;
mod replay;
mod round_trip;
mod run_facts;
mod size;
mod source_lines;
mod stacks;
mod support;
mod survival;
mod told;
