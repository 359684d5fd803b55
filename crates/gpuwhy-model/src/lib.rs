// SPDX-License-Identifier: Apache-2.0
//! gpuwhy's vocabulary, shared by every room: which functions are traced ([`ops`]), what one call of
//! them looks like ([`event`]), what was lost on the way ([`loss`]), how durations are summarised
//! ([`histogram`]), what the kernel knows of threads ([`host`]), what is looked up every second ([`sample`]), what
//! happens when a run is played again ([`replay`]), what libraries tell beside their calls ([`told`]), what may stand for
//! others when there is little room ([`thin`]) and what an answer is ([`finding`]).
//!
//! Pure: no files, no clocks, no processes. Times are integer nanoseconds of `CLOCK_MONOTONIC`, sizes
//! are bytes; [`units`] turns them into words, and only when something is drawn.

pub mod decode;
pub mod event;
pub mod finding;
pub mod histogram;
pub mod host;
pub mod job;
pub mod loss;
pub mod ops;
pub mod rate;
pub mod replay;
pub mod sample;
pub mod source;
pub mod thin;
pub mod told;
pub mod units;

pub use decode::{Decode, Direction, NewCommunicator};
pub use event::{Call, CallFlags};
pub use finding::{Confidence, Finding, Fix, Link, RootCause, Severity};
pub use histogram::Histogram;
pub use host::{CpuRun, MovedWait, OffCpu, Reason, ThreadSums, Wait, WokenBy};
pub use job::{Job, Jobs};
pub use loss::LossCause;
pub use ops::{Class, Library, Op, OpId};
pub use rate::Rates;
pub use replay::{Event, MemoryEvent};
pub use sample::Samples;
pub use source::{AUTOCAST, SourceLine};
pub use told::{Communicator, FunctionName, Split, TensorEvent, Transfer, Unwatched};
