// SPDX-License-Identifier: Apache-2.0
//! The run file against an independent truth: what was put in is what comes out, whatever happens between.

mod damage;
mod guarded;
mod place;
mod queries;
mod round_trip;
mod support;
mod survival;
