// SPDX-License-Identifier: Apache-2.0
//! The shapes snapshots come in, made by hand.

#![allow(clippy::unwrap_used)]

mod support;

use gpuwhy_torch::snapshot::{Category, Options, analyse};
use support::{Kind, Py, block, entry, fixture, frame, pickle, read, report, segment, snapshot};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;
const LARGE: Kind = Kind { device: 0, small: false, expandable: false, pool: (0, 0) };

#[test]
fn protocols_two_to_five_say_the_same() {
    let blocks =
        vec![block(BASE, 2 * MIB, 2 * MIB - 5, "active_allocated"), block(BASE + 2 * MIB, 18 * MIB, 7, "inactive")];
    let trace = vec![entry("segment_alloc", BASE, 20 * MIB, 5), entry("alloc", BASE, 2 * MIB - 5, 6)];
    let value = snapshot(vec![segment(LARGE, BASE, 20 * MIB, blocks)], vec![trace]);
    let all: Vec<_> = (2..=5).map(|protocol| read(&pickle(&value, protocol)).unwrap()).collect();
    assert!(all.iter().all(|report| *report == all[0]));
    let device = &all[0].devices[0];
    assert_eq!((device.allocated_bytes, device.requested_bytes), (2 * MIB, 2 * MIB - 5), "inactive sizes are stale");
    assert_eq!((device.stuck_bytes, device.largest_fit_bytes), (18 * MIB, 18 * MIB));
    assert!(device.reconciled && device.peak_allocated_exact);
}

#[test]
fn a_bare_list_is_segments_without_history() {
    let blocks = vec![block(BASE, MIB, MIB, "active_allocated"), block(BASE + MIB, MIB, 0, "inactive")];
    let report = report(&Py::List(vec![segment(Kind { small: true, ..LARGE }, BASE, 2 * MIB, blocks)]));
    let device = &report.devices[0];
    assert_eq!((device.reserved_bytes, device.allocated_bytes, device.peak_requested_bytes), (2 * MIB, MIB, MIB));
    assert_eq!(report.live[0].category, Category::PreExisting);
    assert!(report.warnings.iter().any(|w| w.contains("no allocation history")), "{:?}", report.warnings);
}

#[test]
fn torch_2_0_keeps_sizes_and_frames_in_the_history() {
    let was = |real: u64| dict! { "addr": BASE, "real_size": real, "frames": vec![frame("/home/me/old.py", 3, "f")] };
    let blocks = vec![
        dict! { "size": 1024u64, "state": "active_allocated", "history": vec![was(1000), was(77)] },
        dict! { "size": 512u64, "state": "active_allocated", "history": vec![was(500)] },
        dict! { "size": 2 * MIB - 1536, "state": "inactive" },
    ];
    let seg = dict! {
        "device": 0u64, "address": BASE, "total_size": 2 * MIB, "allocated_size": 1536u64, "active_size": 1536u64,
        "stream": 0u64, "segment_type": "small", "blocks": blocks
    };
    let report = report(&snapshot(vec![seg], vec![]));
    assert_eq!(report.devices[0].requested_bytes, 1500, "the newest entry counts");
    assert_eq!((report.live[0].line, report.live[0].count), (Some(3), 2));
    assert!(report.warnings.iter().any(|w| w.contains("2.0 or older")), "{:?}", report.warnings);
}

#[test]
fn several_devices_are_kept_apart() {
    let one = |device| {
        let blocks = vec![block(BASE, 2 * MIB, MIB + device, "active_allocated")];
        segment(Kind { device, ..LARGE }, BASE, 2 * MIB, blocks)
    };
    let trace = |device| vec![entry("segment_alloc", BASE, 2 * MIB, 1), entry("alloc", BASE, MIB + device, 2)];
    let value = snapshot(vec![one(1), one(3)], vec![vec![], trace(1), vec![], trace(3)]);
    let both = report(&value);
    let figures: Vec<_> = both.devices.iter().map(|d| (d.index, d.requested_bytes, d.peak_allocated_exact)).collect();
    assert_eq!(figures, [(1, MIB + 1, true), (3, MIB + 3, true)]);
    let options = Options { device: Some(3), ..Options::default() };
    let only = analyse(pickle(&value, 4).as_slice(), &options, None).unwrap();
    assert_eq!((only.devices.len(), only.live.len(), only.live[0].device), (1, 1, 3));
    let options = Options { device: Some(2), ..Options::default() };
    let none = analyse(pickle(&value, 4).as_slice(), &options, None).unwrap();
    assert!(none.devices.is_empty() && none.warnings[0].contains("nothing about device 2"));
}

