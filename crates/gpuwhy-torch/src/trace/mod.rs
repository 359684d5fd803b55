// SPDX-License-Identifier: Apache-2.0
//! PyTorch profiler traces: where the GPU's time went, and what it waited for.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use gpuwhy_torch::trace::{Options, analyse};
//! let file = std::fs::File::open("profiler_trace.json.gz")?;
//! let report = analyse(file, &Options::default(), |bytes_done| eprint!("\r{bytes_done} bytes"))?;
//! println!("{} steps, {} devices", report.steps.count, report.devices.len());
//! # Ok(()) }
//! ```
//!
//! Text becomes rows in `reader`, rows become a [`TraceReport`] in `analysis`. Files are read in one pass, on all
//! cores; memory grows with the number of events, not with the size of their text.

mod analysis;
mod event;
mod header;
mod intern;
mod json;
mod reader;
mod report;
mod rows;
mod split;

pub use analysis::{Account, Rules};
pub use report::*;

use std::io::{self, Read};

/// Why a file could not be analysed at all. Damage inside a trace is a warning of the report instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source could not be read.
    #[error("cannot read the trace: {0}")]
    Read(#[source] io::Error),
    /// The file is empty.
    #[error("the file is empty: the profiler did not finish writing it, or this is not the trace")]
    Empty,
    /// Not JSON.
    #[error("not a profiler trace: the file starts with {start:?}, which is not JSON")]
    NotJson {
        /// The first bytes.
        start: String,
    },
    /// JSON of another kind.
    #[error("not a profiler trace: JSON without a traceEvents list (its keys: {keys})")]
    NoEvents {
        /// Some of the keys it has instead.
        keys: String,
    },
    /// A list, but not of events.
    #[error("not a profiler trace: a JSON list of something other than trace events")]
    ForeignList,
    /// Cut off before the event list.
    #[error("the file ends before its list of events: the profiler did not finish writing it")]
    CutBeforeEvents,
    /// It unpacks to far more than a trace does.
    #[error(
        "{packed} bytes of the file unpack to more than {unpacked}, which no trace does: if you trust the file, unpack it with gunzip and give the unpacked file"
    )]
    UnpacksTooFar {
        /// Bytes of the file so far.
        packed: u64,
        /// Bytes of text in them.
        unpacked: u64,
    },
    /// The rules are invalid.
    #[error("invalid kernel rules: {0}")]
    Rules(String),
}

/// Options of an analysis.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Let findings and rankings cover warm-up steps too.
    pub include_warmup: bool,
    /// Leave out CPU ops and Python functions: the account, steps, kernels and copies stay exact, idle time and
    /// kernels are not traced back to ops and lines.
    pub quick: bool,
    /// Only this device.
    pub device: Option<i32>,
    /// Kernel categories; the built-in rules when not given.
    pub rules: Option<Rules>,
    /// Threads that read; 0: one per core.
    pub workers: usize,
}

/// Analyses one trace, plain or gzipped. `progress` is called on this thread with the bytes of
/// `source` done so far.
pub fn analyse(source: impl Read, options: &Options, progress: impl FnMut(u64)) -> Result<TraceReport, Error> {
    let rules = match &options.rules {
        Some(rules) => rules.clone(),
        None => Rules::built_in()?,
    };
    let how = reader::ReadOptions { quick: options.quick, workers: options.workers };
    let trace = reader::read(source, how, progress)?;
    if trace.tally.events == 0 && trace.tally.unreadable > 0 || trace.tally.events > 0 && trace.tally.with_phase == 0 {
        return Err(Error::ForeignList);
    }
    Ok(analysis::analyse(trace, &rules, options))
}
