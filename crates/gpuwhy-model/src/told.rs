// SPDX-License-Identifier: Apache-2.0
//! What libraries tell beside their calls: tensors' memory, communicators and transfers, names of functions; and when
//! nobody was listening. Times are `CLOCK_MONOTONIC` nanoseconds, in a run file since the run began.

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
    /// Which of [`crate::ops::TorchOp`].
    pub op: OpId,
    /// PyTorch's index of the device, which is CUDA's ordinal.
    pub device: u8,
    /// Bytes that were taken, given back or refused.
    pub bytes: u64,
    /// Where they are; 0 where they were refused.
    pub address: u64,
    /// Bytes that tensors have on the device, in this process, after it.
    pub allocated: u64,
    /// Bytes that PyTorch has from the driver.
    pub reserved: u64,
    /// The stack it was made from, as [`Call::stack`].
    pub stack: Option<u64>,
}

/// How a transfer stands among those of its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The call: `arg0` is its bytes, `arg1` the communicator.
    pub call: Call,
    /// This rank's transfers on the communicator before it; `None` when it was not seen being made.
    pub sequence: Option<u32>,
    /// The other rank of a send, or the root.
    pub peer: Option<u32>,
}

/// A communicator of NCCL, as one rank made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The function that made it.
    pub op: OpId,
    /// CUDA's ordinal of the device that was current.
    pub device: Option<u8>,
    /// The handle, this process's own.
    pub handle: u64,
    /// A number for the unique id: the same in every rank. `None` for one that was split off.
    pub id: Option<u64>,
    /// How many ranks it has; not told for one that was split off.
    pub ranks: Option<u32>,
    /// Which of them this one is.
    pub rank: Option<u32>,
    /// What it was split off from.
    pub split: Option<Split>,
}

/// How a communicator was split off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The handle of the one before.
    pub parent: u64,
    /// Ranks of one color are together.
    pub color: i32,
    /// What orders them.
    pub key: i32,
}

/// A function's handle was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionName {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// The handle, as launches have it.
    pub handle: u64,
    /// Its name, as the compiler spelled it.
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
    /// When it was watched; the last moment there can be if it never was.
    pub to_ns: u64,
}
