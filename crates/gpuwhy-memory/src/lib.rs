// SPDX-License-Identifier: Apache-2.0
//! Exact GPU memory of a job. Pure: a run's facts and events in, a [`Report`] out.
//!
//! - [`steps`]: finds the job's steps from repeating calls (first pass over the events).
//! - [`Analyser`]: the second pass. A `space` is one process's memory on one device: live memory by call site, the exact
//!   peak, and live bytes at the end of every step. `driver` follows memory taken from the driver.
//! - `leaks`: tells leaks from growth that only looks like one.
//! - `fragmentation`, `gap`, `oom`: unused memory, hidden memory, and the state when memory ran out.
//! - `backward`: assigns tensors of autograd's threads to lines. `recent_history`: the minutes before something went wrong.
//! - `live_slices`: memory by line at every point of the timeline, for a bundle.
//! - [`Sieve`]: selects the events that the analysis needs.
//! - `findings`, `fixes`: the results in words.
//! - [`alerts`]: alerts while the job runs.
//! - [`compare`]: compares reports of several runs.
//! - [`live`]: follows a run that is being recorded, event by event.
//!
//! Memory use is bounded by live memory, the number of call sites and constants, never by the number of events. Times are
//! nanoseconds since the run began, sizes are bytes.

pub mod alerts;
mod analyser;
mod backward;
pub mod compare;
mod driver;
mod facts;
mod findings;
mod fixes;
mod fragmentation;
mod gap;
mod grid;
mod leaks;
mod lines;
pub mod live;
mod live_slices;
mod oom;
mod recent_history;
pub mod report;
mod robust;
mod sieve;
mod space;
pub mod steps;
mod timeline;

pub use analyser::Analyser;
pub use backward::backward_stacks;
pub use facts::{Facts, ProcessFact, SiteFact, Unreported};
pub use fixes::HINTS;
pub use report::Report;
pub use sieve::Sieve;
pub use steps::{ProcessSteps, StepFinder};
