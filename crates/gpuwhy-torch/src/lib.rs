// SPDX-License-Identifier: Apache-2.0
//! What PyTorch writes about itself: profiler traces ([`trace`]) and memory snapshots ([`snapshot`]).
//!
//! Pure: readers take bytes (or anything that gives bytes) and know nothing of files, screens or live capture.
//! Times are integer nanoseconds, sizes are bytes.

pub mod snapshot;
pub mod trace;
