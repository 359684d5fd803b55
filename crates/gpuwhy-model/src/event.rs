// SPDX-License-Identifier: Apache-2.0
//! One traced call, as it leaves the kernel and enters everything else.

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
    /// What is special about it.
    pub flags: CallFlags,
    /// How many calls it stands for, itself included: 1, unless others like it, which lie before it and after the
    /// thread's call before, were left out. 0 is taken for 1.
    pub weight: u32,
    /// The stack it was made from. As captured, the kernel's number of it; once its frames are named, the id of those.
    pub stack: Option<u64>,
}

/// CUDA's and the driver's code for a lack of memory.
const OUT_OF_MEMORY: i32 = 2;

impl Call {
    /// Whether it asked for memory and there was none.
    pub fn is_refused_memory(&self) -> bool {
        // Few calls fail: the rest is looked at of these only.
        self.ret == OUT_OF_MEMORY
            && !self.flags.unfinished
            && self.op.get().is_some_and(|op| op.class == crate::ops::Class::Alloc)
    }

    /// How many calls it stands for; at least itself.
    pub fn calls(&self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// What is special about a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CallFlags {
    /// Made by a CUDA library inside another traced call: not a call of the program.
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
