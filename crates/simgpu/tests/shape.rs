// SPDX-License-Identifier: Apache-2.0
//! The machine code of the exported functions has the shape that it has in
//! the real libraries, on which tracers rely.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Bench, output_of};

fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte))
}

/// The contents of the first section of a type (64-bit little-endian ELF),
/// and the index of the section it links to.
fn section(elf: &[u8], wanted: usize) -> (&[u8], usize) {
    let table = number(elf, 0x28, 8);
    let count = number(elf, 0x3c, 2);
    let headers = (0..count).map(|index| table + index * 64);
    let header = headers.clone().find(|at| number(elf, at + 4, 4) == wanted);
    let at = header.expect("the section");
    let start = number(elf, at + 24, 8);
    (&elf[start..start + number(elf, at + 32, 8)], number(elf, at + 40, 4))
}

fn file_offset(elf: &[u8], address: usize) -> usize {
    let table = number(elf, 0x20, 8);
    let count = number(elf, 0x38, 2);
    (0..count)
        .map(|index| table + index * 56)
        .filter(|at| number(elf, *at, 4) == 1)
        .find_map(|at| {
            let start = number(elf, at + 16, 8);
            let inside = (start..start + number(elf, at + 32, 8)).contains(&address);
            inside.then(|| address - start + number(elf, at + 8, 8))
        })
        .expect("an address inside a segment")
}

/// Name and first bytes of every exported function.
fn exported(library: &Path) -> Vec<(String, Vec<u8>)> {
    let elf = fs::read(library).expect("read the library");
    let (symbols, strings) = section(&elf, 11);
    let at = number(&elf, 0x28, 8) + strings * 64;
    let names = &elf[number(&elf, at + 24, 8)..];
    let mut found = Vec::new();
    for symbol in symbols.chunks_exact(24) {
        let is_function = symbol[4] & 15 == 2;
        let address = number(symbol, 8, 8);
        if !is_function || address == 0 {
            continue;
        }
        let name = &names[number(symbol, 0, 4)..];
        let end = name.iter().position(|&byte| byte == 0).expect("end of the name");
        let code = file_offset(&elf, address);
        found.push((String::from_utf8(name[..end].to_vec()).expect("text"), elf[code..code + 8].to_vec()));
    }
    found
}

const PUSH_RBP: u8 = 0x55;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[test]
fn exported_functions_begin_with_push() {
    let bench = Bench::new("shape");
    let stack = &bench.installed;
    let mut checked = 0;
    for library in [&stack.cuda, &stack.cudart, &stack.c10, &stack.nccl] {
        for (name, code) in exported(library) {
            assert_eq!(code[0], PUSH_RBP, "{name}: {code:x?}");
            checked += 1;
        }
    }
    for library in [&stack.cet_cuda, &stack.cet_cudart, &stack.cet_c10, &stack.cet_nccl] {
        for (name, code) in exported(library) {
            assert_eq!(code[..4], ENDBR64, "{name}: {code:x?}");
            assert_eq!(code[4], PUSH_RBP, "{name}: {code:x?}");
            checked += 1;
        }
    }
    assert!(checked > 300, "only {checked} functions");
}

#[test]
fn the_runtime_returns_from_the_driver() {
    let bench = Bench::new("calls");
    for library in [&bench.installed.cudart, &bench.installed.cet_cudart] {
        let mut objdump = Command::new("objdump");
        objdump.arg("-d").arg(library);
        let code = output_of(objdump);
        let to_driver = |line: &&str| line.contains("<cu") && line.contains("@plt>");
        let lines: Vec<&str> = code.lines().filter(to_driver).collect();
        assert!(lines.iter().filter(|line| line.contains("call")).count() > 50);
        let jumps: Vec<_> = lines.iter().filter(|line| line.contains("jmp")).collect();
        assert!(jumps.is_empty(), "{jumps:?}");
    }
}

#[test]
fn runtime_symbols_have_the_real_version() {
    let bench = Bench::new("version");
    let mut objdump = Command::new("objdump");
    objdump.arg("-T").arg(&bench.installed.cudart);
    let symbols = output_of(objdump);
    let defined = symbols.lines().filter(|line| line.contains(".text") && line.contains(" cuda"));
    let mut count = 0;
    for line in defined {
        assert!(line.contains(" libcudart.so.13 "), "{line}");
        count += 1;
    }
    assert!(count > 50, "only {count} functions");
}
