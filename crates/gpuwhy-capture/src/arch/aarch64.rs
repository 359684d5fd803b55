// SPDX-License-Identifier: Apache-2.0
//! aarch64: where to put a probe in a function's prologue. Prepared; not yet run on such a machine.

use super::ProbeCost;

/// `bti c`, `bti jc`, `paciasp`: landing pads for indirect branches.
const PADS: [[u8; 4]; 3] = [[0x5f, 0x24, 0x03, 0xd5], [0xdf, 0x24, 0x03, 0xd5], [0x3f, 0x23, 0x03, 0xd5]];

/// Nothing is skipped: the kernel emulates `bti` as a nop, and the return address is in a register.
pub(crate) fn landing_pad(_code: &[u8]) -> u64 {
    0
}

/// Hints (the landing pads) are emulated; the rest is stepped out of line, which is cheap there.
pub(crate) fn probe_cost(code: &[u8]) -> ProbeCost {
    if PADS.iter().any(|pad| code.starts_with(pad)) { ProbeCost::Emulated } else { ProbeCost::SingleStepped }
}
