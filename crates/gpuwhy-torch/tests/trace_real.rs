// SPDX-License-Identifier: Apache-2.0
//! Real traces: figures computed from the files by other means (a Python script over `json.load` with exact decimals).
#![allow(clippy::unwrap_used)]

use gpuwhy_torch::trace::{Options, TraceReport, analyse};
use std::fs::File;
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data_trace").join(name)
}

fn report_with(name: &str, options: &Options) -> TraceReport {
    let file = File::open(data(&format!("{name}.json.gz"))).unwrap();
    analyse(file, options, |_| ()).unwrap()
}

fn report(name: &str) -> TraceReport {
    report_with(name, &Options::default())
}

/// Span, busy, events on the GPU, steps and the method that finds them.
const KNOWN: [(&str, u64, u64, u64, u64, &str); 5] = [
    ("base", 2_233_799_836, 13_440_951, 1394, 4, "optimizer_step"),
    ("ckpt", 719_704_593, 15_331_200, 1698, 4, "optimizer_step"),
    ("seq1024", 533_664_607, 22_530_668, 1458, 4, "optimizer_step"),
    ("vision", 159_165_829, 23_374_698, 2382, 6, "profiler_step"),
    ("graphs", 60_066_705, 7_825_873, 1350, 50, "periodicity"),
];

#[test]
fn span_busy_and_steps_are_exact() {
    for (name, span, busy, events, steps, method) in KNOWN {
        let report = report(name);
        let [device] = report.devices.as_slice() else { panic!("{name}: one device") };
        assert_eq!((device.account.span_ns, device.account.busy_ns), (span, busy), "{name}");
        assert_eq!(device.name, "NVIDIA H200");
        assert_eq!(report.kernels.iter().map(|k| k.count).sum::<u64>(), events, "{name}");
        if method != "periodicity" {
            assert_eq!((report.steps.count, report.steps.method.as_str()), (steps, method), "{name}");
        }
    }
}

#[test]
fn parts_add_up_to_the_nanosecond() {
    for name in ["base", "ckpt", "seq1024", "vision", "stack", "graphs"] {
        for include_warmup in [false, true] {
            let report = report_with(name, &Options { include_warmup, ..Options::default() });
            let device = &report.devices[0];
            let a = &device.account;
            assert_eq!(a.span_ns, a.compute_ns + a.exposed_communication_ns + a.exposed_copy_ns + a.idle_ns, "{name}");
            assert_eq!(a.span_ns, a.busy_ns + a.idle_ns, "{name}");
            assert!(device.steady.is_none_or(|steady| steady.adds_up()), "{name}");
            let idle: u64 = report.idle_causes.iter().map(|cause| cause.total_ns).sum();
            assert_eq!(idle, a.idle_ns, "{name}: idle causes are the idle time");
            let steady: u64 = report.idle_causes.iter().map(|cause| cause.steady_ns).sum();
            assert_eq!(steady, device.steady.map_or(a.idle_ns, |s| s.idle_ns), "{name}: also after warm-up");
            for list in [&report.categories, &report.ops] {
                let sum: u64 = list.iter().map(|total| total.total_ns).sum();
                assert!(sum <= device.event_ns, "{name}");
            }
            assert_eq!(report.categories.iter().map(|c| c.total_ns).sum::<u64>(), device.event_ns, "{name}");
            assert_eq!(report.kernels.iter().map(|k| k.total_ns).sum::<u64>(), device.event_ns, "{name}");
        }
    }
}

#[test]
fn nearly_everything_is_classified() {
    for name in ["base", "ckpt", "seq1024", "vision", "stack", "graphs"] {
        let report = report(name);
        let all: u64 = report.categories.iter().map(|c| c.total_ns).sum();
        let none: u64 = report.categories.iter().filter(|c| c.name == "unclassified").map(|c| c.total_ns).sum();
        assert!(none * 20 <= all, "{name}: {none} of {all} ns unclassified");
    }
}

#[test]
fn the_first_step_is_warm_up_where_it_is() {
    let base = report("base");
    assert!(base.steps.items[0].warmup.is_some(), "2.2 s before steps of 25 ms");
    assert!(base.steps.items[1..].iter().all(|step| step.warmup.is_none()));
    assert!(base.devices[0].steady.unwrap().span_ns < 100_000_000);
    let vision = report("vision");
    assert!(vision.steps.items.iter().all(|step| step.warmup.is_none()), "the schedule had warmed up before");
    assert_eq!(vision.devices[0].steady, None);
}

