// SPDX-License-Identifier: Apache-2.0
//! Where a GPU job's time went, and why. Pure: a run's facts and events in, a [`Report`] of one of its jobs out.
//!
//! - [`ledger`]: each thread's time by state; it adds up.
//! - `calls`, `device` and `nvml`: bounds of each GPU's idle time.
//! - `neighbours`: other jobs of the run on the same GPUs.
//! - `process_calls`: calls by process and op, with warnings.
//! - `timeline` and `walk`: the last seconds of every thread, and the chain from a wait to its cause.
//! - `blame`, `story`, `kind`: idle time summed by cause, and the names of causes.
//! - `conclude`, `words`, `fixes`, `gpu_rules`, `verdict`: findings, their texts, and the verdict.
//!
//! Times are nanoseconds since the run began.

mod blame;
mod calls;
mod conclude;
mod device;
mod explain;
mod facts;
mod fixes;
mod gpu_rules;
mod holders;
mod kind;
pub mod ledger;
mod neighbours;
mod nvml;
pub mod process_calls;
pub mod report;
mod scene;
mod startup;
mod state;
mod story;
mod timeline;
mod verdict;
mod walk;
mod weights;
mod words;

pub use explain::Explainer;
pub use facts::{Facts, FrameFact, LossFact, ProcessFact, StackFact};
pub use kind::Kind;
pub use ledger::{Ledger, ThreadLedger};
pub use report::Report;
pub use state::State;
