// SPDX-License-Identifier: Apache-2.0
//! x86-64: where to put a probe in a function's prologue.

use super::ProbeCost;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Length of the landing pad for indirect branches, `endbr64`, at the beginning of a function. The kernel
/// can only single-step it; one instruction later the stack and the arguments are still untouched.
pub(crate) fn landing_pad(code: &[u8]) -> u64 {
    if code.starts_with(&ENDBR64) { ENDBR64.len() as u64 } else { 0 }
}

/// Whether the kernel emulates the instruction at the start of `code`: `push` of a register, and `nop`s.
pub(crate) fn probe_cost(code: &[u8]) -> ProbeCost {
    match code {
        [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] | [0x90, ..] | [0x66, 0x90, ..] | [0x0f, 0x1f, ..] => {
            ProbeCost::Emulated
        }
        _ => ProbeCost::SingleStepped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_go_past_endbr64_and_know_a_push() {
        let cet = [0xf3, 0x0f, 0x1e, 0xfa, 0x55];
        assert_eq!(landing_pad(&cet), 4);
        assert_eq!(landing_pad(&cet[4..]), 0);
        assert_eq!(probe_cost(&cet), ProbeCost::SingleStepped);
        assert_eq!(probe_cost(&cet[4..]), ProbeCost::Emulated);
        assert_eq!(probe_cost(&[0x41, 0x57]), ProbeCost::Emulated);
        assert_eq!(probe_cost(&[0x48, 0x83, 0xec, 0x08]), ProbeCost::SingleStepped);
        assert_eq!(probe_cost(&[]), ProbeCost::SingleStepped);
    }
}
