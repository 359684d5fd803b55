// SPDX-License-Identifier: Apache-2.0
//! x86-64: where to put a probe in a function's prologue, and what it will stand on.

use super::FirstInstruction::{self, Jump, LongNop, Mov, Nop5, Other, Push, Sub};
use std::arch::naked_asm;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Length of the landing pad for indirect branches, `endbr64`, at the beginning of a function. The kernel
/// can only single-step it; one instruction later the stack and the arguments are still untouched.
pub(crate) fn landing_pad(code: &[u8]) -> u64 {
    if code.starts_with(&ENDBR64) { ENDBR64.len() as u64 } else { 0 }
}

/// The kind of the instruction at the start of `code`, by what the kernel's `arch_uprobe_analyze_insn` does with it.
pub(crate) fn first_instruction(code: &[u8]) -> FirstInstruction {
    let prefixes = code.iter().take_while(|byte| is_prefix(**byte)).count();
    // It does not emulate jumps of 16 bits.
    let (is_short, rest) = (code[..prefixes].contains(&0x66), &code[prefixes..]);
    match rest {
        [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] if prefixes == 0 => Push,
        [0x90, ..] => Jump,
        [0xeb | 0xe9 | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] if !is_short => Jump,
        // A call stores its return address as a push stores a register.
        [0xe8, ..] if !is_short => Push,
        [0x0f, 0x1f, 0x44, 0, 0, ..] if prefixes == 0 => Nop5,
        [0x0f, 0x1f, ..] => LongNop,
        [0x48, 0x81 | 0x83, 0xec, ..] if prefixes == 0 => Sub,
        [0x89 | 0x8b, 0xc0..=0xff, ..] | [0x40..=0x4f, 0x89 | 0x8b, 0xc0..=0xff, ..] if prefixes == 0 => Mov,
        _ => Other,
    }
}

/// Segments, sizes, repetition and what branches make of them.
fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3)
}

/// A function that begins like this, after the landing pad that indirect calls need where the processor checks them. It
/// returns 0, which is CUDA's word for success. Written out, because a compiler may begin a function with anything.
macro_rules! samples {
    ($($name:ident $kind:ident: $($line:literal)*;)*) => {
        $(
            #[unsafe(naked)]
            extern "C" fn $name() {
                naked_asm!("endbr64", $($line,)* "xor eax, eax", "ret");
            }
        )*

        /// A function of gpuwhy's own for each kind, to be probed.
        pub(crate) const SAMPLES: &[(FirstInstruction, extern "C" fn())] = &[$(($kind, $name),)*];
    };
}

samples! {
    push Push: "push rbp" "pop rbp";
    jump Jump: "nop";
    nop5 Nop5: ".byte 0x0f, 0x1f, 0x44, 0, 0";
    long_nop LongNop: ".byte 0x0f, 0x1f, 0x40, 0";
    sub Sub: "sub rsp, 8" "add rsp, 8";
    mov Mov: "mov rax, rdi";
    other Other: "xor eax, eax";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_go_past_endbr64() {
        let cet = [0xf3, 0x0f, 0x1e, 0xfa, 0x55];
        assert_eq!((landing_pad(&cet), landing_pad(&cet[4..]), landing_pad(&[])), (4, 0, 0));
        assert_eq!((first_instruction(&cet), first_instruction(&cet[4..])), (Other, Push));
    }

    /// As assembled by GNU as; what becomes of each is in the kernel's `arch/x86/kernel/uprobes.c`.
    #[test]
    fn instructions_are_told_apart_as_the_kernel_does() {
        for (code, kind) in [
            (&[0x55][..], Push),                              // push %rbp
            (&[0x41, 0x57], Push),                            // push %r15
            (&[0xe8, 1, 0, 0, 0], Push),                      // call
            (&[0x66, 0x55], Other),                           // push %bp
            (&[0x40, 0x55], Other),                           // rex push %rbp
            (&[0x68, 1, 0, 0, 0], Other),                     // push $1
            (&[0x90], Jump),                                  // nop
            (&[0x66, 0x90], Jump),                            // xchg %ax,%ax
            (&[0xeb, 0x10], Jump),                            // jmp, short
            (&[0xe9, 1, 0, 0, 0], Jump),                      // jmp
            (&[0xf2, 0xe9, 1, 0, 0, 0], Jump),                // bnd jmp
            (&[0x66, 0xe9, 1, 0], Other),                     // jmpw
            (&[0x74, 0x10], Jump),                            // je, short
            (&[0x0f, 0x84, 1, 0, 0, 0], Jump),                // je
            (&[0xff, 0x25, 1, 0, 0, 0], Other),               // jmp *1(%rip)
            (&[0x0f, 0x1f, 0x44, 0, 0], Nop5),                // nopl 0(%rax,%rax,1)
            (&[0x0f, 0x1f, 0], LongNop),                      // nopl (%rax)
            (&[0x66, 0x0f, 0x1f, 0x44, 0, 0], LongNop),       // nopw 0(%rax,%rax,1)
            (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0], LongNop), // cs nopw 0(%rax,%rax,1)
            (&[0x48, 0x83, 0xec, 0x08], Sub),                 // sub $8,%rsp
            (&[0x48, 0x81, 0xec, 0, 1, 0, 0], Sub),           // sub $256,%rsp
            (&[0x48, 0x83, 0xc4, 0x08], Other),               // add $8,%rsp
            (&[0x48, 0x89, 0xf8], Mov),                       // mov %rdi,%rax
            (&[0x89, 0xf8], Mov),                             // mov %edi,%eax
            (&[0x49, 0x89, 0xe2], Mov),                       // mov %rsp,%r10
            (&[0x48, 0x8b, 0x07], Other),                     // mov (%rdi),%rax
            (&[0x83, 0x3d, 0, 0, 0, 0, 0], Other),            // cmpl $0,0(%rip)
            (&[0x31, 0xc0], Other),                           // xor %eax,%eax
            (&[0xf3, 0x0f, 0x1e, 0xfa], Other),               // endbr64
            (&[0xcc], Other),                                 // int3
            (&[], Other),
            (&[0x66, 0x66], Other),
            (&[0x0f], Other),
        ] {
            assert_eq!(first_instruction(code), kind, "{code:x?}");
        }
    }
}