#[test]
fn the_large_pool_splits_only_above_a_mebibyte() {
    // 3 MiB in a free 3.5 MiB: not split, the block is all of it. In 4.5 MiB: split.
    for (total, size) in [(3 * MIB + MIB / 2, 3 * MIB + MIB / 2), (4 * MIB + MIB / 2, 3 * MIB)] {
        let trace = vec![entry("segment_alloc", BASE, total, 1), entry("alloc", BASE, 3 * MIB - 1, 2)];
        let mut blocks = vec![block(BASE, size, 3 * MIB - 1, "active_allocated")];
        if size < total {
            blocks.push(block(BASE + size, total - size, 0, "inactive"));
        }
        let report = report(&snapshot(vec![segment(LARGE, BASE, total, blocks)], vec![trace]));
        assert_eq!((report.devices[0].peak_allocated_bytes, report.devices[0].peak_allocated_exact), (size, true));
    }
}

#[test]
fn expandable_segments_split_always_and_release_pages() {
    let kind = Kind { expandable: true, ..LARGE };
    let rest = 40 * MIB - 3 * MIB;
    let blocks =
        vec![block(BASE, 3 * MIB, 3 * MIB - 1, "active_allocated"), block(BASE + 3 * MIB, rest, 0, "inactive")];
    let trace = vec![
        entry("segment_map", BASE, 20 * MIB, 1),
        entry("alloc", BASE, 3 * MIB - 1, 2),
        entry("segment_map", BASE + 20 * MIB, 20 * MIB, 3),
        entry("alloc", BASE + 3 * MIB, 19 * MIB + 1, 4),
        entry("free_requested", BASE + 3 * MIB, 19 * MIB + 1, 5),
        entry("free_completed", BASE + 3 * MIB, 19 * MIB + 1, 6),
    ];
    let report = report(&snapshot(vec![segment(kind, BASE, 40 * MIB, blocks)], vec![trace]));
    let device = &report.devices[0];
    assert_eq!(device.peak_allocated_bytes, 3 * MIB + 19 * MIB + 512, "across two mapped pages");
    assert!(device.peak_allocated_exact && device.expandable_segments);
    assert_eq!((device.releasable_bytes, device.stuck_bytes), (20 * MIB, rest - 20 * MIB), "whole pages only");
}

#[test]
fn late_recordings_know_what_was_there_before() {
    // A was there and stays, B was there and is freed, C is new; B's block was wider than asked for.
    let (a, b, c) = (BASE, BASE + 2 * MIB, BASE + 5 * MIB + MIB / 2);
    let trace = vec![
        entry("alloc", c, 4 * MIB, 1),
        entry("free_requested", b, 3 * MIB, 2),
        entry("free_completed", b, 3 * MIB, 3),
    ];
    let blocks = vec![
        block(a, 2 * MIB, 2 * MIB, "active_allocated"),
        block(b, 3 * MIB + MIB / 2, 3 * MIB, "inactive"),
        block(c, 4 * MIB, 4 * MIB, "active_allocated"),
        block(c + 4 * MIB, 10 * MIB + MIB / 2, 0, "inactive"),
    ];
    let report = report(&snapshot(vec![segment(LARGE, BASE, 20 * MIB, blocks)], vec![trace]));
    let device = &report.devices[0];
    assert_eq!((device.preexisting_bytes, device.peak_requested_bytes), (5 * MIB, 9 * MIB));
    assert!(device.reconciled && !device.peak_allocated_exact);
    // B was wider than asked for, but that the rest was not free cannot be seen once C is known to follow it later.
    let peak = device.peak_allocated_bytes;
    assert!((9 * MIB..=9 * MIB + MIB / 2).contains(&peak), "close: {peak}");
}

#[test]
fn pending_frees_private_pools_and_host_memory_are_told_apart() {
    let pending = vec![block(BASE, 2 * MIB, 2 * MIB, "active_pending_free")];
    let graph = Kind { pool: (0, 1), ..LARGE };
    let private = vec![
        block(BASE + 64 * MIB, 4 * MIB, 4 * MIB, "active_allocated"),
        block(BASE + 68 * MIB, 16 * MIB, 0, "inactive"),
    ];
    let idle = vec![block(BASE + 128 * MIB, 20 * MIB, 9, "inactive")];
    let segments = vec![
        segment(LARGE, BASE, 2 * MIB, pending),
        segment(graph, BASE + 64 * MIB, 20 * MIB, private),
        segment(LARGE, BASE + 128 * MIB, 20 * MIB, idle),
    ];
    let value = dict! {
        "segments": segments, "device_traces": Vec::<Py>::new(),
        "host_segments": vec![dict! { "total_size": MIB }, dict! { "total_size": MIB }]
    };
    let report = report(&value);
    let device = &report.devices[0];
    assert_eq!((device.pending_bytes, device.allocated_bytes), (2 * MIB, 4 * MIB));
    assert_eq!((device.private_pool_bytes, device.private_pool_free_bytes), (20 * MIB, 16 * MIB));
    assert_eq!((device.stuck_bytes, device.releasable_bytes, device.largest_fit_bytes), (0, 20 * MIB, 20 * MIB));
    assert!(report.warnings.iter().any(|w| w.contains("2 segments of pinned host memory")), "{:?}", report.warnings);
}

