// SPDX-License-Identifier: Apache-2.0
//! Memory and files that are no CPython's, or a broken one's: whatever is read there, reading ends and takes little.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use gpuwhy_stacks::python::{
    Code, Memory, PUBLISHED_BYTES, PyCode, PyProcess, Version, from_debug_offsets, lines, offsets, text,
};

const ROUNDS: u64 = 20_000;
const WORDS: usize = 4096;

/// Numbers that are the same in every run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

/// Memory in which most words lead to other words of it, and others are sizes, small and absurd.
fn memory(numbers: &mut Numbers, words: &mut [u64]) {
    let start = words.as_ptr().addr() as u64;
    for word in words {
        *word = match numbers.below(8) {
            0 => numbers.below(64),
            1 => numbers.next(),
            2 => u64::MAX - numbers.below(16),
            3 => 0,
            _ => start + numbers.below(WORDS as u64 * 8),
        };
    }
}

#[test]
fn memory_that_is_no_interpreters_is_read_without_harm() {
    let mut numbers = Numbers(1);
    let mut words = vec![0u64; WORDS];
    let own = Memory::of(std::process::id()).unwrap();
    let versions: Vec<PyProcess> =
        (8..=14).filter_map(|minor| Some(PyProcess { runtime: 0, at: offsets(Version::three(minor))? })).collect();
    assert!(versions.len() >= 5);
    let mut found = 0;
    for round in 0..ROUNDS / 10 {
        memory(&mut numbers, &mut words);
        let start = words.as_ptr().addr() as u64;
        for process in &versions {
            let process = PyProcess { runtime: start + numbers.below(4096) * 8, ..*process };
            let code = start + numbers.below(WORDS as u64 * 8);
            assert!(own.code(&process, code, round as u32).map_or(true, |code| code.is_none()));
            let table = own.line_table(&process, code).unwrap_or_default();
            assert!(table.len() <= 4 << 20, "{}", table.len());
            let threads = own.thread_ids(&process, 100).unwrap_or_default();
            assert!(threads.len() <= 100);
            found += usize::from(!table.is_empty()) + threads.len();
        }
    }
    assert!(found > 0, "no round came past the first word");
}

#[test]
fn published_offsets_fit_or_are_refused() {
    let mut numbers = Numbers(2);
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let mut bytes = vec![0; PUBLISHED_BYTES];
        bytes[..8].copy_from_slice(b"xdebugpy");
        bytes[8..16].copy_from_slice(&((3 << 24) | (13 + numbers.below(4)) << 16).to_le_bytes());
        for word in bytes[16..].chunks_exact_mut(8) {
            let value = if numbers.below(20) == 0 { numbers.next() } else { numbers.below(16) * 8 };
            word.copy_from_slice(&value.to_le_bytes());
        }
        bytes.truncate(if numbers.below(4) == 0 { numbers.below(1024) as usize } else { PUBLISHED_BYTES });
        if let Some(at) = from_debug_offsets(&bytes) {
            assert!(at.frame_bytes <= 128 && at.code_bytes <= 256, "{at:?}");
            taken += 1;
        }
    }
    eprintln!("{taken} of {ROUNDS} were taken");
}

#[test]
fn broken_code_objects_have_names_and_lines_or_none() {
    let mut numbers = Numbers(3);
    for _ in 0..ROUNDS {
        let version = Version::three(numbers.below(20) as u8);
        let table = numbers.bytes(200);
        let (first, at) = (numbers.next() as i32, numbers.next() as i32);
        let _ = lines::line(version, &table, first, at);
        let _ = lines::line(version, &table, first, numbers.below(400) as i32);
        let width = numbers.below(6) as u8;
        assert!(text::decode(&numbers.bytes(64), width).is_none_or(|text| text.chars().count() <= 64));
        let mut record = numbers.bytes(64);
        record.resize(PyCode::HEAD + numbers.below(64) as usize, numbers.next() as u8);
        let raw = PyCode::from_bytes(&record).unwrap();
        let code = Code::new(version, &raw, None);
        assert!(code.file.chars().count() <= 257 && code.function.chars().count() <= 129, "{code:?}");
    }
}
