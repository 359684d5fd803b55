// SPDX-License-Identifier: Apache-2.0
//! One traced call, as it comes from the kernel.

use crate::ops::OpId;

/// One call of a traced function.
///
/// Plain data of fixed size: a million of these a second pass through, so nothing in it owns memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Entry of the call, `CLOCK_MONOTONIC` nanoseconds.
    pub start_ns: u64,
    /// From entry to return. For an unfinished call: until its thread ended, or the trace did.
    pub duration_ns: u64,
    /// Process (what the kernel calls tgid).
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Which function.
    pub op: OpId,
    /// CUDA's ordinal of the device that was current in the thread; `None` when gpuwhy did not see it set.
    pub device: Option<u8>,
    /// Stream handle; `None` for functions that take no stream. 0 is the legacy default stream.
    pub stream: Option<u64>,
    /// First argument of note; [`crate::Decode::meaning`] says what it is.
    pub arg0: Option<u64>,
    /// Second argument of note.
    pub arg1: Option<u64>,
    /// The function's return code; 0 is success. Meaningless for an unfinished call.
    pub ret: i32,
    /// Flags.
    pub flags: CallFlags,
    /// How many calls it represents, itself included: 1, unless similar calls between the thread's previous row and this one
    /// were dropped. 0 counts as 1.
    pub weight: u32,
    /// The caller's stack: the kernel's number when captured, the run file's stack id once its frames are resolved.
    pub stack: Option<u64>,
}

/// CUDA's and the driver's error code for out of memory.
const OUT_OF_MEMORY: i32 = 2;

impl Call {
    /// Whether it asked for memory and was refused.
    pub fn is_refused_memory(&self) -> bool {
        // Few calls fail: check the return code first.
        self.ret == OUT_OF_MEMORY
            && !self.flags.unfinished
            && self.op.get().is_some_and(|op| op.class == crate::ops::Class::Alloc)
    }

    /// How many calls it represents, itself included.
    pub fn calls(&self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// Flags of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CallFlags {
    /// Made by a CUDA library inside another traced call, not by the program.
    pub inner: bool,
    /// Never returned: the thread ended inside it, or the trace did.
    pub unfinished: bool,
}

impl CallFlags {
    /// As stored in the run file: bit 0 inner, bit 1 unfinished.
    pub fn bits(self) -> u8 {
        u8::from(self.inner) | u8::from(self.unfinished) << 1
    }
}