#[test]
fn addresses_of_nine_bytes_and_numbers_with_sign_are_read() {
    let high = u64::MAX - 4 * MIB + 1;
    let trace = vec![entry("segment_alloc", high, 2 * MIB, 1), entry("alloc", high, 700, 2)];
    let blocks = vec![block(high, 1024, 700, "active_allocated"), block(high + 1024, 2 * MIB - 1024, 0, "inactive")];
    let kind = Kind { small: true, ..LARGE };
    let value = snapshot(vec![segment(kind, high, 2 * MIB, blocks)], vec![trace]);
    let device = &report(&value).devices[0];
    assert_eq!((device.peak_allocated_bytes, device.peak_allocated_exact), (1024, true));
}

#[test]
fn memory_given_back_and_taken_again_is_a_finding() {
    let trace = (0..50u64).flat_map(|i| {
        [entry("segment_alloc", BASE, 20 * MIB, 4 * i), entry("segment_free", BASE, 20 * MIB, 4 * i + 1)]
    });
    let report = report(&snapshot(vec![], vec![trace.collect()]));
    assert_eq!(report.findings.iter().map(|f| f.kind.as_str()).collect::<Vec<_>>(), ["allocator_thrash"]);
    assert_eq!((report.devices[0].segments_returned, report.devices[0].peak_reserved_bytes), (50, 20 * MIB));
}

#[test]
fn an_empty_snapshot_says_so() {
    let report = report(&snapshot(vec![], vec![vec![], vec![]]));
    assert!(report.devices.is_empty() && report.findings.is_empty());
    assert!(report.warnings[0].contains("nothing was allocated"), "{:?}", report.warnings);
}

#[test]
fn a_cut_off_file_is_analysed_as_far_as_it_goes() {
    let whole = fixture("base");
    let cut = &whole[..whole.len() * 3 / 4];
    let report = read(cut).unwrap();
    let device = &report.devices[0];
    assert_eq!(device.reserved_bytes, 1_245_708_288, "segments come first in the file");
    assert!(device.trace_entries > 2000 && !device.reconciled);
    assert!(report.warnings[0].contains(&format!("ends at byte {}", cut.len())), "{:?}", report.warnings);
    assert_eq!(report.warnings[1..], ["the end of the recording is missing: peaks cover only what was read"]);
}

/// Wherever a file is cut, the recording is said to lack its end just when it does.
#[test]
fn a_recordings_missing_end_is_said_once_and_only_where_it_is_missing() {
    const MISSING: &str = "the end of the recording is missing: peaks cover only what was read";
    let on = |device: u64, base| {
        let kind = Kind { small: true, device, ..LARGE };
        let blocks =
            vec![block(base, 1024, 600, "active_allocated"), block(base + 1024, 2 * MIB - 1024, 0, "inactive")];
        let trace = vec![
            entry("segment_alloc", base, 2 * MIB, 1),
            entry("alloc", base, 600, 2),
            entry("alloc", base + 1024, 9, 3),
            entry("free_requested", base + 1024, 9, 4),
            entry("free_completed", base + 1024, 9, 5),
        ];
        (segment(kind, base, 2 * MIB, blocks), trace)
    };
    for devices in [1, 2] {
        let (segments, traces): (Vec<_>, Vec<_>) = (0..devices).map(|d| on(d, BASE + d * 64 * MIB)).unzip();
        let traces: Vec<Py> = traces.into_iter().map(Py::List).collect();
        let value = dict! {
            "segments": segments, "device_traces": traces,
            "allocator_settings": dict! { "PYTORCH_CUDA_ALLOC_CONF": "" }
        };
        let bytes = pickle(&value, 4);
        let at = |key: &[u8]| bytes.windows(key.len()).position(|window| window == key).unwrap();
        // From the key's opcode and length on nothing of the traces is missing.
        let ended = at(b"allocator_settings") - 2;
        let mut told = 0;
        for end in 0..bytes.len() {
            let Ok(report) = read(&bytes[..end]) else { continue };
            let missing = report.warnings.iter().filter(|w| *w == MISSING).count();
            assert_eq!(missing, usize::from(end < ended), "cut at {end} of {ended}: {:?}", report.warnings);
            told += missing;
            for wrong in ["began late", "does not add up", "no allocation history", "replaying the allocations"] {
                assert!(!report.warnings.iter().any(|w| w.contains(wrong)), "cut at {end}: {:?}", report.warnings);
            }
            let last = report.devices.last().unwrap();
            assert!(end >= ended || !last.peak_allocated_exact, "cut at {end}");
        }
        assert!(told > 100, "{told}");
    }
}
