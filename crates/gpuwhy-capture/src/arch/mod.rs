// SPDX-License-Identifier: Apache-2.0
//! What differs between architectures on gpuwhy's side; `bpf/arch_*.h` is the kernel's side.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{SAMPLES, first_instruction, landing_pad};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{SAMPLES, first_instruction, landing_pad};

use serde::{Deserialize, Serialize};

/// Bytes of a function's beginning that [`landing_pad`] and [`first_instruction`] want to see.
pub(crate) const PROLOGUE: usize = 16;

/// The kind of the instruction that a probe replaces. What the probe costs depends on what the kernel does with that
/// instruction, so each kind that some kernel treats differently from the others is measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FirstInstruction {
    /// A `push`, which kernels emulate. Most functions of CUDA's begin with one.
    Push,
    /// A short `nop` or a jump: emulated.
    Jump,
    /// The 5-byte `nop` that Linux 6.18 replaces with a call, which needs no trap.
    Nop5,
    /// Another long `nop`: emulated by newer kernels.
    LongNop,
    /// Room made on the stack: single-stepped as of Linux 6.18.
    Sub,
    /// One register copied to another: likewise.
    Mov,
    /// Whatever else: the kernel single-steps a copy of it, which takes ten microseconds and more in a virtual machine.
    Other,
}

impl FirstInstruction {
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Jump => "jump",
            Self::Nop5 => "nop5",
            Self::LongNop => "long_nop",
            Self::Sub => "sub",
            Self::Mov => "mov",
            Self::Other => "other",
        }
    }

    /// Whether the kernel single-steps a copy of it, as far as is known without measuring.
    pub(crate) fn is_single_stepped(self) -> bool {
        matches!(self, Self::Sub | Self::Mov | Self::Other)
    }
}
