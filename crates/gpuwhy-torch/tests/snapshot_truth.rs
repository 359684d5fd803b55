// SPDX-License-Identifier: Apache-2.0
//! Real recordings against PyTorch's own figures, to the byte.

#![allow(clippy::unwrap_used)]

mod support;

use gpuwhy_torch::snapshot::{Category, MemoryReport, Options, analyse};
use support::fixture;

const SETS: [&str; 7] = ["base", "ckpt", "frag", "leak", "oom", "seq1024", "vision"];
/// Recorded under other settings: expandable segments, CUDA graphs, pending frees, rounding, `max_split_size`.
const SETTINGS: [&str; 6] = ["expandable", "expandable_late", "graphs", "pending", "roundup", "max_split"];
/// Those whose recording began after the first allocation.
const LATE: [&str; 2] = ["vision", "expandable_late"];

fn truth(name: &str) -> serde_json::Value {
    let path = format!("{}/tests/data/{name}/truth.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn report(name: &str) -> MemoryReport {
    support::read(&fixture(name)).unwrap()
}

fn kinds(report: &MemoryReport) -> Vec<&str> {
    report.findings.iter().map(|f| f.kind.as_str()).collect()
}

#[test]
fn every_figure_is_pytorchs_own() {
    for name in SETS.into_iter().chain(SETTINGS) {
        let (report, truth) = (report(name), truth(name));
        let [device] = report.devices.as_slice() else { panic!("{name}: {} devices", report.devices.len()) };
        assert_eq!(Some(device.reserved_bytes), truth["reserved"].as_u64(), "{name}: reserved");
        assert_eq!(Some(device.allocated_bytes), truth["allocated"].as_u64(), "{name}: allocated");
        assert_eq!(Some(device.peak_allocated_bytes), truth["max_allocated"].as_u64(), "{name}: peak allocated");
        assert_eq!(Some(device.peak_reserved_bytes), truth["max_reserved"].as_u64(), "{name}: peak reserved");
        assert!(device.reconciled, "{name}: reconciled");
        let stats = &truth["stats"];
        if stats.is_object() {
            let stat = |key: &str| stats[key].as_u64();
            assert_eq!(Some(device.requested_bytes), stat("requested_bytes.all.current"), "{name}: requested");
            assert_eq!(Some(device.peak_requested_bytes), stat("requested_bytes.all.peak"), "{name}: peak requested");
            if !device.expandable_segments {
                let stuck = device.stuck_bytes + device.private_pool_free_bytes;
                assert_eq!(Some(stuck), stat("inactive_split_bytes.all.current"), "{name}: stuck");
            }
            if !LATE.contains(&name) {
                let recorded = (Some(device.recorded_allocated_bytes), Some(device.recorded_freed_bytes));
                let told = (stat("requested_bytes.all.allocated"), stat("requested_bytes.all.freed"));
                assert_eq!(recorded, told, "{name}: allocated and freed");
            }
        }
        let late = LATE.contains(&name);
        assert_eq!(device.peak_allocated_exact, !late, "{name}: exact");
        assert_eq!(report.warnings.iter().any(|w| w.contains("began late")), late, "{name}: {:?}", report.warnings);
    }
}

#[test]
fn every_byte_is_accounted_for() {
    for name in SETS.into_iter().chain(SETTINGS) {
        let report = report(name);
        let device = &report.devices[0];
        let sum = |rows: &[gpuwhy_torch::snapshot::Row]| rows.iter().map(|row| row.bytes).sum::<u64>();
        assert_eq!(sum(&report.live), device.requested_bytes, "{name}: live");
        assert_eq!(sum(&report.peak), device.peak_requested_bytes, "{name}: peak");
        let free = device.stuck_bytes + device.releasable_bytes + device.private_pool_free_bytes;
        assert_eq!(device.allocated_bytes + device.pending_bytes + free, device.reserved_bytes, "{name}: reserved");
        let end = device.preexisting_bytes + device.recorded_allocated_bytes - device.recorded_freed_bytes;
        assert_eq!(end, device.requested_bytes, "{name}: end");
        let sizes: u64 = report.segment_sizes.iter().map(|s| s.size_bytes * s.count).sum();
        assert_eq!(sizes, device.reserved_bytes, "{name}: segments");
    }
}

#[test]
fn lines_are_the_programs_own() {
    for name in SETS {
        let report = report(name);
        for row in report.live.iter().chain(&report.peak).chain(&report.churn) {
            if row.category != Category::PreExisting {
                let file = row.file.as_deref().unwrap_or("none");
                assert!(file.starts_with("/home/user/train/work_"), "{name}: {row:?}");
            }
        }
    }
}

#[test]
fn categories_add_up_to_what_the_model_is() {
    let bytes = |report: &MemoryReport, category| -> u64 {
        report.live.iter().filter(|row| row.category == category).map(|row| row.bytes).sum()
    };
    // AdamW keeps two numbers for each parameter.
    let adam = report("base");
    assert_eq!(bytes(&adam, Category::OptimizerState), 2 * bytes(&adam, Category::Parameters));
    // SGD with momentum keeps one; gradients of a model in one type are as large as its optimizer's state.
    let vision = report("vision");
    assert_eq!(bytes(&vision, Category::OptimizerState), bytes(&vision, Category::Gradients));
    assert_eq!(bytes(&vision, Category::PreExisting), vision.devices[0].preexisting_bytes);
    let workspace = vision.live.iter().find(|row| row.category == Category::Workspace);
    assert!(workspace.is_some_and(|row| row.op.is_some()));
}

#[test]
fn healthy_runs_get_no_finding_and_sick_ones_theirs() {
    for name in ["base", "ckpt", "seq1024", "vision"] {
        assert!(report(name).findings.is_empty(), "{name}: {:?}", kinds(&report(name)));
    }
    let frag = report("frag");
    assert_eq!(kinds(&frag), ["memory_growth", "fragmentation"]);
    assert_eq!(frag.findings[1].root_cause.line.as_deref(), Some("work_train.py:47"));
    assert_eq!(frag.findings[1].lost_bytes, frag.devices[0].stuck_bytes);
    let leak = report("leak");
    assert_eq!(kinds(&leak), ["memory_growth"]);
    assert_eq!(leak.findings[0].root_cause.line.as_deref(), Some("work_train.py:32"));
    assert_eq!(leak.findings[0].lost_bytes, 12 * 8 * 512 * 512 * 4, "twelve steps' hidden states");
    let oom = report("oom");
    assert_eq!(kinds(&oom), ["out_of_memory", "memory_growth"]);
    assert_eq!(oom.findings[0].root_cause.line.as_deref(), Some("work_more.py:30"));
}

#[test]
fn the_failed_allocation_is_explained() {
    let report = report("oom");
    let [oom] = report.ooms.as_slice() else { panic!("{} events", report.ooms.len()) };
    // As in PyTorch's message: "Tried to allocate 64.00 MiB"; "32.94 MiB is reserved by PyTorch but unallocated".
    assert_eq!(oom.asked_bytes, 64 << 20);
    assert_eq!(oom.reserved_bytes - oom.allocated_bytes, oom.stuck_bytes + oom.releasable_bytes);
    assert_eq!((oom.stuck_bytes as f64 / f64::from(1 << 20) * 100.0).round(), 3294.0);
    assert_eq!(oom.largest_holder.as_ref().and_then(|row| row.line), Some(30));
}

#[test]
fn an_emptied_cache_is_a_finding_and_graphs_are_kept_apart() {
    let graphs = report("graphs");
    assert!(kinds(&graphs).contains(&"allocator_thrash"), "{:?}", kinds(&graphs));
    assert!(graphs.devices[0].private_pool_bytes > graphs.devices[0].private_pool_free_bytes);
    assert!(report("pending").devices[0].pending_bytes > 0);
    let expandable = report("expandable");
    assert!(expandable.devices[0].expandable_segments && expandable.devices[0].segments_returned > 0);
}

#[test]
fn a_missing_free_does_not_reconcile() {
    let report = report("missing_free");
    let device = &report.devices[0];
    assert!(!device.reconciled);
    assert!(!device.peak_allocated_exact);
    assert!(report.warnings.iter().any(|w| w.contains("does not add up")), "{:?}", report.warnings);
}

#[test]
fn headroom_is_judged_against_the_capacity_given() {
    let bytes = fixture("base");
    let with = |capacity| {
        let options = Options { capacity_bytes: Some(capacity), ..Options::default() };
        analyse(bytes.as_slice(), &options, None).unwrap()
    };
    let reserved = 1_245_708_288;
    assert_eq!(kinds(&with(reserved + 999_999_999)), ["low_headroom"]);
    assert_eq!(with(reserved + 999_999_999).findings[0].severity.label(), "CRITICAL");
    assert_eq!(with(reserved + 1_500_000_000).findings[0].severity.label(), "MEDIUM");
    assert!(with(reserved + 2_000_000_000).findings.is_empty());
    assert_eq!(with(5_000_000_000).devices[0].headroom_bytes, Some(5_000_000_000 - reserved));
    assert_eq!(with(reserved).devices[0].headroom_bytes, Some(0));
    assert!(with(reserved).warnings.is_empty());
}

#[test]
fn a_capacity_below_what_was_reserved_is_not_believed() {
    let options = Options { capacity_bytes: Some(1_000_000_000), ..Options::default() };
    let report = analyse(fixture("base").as_slice(), &options, None).unwrap();
    assert!(report.findings.is_empty(), "{:?}", kinds(&report));
    assert_eq!(report.devices[0].headroom_bytes, None);
    let said = "cuda:0: the GPU's memory was given as 1,000,000,000 bytes, but the peak reserved 1,245,708,288: give \
                the real size";
    assert_eq!(report.warnings, [said]);
}

#[test]
fn gzip_is_unpacked_and_progress_told() {
    let path = format!("{}/tests/data/leak/snapshot.pickle.gz", env!("CARGO_MANIFEST_DIR"));
    let mut told = Vec::new();
    let mut progress = |bytes| told.push(bytes);
    let file = std::fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let zipped = analyse(file, &Options::default(), Some(&mut progress)).unwrap();
    assert_eq!(zipped, report("leak"));
    assert!(told.is_sorted() && told.len() > 3, "{told:?}");
    let last = *told.last().unwrap();
    assert!(last > size * 3 / 4 && last <= size, "compressed bytes, of {size}: {told:?}");
}

/// The JSON as a file, so that a change of it shows; `GPUWHY_BLESS=1` writes it anew.
#[test]
fn json_is_as_written_down() {
    let path = format!("{}/tests/data/frag/memory.json", env!("CARGO_MANIFEST_DIR"));
    let mut json = serde_json::to_string_pretty(&report("frag")).unwrap();
    json.push('\n');
    if std::env::var_os("GPUWHY_BLESS").is_some() {
        std::fs::write(&path, &json).unwrap();
    }
    assert!(json == std::fs::read_to_string(&path).unwrap(), "{path} differs; GPUWHY_BLESS=1 rewrites it");
}
