// SPDX-License-Identifier: Apache-2.0
//! Events from libraries other than calls: tensors' memory, communicators and transfers, names of functions; and times in
//! which a library was not watched. Times are `CLOCK_MONOTONIC` nanoseconds, in a run file since the run began.

use crate::event::Call;
use crate::ops::{Library, OpId};

/// One report of PyTorch's caching allocator.
///
/// Plain data, like [`Call`]: there are more of these than launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorEvent {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// One of [`crate::ops::TorchOp`].
    pub op: OpId,
    /// PyTorch's index of the device, which is CUDA's ordinal.
    pub device: u8,
    /// Bytes allocated, freed or refused.
    pub bytes: u64,
    /// Their address; 0 if refused.
    pub address: u64,
    /// Bytes allocated by tensors on the device, in this process, after the event.
    pub allocated: u64,
    /// Bytes that PyTorch has reserved from the driver.
    pub reserved: u64,
    /// The stack it was made from, as [`Call::stack`].
    pub stack: Option<u64>,
}

/// A transfer and its place among those of its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The call: `arg0` is its bytes, `arg1` the communicator.
    pub call: Call,
    /// Number of this rank's earlier transfers on the communicator; `None` if its creation was not seen.
    pub sequence: Option<u32>,
    /// The other rank of a send, or the root.
    pub peer: Option<u32>,
}

/// An NCCL communicator, as created by one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The function that created it.
    pub op: OpId,
    /// CUDA's ordinal of the device that was current.
    pub device: Option<u8>,
    /// The handle, valid in this process.
    pub handle: u64,
    /// A number derived from the unique id: the same in every rank. `None` if split off.
    pub id: Option<u64>,
    /// Number of ranks; unknown if split off.
    pub ranks: Option<u32>,
    /// This rank.
    pub rank: Option<u32>,
    /// Its origin, if split off.
    pub split: Option<Split>,
}

/// How a communicator was split off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The handle of the original communicator.
    pub parent: u64,
    /// Ranks with the same color share the new communicator.
    pub color: i32,
    /// Orders the ranks.
    pub key: i32,
}

/// A lookup of a function's handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionName {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// The handle, as in launches.
    pub handle: u64,
    /// Its mangled name.
    pub name: String,
}

/// A library was in use before its functions were watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwatched {
    /// The process.
    pub pid: u32,
    /// Which library.
    pub library: Library,
    /// Its path, as the process sees it.
    pub path: String,
    /// When it was mapped, or tracing began if that was later.
    pub from_ns: u64,
    /// When it was watched; `u64::MAX` if never.
    pub to_ns: u64,
}
