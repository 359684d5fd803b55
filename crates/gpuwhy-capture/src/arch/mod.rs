// SPDX-License-Identifier: Apache-2.0
//! What differs between architectures on gpuwhy's side; `bpf/arch_*.h` is the kernel's side.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{landing_pad, probe_cost};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{landing_pad, probe_cost};

use serde::{Deserialize, Serialize};

/// Bytes of a function's beginning that [`landing_pad`] and [`probe_cost`] want to see.
pub(crate) const PROLOGUE: usize = 16;

/// What a probe on an instruction costs a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeCost {
    /// The kernel emulates the instruction: about half a microsecond.
    Emulated,
    /// The kernel must single-step a copy of it: ten microseconds and more in a virtual machine.
    SingleStepped,
}
