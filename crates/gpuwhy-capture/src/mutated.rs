// SPDX-License-Identifier: Apache-2.0
//! Whatever bytes come from processes, files, the ring and readers: they are read in bounded time and memory, or refused.
//!
//! Each target is a function of any bytes, as those in `fuzz/` are; the inputs are good examples that numbers which are the
//! same in every run have spoiled.

use crate::batch::Batch;
use crate::libraries::FileId;
use crate::lookups::{Answer, Mapped, Question};
use crate::{elf, procmaps};
use gpuwhy_model::Library;
use std::io::Write;
use std::path::Path;

/// Inputs made of each example.
const ROUNDS: u64 = 3_000;

/// A target, and examples that it takes.
type Target = (fn(&[u8]), fn() -> Vec<Vec<u8>>);

const ALL: [Target; 4] = [(elf_file, elf_files), (maps, maps_texts), (ring_record, ring_records), (answer, answers)];

fn elf_file(data: &[u8]) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(data).unwrap();
    let sites = elf::find_functions(&file, Path::new("spoiled"), &|name| name.len() > 3).unwrap_or_default();
    assert!(sites.len() <= data.len() / 24, "more functions than symbols");
    elf::has_runtime_built_in(&file);
    for folder in elf::search_path(&file, Path::new("/bin/sh")) {
        assert!(folder.is_absolute() && folder.as_os_str().len() < 1 << 20);
    }
}

/// A program of a few functions, made here: real ones are too large to be spoiled where it matters.
fn elf_files() -> Vec<Vec<u8>> {
    vec![elf::tests::endless_names(4, 64), elf::tests::endless_names(40, 400)]
}

fn maps(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = text.lines().count();
    assert!(procmaps::traced_libraries(&text).count() + procmaps::other_files(&text).count() <= lines);
    assert!(procmaps::code(&text).all(|(part, _)| part.start <= part.end || part.is_empty()));
    procmaps::library_at(&text, 0x7f00_0000_1000);
}

fn maps_texts() -> Vec<Vec<u8>> {
    let text = "555555554000-555555556000 r-xp 00000000 08:01 42      /usr/bin/python3.12\n\
                7f0000000000-7f0000009000 r-xp 00001000 08:01 77      /opt/my env/lib/libcudart.so.13 (deleted)\n\
                7fff00000000-7fff00021000 rw-p 00000000 00:00 0       [stack]\n";
    vec![text.into()]
}

fn ring_record(data: &[u8]) {
    let mut batch = Batch::default();
    batch.take_record(data);
    batch.take_record(&data[..data.len() / 2]);
    let taken = batch.len() + batch.python.len() + batch.raw_names.len() + batch.unsettled.len();
    // A transfer and a time off the CPU are two each.
    assert!(taken as u64 + batch.unknown <= 4 && taken as u64 + batch.unknown >= 1);
}

fn ring_records() -> Vec<Vec<u8>> {
    let python = [0x6b63_6174_735f_7970u64, 0x6564_6f63_5f79_7070];
    let words = |first: u64, size: usize| [&first.to_ne_bytes()[..], &vec![3; size - 8]].concat();
    let sizes = [16, 24, 32, 48, 56, 64, 72, 80, 88, 96, 104, 112, 128, 136, 160, 192, 256, 440, 512, 4096];
    let plain = sizes.iter().map(|size| words(1_000, *size));
    plain.chain(python.iter().flat_map(|first| [words(*first, 80), words(*first, 600)])).collect()
}

/// A reader that was taken over may say anything.
fn answer(data: &[u8]) {
    let Ok(answer) = postcard::from_bytes::<Answer>(data) else { return };
    assert!(postcard::to_stdvec(&answer).unwrap().len() <= 4 * data.len() + 64);
    let _ = postcard::from_bytes::<Question>(data);
}

fn answers() -> Vec<Vec<u8>> {
    let program = Some(("/usr/bin/python3".to_owned(), FileId { device: 1, inode: 2 }));
    let mapped = Mapped { code: vec![(1..2, None), (3..9, Some(Library::Driver))], program };
    let all = [Answer::Libraries(Ok(mapped)), Answer::LineTable(Some(vec![1; 40])), Answer::Caller(Ok(Some(None)))];
    all.iter().map(|answer| postcard::to_stdvec(answer).unwrap()).collect()
}

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

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Spoils an example in a few places.
    fn spoil(&mut self, data: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len());
            match self.below(6) {
                0 => data.truncate(at),
                1 => data.extend_from_within(at..),
                2 => data.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0xff),
                3 => data.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0),
                4 => data.insert(at, self.next() as u8),
                _ => data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            }
            data.truncate(1 << 16);
        }
    }
}

#[test]
fn spoiled_input_is_read_or_refused() {
    let mut numbers = Numbers(1);
    for (target, examples) in ALL {
        for example in examples() {
            target(&example);
            for _ in 0..ROUNDS {
                let mut data = example.clone();
                numbers.spoil(&mut data);
                target(&data);
            }
        }
    }
}
