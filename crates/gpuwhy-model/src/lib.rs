// SPDX-License-Identifier: Apache-2.0
//! Types that all crates share: traced functions ([`ops`]), their calls ([`event`]), loss ([`loss`]), durations
//! ([`histogram`]), thread scheduling ([`host`]), samples taken every second ([`sample`]), events of a recorded run
//! ([`replay`]), other events from libraries ([`library_event`]), rows that represent others ([`thin`]), findings
//! ([`finding`]).
//!
//! Pure: no files, no clocks, no processes. Times are integer nanoseconds of `CLOCK_MONOTONIC`, sizes
//! are bytes; [`units`] formats them, only for display.

pub mod decode;
pub mod event;
pub mod finding;
pub mod histogram;
pub mod host;
pub mod job;
pub mod library_event;
pub mod loss;
pub mod ops;
pub mod rate;
pub mod replay;
pub mod sample;
pub mod source;
pub mod thin;
pub mod units;

pub use decode::{Decode, Direction, NewCommunicator};
pub use event::{Call, CallFlags};
pub use finding::{Confidence, Finding, Fix, Link, RootCause, Severity};
pub use histogram::Histogram;
pub use host::{CpuRun, MovedWait, OffCpu, Reason, ThreadSums, Wait, WokenBy};
pub use job::{Job, Jobs};
pub use library_event::{Communicator, FunctionName, Split, TensorEvent, Transfer, Unwatched};
pub use loss::LossCause;
pub use ops::{Class, Library, Op, OpId};
pub use rate::Rates;
pub use replay::{Event, MemoryEvent};
pub use sample::Samples;
pub use source::{AUTOCAST, SourceLine};
