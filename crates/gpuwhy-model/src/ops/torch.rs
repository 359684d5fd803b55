// SPDX-License-Identifier: Apache-2.0
//! The part of the op table that is PyTorch's: what its caching allocator reports of tensors' memory.
//!
//! One C++ function reports allocations and frees, told apart by the sign of the size; each is an op of its own here.
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

/// What PyTorch's allocator tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TorchOp {
    /// A tensor got memory.
    Alloc,
    /// It gave it back.
    Free,
    /// There was none to get.
    OutOfMemory,
}

const BLOCK: Decode = Decode::Told { arg0: "bytes", arg1: "address" };

/// The rows, after NCCL's.
pub(super) const ROWS: &[(Class, &[Row])] =
    &[(Class::Tensor, &[f(USAGE, BLOCK), f(USAGE_LESS, BLOCK), f(OUT_OF_MEMORY, BLOCK)])];

/// What people say.
pub(super) fn name(symbol: &str) -> Option<&'static str> {
    match symbol {
        USAGE => Some("torchAlloc"),
        USAGE_LESS => Some("torchFree"),
        OUT_OF_MEMORY => Some("torchOutOfMemory"),
        _ => None,
    }
}

/// The row of what the allocator tells.
pub fn torch_op(op: TorchOp) -> OpId {
    static IDS: LazyLock<[OpId; 3]> = LazyLock::new(|| {
        [USAGE, USAGE_LESS, OUT_OF_MEMORY].map(|symbol| by_function(symbol).map_or(OpId(u16::MAX), |op| op.id))
    });
    IDS[op as usize]
}
