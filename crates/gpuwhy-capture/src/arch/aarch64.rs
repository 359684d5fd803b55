// SPDX-License-Identifier: Apache-2.0
//! aarch64: where to put a probe in a function's prologue, and what it will stand on. Prepared; not yet run on such a
//! machine.

use super::FirstInstruction::{self, Jump, Other, Push};
use std::arch::naked_asm;

/// Nothing is skipped: the kernel emulates `bti` as a nop, and the return address is in a register.
pub(crate) fn landing_pad(_code: &[u8]) -> u64 {
    0
}

/// The kind of the instruction at the start of `code`: what the kernel simulates, or else steps out of line.
pub(crate) fn first_instruction(code: &[u8]) -> FirstInstruction {
    let Some(word) = code.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else { return Other };
    match word {
        // Hints: nop, and the landing pads `bti` and `paciasp`.
        _ if word & 0xffff_f01f == 0xd503_201f => Jump,
        // b and bl, b.cond, cbz and cbnz, tbz and tbnz.
        _ if word & 0x7c00_0000 == 0x1400_0000 => Jump,
        _ if word & 0xff00_0010 == 0x5400_0000 => Jump,
        _ if word & 0x7c00_0000 == 0x3400_0000 => Jump,
        // stp x29, x30, [sp, #-n]!: simulated by newer kernels.
        _ if word & 0xffc0_7fff == 0xa980_7bfd => Push,
        _ => Other,
    }
}

#[unsafe(naked)]
extern "C" fn push() {
    naked_asm!("stp x29, x30, [sp, #-16]!", "ldp x29, x30, [sp], #16", "mov w0, #0", "ret");
}

#[unsafe(naked)]
extern "C" fn jump() {
    naked_asm!("nop", "mov w0, #0", "ret");
}

#[unsafe(naked)]
extern "C" fn other() {
    naked_asm!("mov w0, #0", "ret");
}

/// A function of gpuwhy's own for each kind, to be probed. It returns 0, which is CUDA's word for success.
pub(crate) const SAMPLES: &[(FirstInstruction, extern "C" fn())] = &[(Push, push), (Jump, jump), (Other, other)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart_as_the_kernel_does() {
        for (word, kind) in [
            (0xd503_245f_u32, Jump), // bti c
            (0xd503_233f, Jump),     // paciasp
            (0xd503_201f, Jump),     // nop
            (0x1400_0004, Jump),     // b
            (0xb400_0040, Jump),     // cbz x0
            (0xa9bf_7bfd, Push),     // stp x29, x30, [sp, #-16]!
            (0xd100_43ff, Other),    // sub sp, sp, #16
            (0x5280_0000, Other),    // mov w0, #0
        ] {
            assert_eq!(first_instruction(&word.to_le_bytes()), kind, "{word:x}");
        }
        assert_eq!(first_instruction(&[]), Other);
    }
}