#[test]
fn only_checkpointing_recomputes() {
    assert_eq!(report("base").recompute.count, 0);
    assert_eq!(report("seq1024").recompute.count, 0);
    // 4 blocks, 4 steps: each block's forward runs again.
    let ckpt = report("ckpt");
    assert!(ckpt.recompute.count > 16 * 15, "{:?}", ckpt.recompute);
    let finding = ckpt.findings.iter().find(|finding| finding.kind == "recompute").unwrap();
    assert!(ckpt.recompute.steady_ns < ckpt.recompute.total_ns, "the first step is warm-up");
    assert_eq!(finding.lost_ns, ckpt.recompute.steady_ns);
    assert_eq!(finding.share, finding.lost_ns as f64 / ckpt.devices[0].steady.unwrap().span_ns as f64);
}

#[test]
fn copies_have_bytes_and_rates() {
    let vision = report("vision");
    let to_device = vision.copies.iter().find(|copy| copy.direction == "HtoD").unwrap();
    // 6 batches of 64 × 3 × 96 × 96 floats and 64 longs.
    assert_eq!((to_device.bytes, to_device.count, to_device.pageable_count), (6 * (7_077_888 + 512), 12, 0));
    assert_eq!(to_device.bytes_per_s, Some(53_796_091_048));
    assert!(vision.syncs.iter().any(|sync| sync.op == "aten::_local_scalar_dense" && sync.count == 6));
}

#[test]
fn stacks_give_lines_and_modules() {
    let report = report("stack");
    assert!(report.with_stack);
    assert_eq!(report.steps.count, 3);
    let forward = report.lines.iter().find(|line| line.name.ends_with(":15 forward")).unwrap();
    assert!(forward.count > 100, "the backward counts for its forward's line: {forward:?}");
    assert!(report.modules.iter().any(|module| module.name == "Block_1"));
    assert!(report.modules.iter().any(|module| module.name.starts_with("LayerNorm_")));
    assert!(report.idle_causes.iter().any(|cause| cause.line.is_some()));
    let attributed: u64 = report.lines.iter().map(|line| line.total_ns).sum();
    assert!(attributed * 10 >= report.devices[0].event_ns * 9, "nearly all of it has a line");
}

#[test]
fn graphs_are_counted_and_honest() {
    let report = report("graphs");
    let graph = &report.graphs[0];
    assert_eq!(graph.launches, 50);
    assert_eq!(graph.attributed_ns, 0);
    assert!(report.warnings.iter().any(|w| w.contains("CUDA graphs")), "{:?}", report.warnings);
    let device = &report.devices[0];
    assert!(device.event_ns > device.account.busy_ns, "two streams overlap");
    assert_eq!(device.streams, 2);
}

#[test]
fn a_quick_look_keeps_the_exact_figures() {
    for name in ["base", "vision"] {
        let full = report(name);
        let quick = report_with(name, &Options { quick: true, ..Options::default() });
        assert_eq!(full.devices[0].account, quick.devices[0].account);
        assert_eq!(full.steps.count, quick.steps.count);
        assert_eq!(full.copies, quick.copies);
        assert!(quick.warnings.iter().any(|w| w.starts_with("--quick")));
    }
}

#[test]
fn any_number_of_workers_reads_the_same() {
    let json = |workers| {
        let options = Options { workers, ..Options::default() };
        serde_json::to_string(&report_with("seq1024", &options)).unwrap()
    };
    assert_eq!(json(1), json(3));
}

#[test]
fn launch_bound_is_said_and_measured() {
    let report = report("vision");
    let finding = &report.findings[0];
    assert!(matches!(finding.kind.as_str(), "launch_bound" | "cpu_bound"), "{}", finding.kind);
    assert!(finding.lost_ns <= report.devices[0].account.idle_ns);
    assert_eq!(finding.share, finding.lost_ns as f64 / report.devices[0].account.span_ns as f64);
    assert!(!report.findings.iter().any(|f| f.kind == "gpu_bound" || f.kind == "exposed_communication"));
}

#[test]
fn the_json_stays_as_documented() {
    let json = serde_json::to_string_pretty(&report("vision")).unwrap() + "\n";
    let golden = data("vision.report.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &json).unwrap();
    }
    assert_eq!(json, std::fs::read_to_string(golden).unwrap());
}
