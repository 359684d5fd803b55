// SPDX-License-Identifier: Apache-2.0
//! PyTorch's part of the op table: reports of its caching allocator about tensors' memory.
//!
//! One C++ function reports allocations and frees, with a size that is negative for frees; here they are separate ops.
//! They get entry probes only: a C++ exception may cross them.

use super::{Class, OpId, Row, by_function, f};
use crate::decode::Decode;
use std::sync::LazyLock;

/// `c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device)`.
const USAGE: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// The same function, called with a negative size. No symbol has this name.
const USAGE_LESS: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE (size < 0)";
/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, c10::Device)`.
const OUT_OF_MEMORY: &str = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE";

/// Reports of PyTorch's allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TorchOp {
    /// A tensor got memory.
    Alloc,
    /// A tensor's memory was freed.
    Free,
    /// An allocation was refused.
    OutOfMemory,
}

const BLOCK: Decode = Decode::Report { arg0: "bytes", arg1: "address" };

/// The rows, after NCCL's.
pub(super) const ROWS: &[(Class, &[Row])] =
    &[(Class::Tensor, &[f(USAGE, BLOCK), f(USAGE_LESS, BLOCK), f(OUT_OF_MEMORY, BLOCK)])];

/// The short name.
pub(super) fn name(symbol: &str) -> Option<&'static str> {
    match symbol {
        USAGE => Some("torchAlloc"),
        USAGE_LESS => Some("torchFree"),
        OUT_OF_MEMORY => Some("torchOutOfMemory"),
        _ => None,
    }
}

/// The id of an allocator report.
pub fn torch_op(op: TorchOp) -> OpId {
    static IDS: LazyLock<[OpId; 3]> = LazyLock::new(|| {
        [USAGE, USAGE_LESS, OUT_OF_MEMORY].map(|symbol| by_function(symbol).map_or(OpId(u16::MAX), |op| op.id))
    });
    IDS[op as usize]
}
