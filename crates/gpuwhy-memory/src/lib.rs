// SPDX-License-Identifier: Apache-2.0
//! GPU memory of a job, exactly. Pure: a run's facts and events in, a [`Report`] out.
//!
//! - [`steps`]: the job's steps, found from what repeats in its calls (first pass over the events).
//! - [`Analyser`]: the second pass. Each process's memory on each device is a `space`: what is live, by whom, the exact
//!   peak, and live bytes at the end of every step; `driver` follows what is taken from the driver.
//! - `leaks`: which lines keep what they allocate, and which only look like it.
//! - `fragmentation`, `gap`, `oom`: memory reserved and not used, memory nobody sees, and what there was when it ran out.
//! - `backward`: whose tensors those of autograd's threads are. `recent`: the minutes before something went wrong.
//! - `parts`: who held memory at every point of the timeline, where somebody wants to see that.
//! - [`Sieve`]: which events all of this needs.
//! - `findings`, `fixes`: what is said about it.
//! - [`alerts`]: what is said while the job still runs.
//! - [`compare`]: reports of several runs side by side.
//! - [`live`]: a run that goes on, event by event.
//!
//! What is kept in memory is bounded by what is live, by the number of call sites, and by constants; never by the number
//! of events. Times are nanoseconds since the run began, sizes are bytes.

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
mod oom;
mod parts;
mod recent;
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
