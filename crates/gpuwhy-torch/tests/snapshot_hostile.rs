// SPDX-License-Identifier: Apache-2.0
//! Files that want to run code, fill memory, or are just broken.

#![allow(clippy::unwrap_used)]

mod support;

use gpuwhy_torch::snapshot::{Error, Options, analyse};
use support::{Dice, Kind, block, entry, fixture, pickle, read, segment, snapshot};

/// What `os.system("…")` looks like in each of pickle's ways to call something.
#[test]
fn whatever_would_run_code_is_refused_by_name_and_place() {
    let cases: [(&[u8], &str, u64); 14] = [
        (b"\x80\x02cos\nsystem\nU\x02id\x85R.", "GLOBAL", 2),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL", 14),
        (b"\x80\x02]U\x02idR.", "REDUCE", 7),
        (b"\x80\x02}}b.", "BUILD", 4),
        (b"(ios\nsystem\n.", "INST", 1),
        (b"\x80\x02(]o.", "OBJ", 4),
        (b"\x80\x02])\x81.", "NEWOBJ", 4),
        (b"\x80\x04])}\x92.", "NEWOBJ_EX", 5),
        (b"\x80\x02\x82\x01.", "EXT1", 2),
        (b"\x80\x02\x83\x01\x00.", "EXT2", 2),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4", 2),
        (b"Pid\n.", "PERSID", 0),
        (b"\x80\x02]Q.", "BINPERSID", 3),
        (b"\x80\x05\x97.", "NEXT_BUFFER", 2),
    ];
    for (bytes, name, at) in cases {
        match read(bytes) {
            Err(Error::Refused { opcode, offset }) => assert_eq!((opcode, offset), (name, at)),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Sets, byte arrays and protocol 0's texts are harmless: the file is not a snapshot, but nothing to be afraid of.
#[test]
fn plain_data_that_no_snapshot_has_is_not_called_dangerous() {
    let cases: [(&[u8], &str, u64); 9] = [
        (b"(dp0\nVsegments\n", "UNICODE", 5),
        (b"(lI1\na.", "INT", 2),
        (b"(lL1L\na.", "LONG", 2),
        (b"(lF1.5\na.", "FLOAT", 2),
        (b"(lS'a'\na.", "STRING", 2),
        (b"\x80\x04\x8f.", "EMPTY_SET", 2),
        (b"\x80\x04]\x90.", "ADDITEMS", 3),
        (b"\x80\x04(\x91.", "FROZENSET", 3),
        (b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x00.", "BYTEARRAY8", 2),
    ];
    for (bytes, name, at) in cases {
        let error = read(bytes).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unexpected { opcode, offset } if (opcode, offset) == (name, at)), "{text}");
        assert!(text.contains(&format!("never writes the pickle opcode {name} (at byte {at})")), "{text}");
        assert!(!text.contains("run code"), "{text}");
    }
    assert!(read(b"\x80\x02cos\nsystem\n.").unwrap_err().to_string().contains("would run code"));
}

#[test]
fn a_refused_opcode_deep_inside_a_real_file_stops_everything() {
    let mut bytes = fixture("oom");
    let end = bytes.len() - 1;
    bytes.splice(end..end, *b"cposix\nsystem\n");
    match read(&bytes) {
        Err(error @ Error::Refused { opcode: "GLOBAL", .. }) => {
            assert!(error.to_string().contains(&format!("GLOBAL at byte {end}")), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn foreign_and_broken_files_say_what_they_are() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(error(b"").contains("ends at byte 0"));
    assert!(error(b"{\"traceEvents\": []}").contains("0x7b is not a pickle opcode"));
    assert!(error(b"\x80\x04]K\x01a.").contains("not a PyTorch memory snapshot"));
    assert!(error(b"\x80\x04}.").contains("not a PyTorch memory snapshot"));
    assert!(error(b"\x80\x09.").contains("pickle protocol 9"));
    assert!(error(b"\x80\x04h\x05.").contains("memo entry 5 is used before it is stored"));
    assert!(error(b"\x80\x02]r\xff\xff\xff\xff.").contains("memo index 4294967295"));
    assert!(error(b"\x80\x02\x8b\xff\xff\xff\x7f.").contains("a number of 2147483647 bytes"));
    assert!(error(b"\x80\x02\x8a\x0a0123456789.").contains("a number of 10 bytes"));
    assert!(error(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.").contains("a string of"));
    assert!(error(b"\x80\x02e.").contains("no MARK"));
    assert!(error(b"\x80\x02}(K\x01u.").contains("key has no value"));
    assert!(error(b"\x80\x02.").contains("nothing on its stack"));
    assert!(error(b"\x1f\x8b\x08\x00garbage").contains("byte"));
}

/// A small file, cut at every byte.
#[test]
fn a_file_cut_anywhere_gives_an_error_or_a_warning() {
    let base = 0x7f00_0000_0000;
    let trace =
        vec![entry("segment_alloc", base, 2 << 20, 1), entry("alloc", base, 600, 2), entry("alloc", base + 1024, 9, 3)];
    let blocks = vec![block(base, 1024, 600, "active_allocated"), block(base + 1024, 512, 9, "active_allocated")];
    let kind = Kind { small: true, ..Kind::default() };
    for protocol in [2, 4] {
        let bytes =
            pickle(&snapshot(vec![segment(kind, base, 2 << 20, blocks.clone())], vec![trace.clone()]), protocol);
        let mut salvaged = 0;
        for end in 0..bytes.len() {
            match read(&bytes[..end]) {
                Ok(report) => {
                    salvaged += 1;
                    assert!(!report.warnings.is_empty(), "cut at {end} without a word");
                }
                Err(Error::Truncated { offset }) => assert_eq!(offset, end as u64),
                Err(other) => panic!("cut at {end}: {other}"),
            }
        }
        assert!(salvaged > bytes.len() / 3, "{salvaged} of {}", bytes.len());
        assert!(read(&bytes).unwrap().warnings.is_empty());
    }
}

#[test]
fn real_files_cut_and_bent_at_random_never_panic() {
    let mut dice = Dice(42);
    for name in ["base", "vision"] {
        let whole = fixture(name);
        for _ in 0..40 {
            let _ = read(&whole[..dice.below(whole.len())]);
        }
        for round in 0..60 {
            let mut bent = whole.clone();
            for _ in 0..=round % 8 {
                let at = dice.below(bent.len());
                bent[at] = dice.below(256) as u8;
            }
            let _ = read(&bent);
        }
    }
}

#[test]
fn noise_never_panics() {
    let mut dice = Dice(7);
    // Opcodes that build and link things, more often than chance would have them.
    let tools = b"}]()(ueasqrhjK\x94\x8c\x85\x86tld012NX";
    for _ in 0..3000 {
        let len = dice.below(200);
        let bytes: Vec<u8> = (0..len)
            .map(|_| if dice.below(4) == 0 { dice.below(256) as u8 } else { tools[dice.below(tools.len())] })
            .collect();
        let _ = read(&bytes);
    }
}

#[test]
fn memory_is_bounded_whatever_the_file_says() {
    let options = Options { memory_limit_bytes: 8 << 20, ..Options::default() };
    let fillers: [&[u8]; 6] = [b"N", b"]", b"}", b"(", b"}(\x8c\x01ak\x00u0", b"K\x00K\x00\x86"];
    for filler in fillers {
        let flood: Vec<u8> = [0x80, 4].into_iter().chain(filler.iter().copied().cycle().take(32 << 20)).collect();
        match analyse(flood.as_slice(), &options, None) {
            Err(error @ Error::TooLarge { limit, .. }) => {
                assert_eq!(limit, 8 << 20);
                assert!(error.to_string().contains("the limit of 8.39 MB of memory"), "{error}");
            }
            Err(Error::Truncated { .. } | Error::Damaged { .. } | Error::NotASnapshot { .. }) => {}
            other => panic!("{filler:?}: {other:?}"),
        }
    }
}
