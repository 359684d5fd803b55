// SPDX-License-Identifier: Apache-2.0
//! The run file: one SQLite database that holds everything about one run.
//!
//! Guarantees (docs/run-file.md has the full text):
//! - **One writer, many readers.** [`Writer`] creates a new file, never changes an old one's content, and refuses a
//!   path that another gpuwhy writes to. [`Reader`] works during the recording. Later, only findings are added
//!   ([`add_findings`]).
//! - **Nothing committed is lost.** However gpuwhy is killed, the file opens with everything up to the last
//!   [`Writer::commit`]. A full disk loses only later calls, and those are counted.
//! - **Two records of the same events.** Every call and every time off the CPU is a row. In addition there are exact
//!   per-second sums, taken before anything is thinned or lost to the disk ([`aggregate`]).
//! - **Reading cannot change it.** SQL from users goes through [`Reader::query`], which is read-only as enforced by
//!   SQLite, limited in time and rows, and adds [`functions`] that SQLite lacks.
//!
//! [`merge`] combines several runs, [`repair`] completes the file of a killed gpuwhy, [`share`] makes a copy for
//! others.
//!
//! Callers give times as `CLOCK_MONOTONIC` nanoseconds; the file has nanoseconds from the start of the run.

pub mod aggregate;
mod alerts;
mod buckets;
mod cap;
mod context;
mod error;
mod facts;
mod findings;
pub mod functions;
pub mod guarded;
mod hash;
mod host;
mod index;
mod interrupt;
mod ledger;
mod merge;
mod moments;
mod names;
pub mod overview;
mod pending;
mod place;
mod reader;
mod repair;
mod replay;
mod reserve;
mod rows;
mod samples;
pub mod schema;
mod scratch;
mod share;
mod side_files;
mod source_lines;
mod stacks;
mod told;
mod unsaved;
mod utc;
mod writer;

pub use aggregate::OpTotals;
pub use alerts::AlertRow;
pub use buckets::{Bucket, Cut, LongEvent};
pub use error::{Error, Result};
pub use facts::{ProcessOpTotals, RunFacts, UnwatchedSpan};
pub use findings::add_findings;
pub use guarded::{Limits, Outcome, Value, limit_memory};
pub use index::TimeIndex;
pub use interrupt::Interrupter;
pub use ledger::{LedgerEntry, LedgerRow};
pub use merge::{MergeRequest, Merged, MergedRun, merge};
pub use moments::{CpuHolder, ProcessEvent, Waits};
pub use overview::{LibraryInfo, LossRow, OpSummary, Process, Session};
pub use pending::{LibraryRow, Machine, StackText};
pub use place::{Owner, is_written};
pub use reader::Reader;
pub use repair::{RepairRequest, Repaired, main_file, repair};
pub use replay::{LetGo, MemoryFollow};
pub use share::{ShareRequest, Shared, share};
pub use stacks::{
    GroupKey, PartSums, Span, StackAnswer, StackError, StackFrame, StackGroup, StackKey, StackQuestion, StackSort,
    StackSums, StackTrace, StackUnit,
};
pub use told::GovernorRow;
pub use writer::{Created, Finished, Missing, NewRun, RunEnd, Writer};
