// SPDX-License-Identifier: Apache-2.0
//! Traces written by hand, one for each thing that real files do.
#![allow(clippy::unwrap_used)]

use gpuwhy_torch::trace::{Error, Options, Rules, TraceReport, analyse};
use std::sync::LazyLock;

/// Read once: some tests analyse thousands of files.
static OPTIONS: LazyLock<Options> =
    LazyLock::new(|| Options { rules: Rules::built_in().ok(), workers: 1, ..Options::default() });

fn try_report(json: &[u8]) -> Result<TraceReport, Error> {
    analyse(json, &OPTIONS, |_| ())
}

fn report(json: &str) -> TraceReport {
    try_report(json.as_bytes()).unwrap()
}

fn file(events: &[String]) -> String {
    format!("{{\"schemaVersion\": 1, \"traceEvents\": [{}]}}", events.join(",\n"))
}

fn kernel(name: &str, ts: &str, dur: &str, stream: u32, correlation: u32) -> String {
    format!(
        r#"{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream}, "ts": {ts}, "dur": {dur},
        "args": {{"device": 0, "stream": {stream}, "correlation": {correlation}, "External id": {correlation}}}}}"#
    )
}

fn cpu(cat: &str, name: &str, ts: u64, dur: u64, args: &str) -> String {
    format!(
        r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}, "args": {{{args}}}}}"#
    )
}

fn launch(ts: u64, dur: u64, correlation: u32) -> String {
    cpu("cuda_runtime", "cudaLaunchKernel", ts, dur, &format!("\"correlation\": {correlation}"))
}

#[test]
fn nineteen_digits_survive() {
    let report = report(&file(&[
        kernel("a", "1712195495519689.047", "0.001", 7, 1),
        kernel("b", "1712195495519689.050", "1.500", 7, 2),
    ]));
    let account = report.devices[0].account;
    assert_eq!((account.span_ns, account.busy_ns, account.idle_ns), (1503, 1501, 2));
}

#[test]
fn keys_come_after_the_events_too() {
    let json = r#"{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","pid":3,"tid":7,"ts":5,"dur":2,"args":{"device":3}}],
        "deviceProperties": [{"id": 2, "name": "no"}, {"id": 3, "name": "A100"}], "baseTimeNanoseconds": 1000,
        "distributedInfo": {"rank": 3, "world_size": 8}}"#;
    let report = report(json);
    assert_eq!((report.devices[0].index, report.devices[0].name.as_str()), (3, "A100"));
    assert_eq!((report.rank, report.world_size, report.start_unix_ns), (Some(3), Some(8), Some(6000)));
}

#[test]
fn the_2021_schema_and_string_ids() {
    let json = r#"{"traceEvents": [
      {"ph":"X","cat":"Operator","name":"ProfilerStep#1","pid":9,"tid":"9","ts":0,"dur":50,"args":{"External id":1}},
      {"ph":"X","cat":"Operator","name":"ProfilerStep#2","pid":9,"tid":"9","ts":60,"dur":50,"args":{"External id":2}},
      {"ph":"X","cat":"Operator","name":"aten::conv2d","pid":9,"tid":"9","ts":1,"dur":20,"args":{"External id":3}},
      {"ph":"X","cat":"Runtime","name":"cudaLaunchKernel","pid":9,"tid":"9","ts":5,"dur":3,"args":{"correlation":77,"external id":3}},
      {"ph":"X","cat":"Kernel","name":"volta_sgemm","pid":0,"tid":"stream 7","ts":10,"dur":5,"args":{"correlation":77,"external id":3}},
      {"ph":"X","cat":"Memcpy","name":"Memcpy HtoD (Pageable -> Device)","pid":0,"tid":"stream 7","ts":20,"dur":4,"args":{"device":0,"stream":7,"bytes":4000}},
      {"ph":"X","cat":"Memset","name":"Memset (Device)","pid":0,"tid":"stream 7","ts":30,"dur":1,"args":{"device":0,"bytes":8}}
    ]}"#;
    let report = report(json);
    assert_eq!((report.steps.count, report.steps.method.as_str()), (2, "profiler_step"));
    assert_eq!(report.devices[0].account.busy_ns, 10_000);
    assert_eq!(report.ops[0].name, "aten::conv2d");
    assert_eq!((report.copies[0].pageable_bytes, report.copies[0].bytes_per_s), (4000, Some(1_000_000_000)));
}

#[test]
fn a_bare_list_is_a_trace() {
    let report = report(
        r#"[{"name": "conv", "ph": "X", "ts": 1.5, "dur": 2.0, "tid": 1, "pid": "CPU functions", "args": {}},
            {"name": "k", "ph": "X", "ts": 2.5, "dur": 2.0, "tid": 0, "pid": "CUDA functions", "args": {}}]"#,
    );
    assert_eq!((report.devices[0].index, report.devices[0].account.busy_ns), (0, 2000));
}

#[test]
fn unescaped_quotes_cost_nothing_else() {
    let report = report(&file(&[
        kernel("before", "0", "10", 7, 1),
        kernel(r#"broken "quoted" name"#, "20", "10", 7, 2),
        kernel(r#"f("a","b")"#, "60", "10", 7, 4),
        kernel("after", "40", "10", 7, 3),
    ]));
    assert_eq!(report.devices[0].account.busy_ns, 40_000);
    assert!(report.kernels.iter().any(|k| k.name == r#"f("a","b")"#));
    assert!(report.kernels.iter().any(|k| k.name == r#"broken "quoted" name"#));
    assert!(report.warnings.iter().any(|w| w.contains("unescaped quotes")), "{:?}", report.warnings);
}

#[test]
fn what_cannot_be_read_is_counted_and_skipped() {
    let json = file(&[
        kernel("before", "0", "10", 7, 1),
        r#"{"ph": "X", "cat": "kernel", "name": "x", "ts" 5 "dur": }"#.into(),
        kernel("after", "40", "10", 7, 3),
    ]);
    let report = report(&json);
    assert_eq!(report.devices[0].account.busy_ns, 20_000);
    let offset = json.find(r#"{"ph": "X", "cat": "kernel", "name": "x""#).unwrap();
    assert!(report.warnings.iter().any(|w| w.contains(&format!("at byte {offset}"))), "{:?}", report.warnings);
}

#[test]
fn words_that_are_no_json_and_bytes_that_are_no_utf8() {
    let mut json = file(&[
        kernel("odd", "0", "10", 7, 1)
            .replace("\"device\": 0", "\"occupancy\": inf, \"x\": NaN, \"y\": N/A, \"device\": 0"),
        kernel("bytes", "20", "10", 7, 2),
        kernel("no time", "nan", "10", 7, 3),
    ])
    .into_bytes();
    let at = json.windows(5).position(|w| w == b"bytes").unwrap();
    json[at] = 0xff;
    let report = try_report(&json).unwrap();
    assert_eq!(report.devices[0].account.busy_ns, 20_000);
    assert!(report.kernels.iter().any(|k| k.name == "\u{fffd}ytes"));
    assert!(report.warnings.iter().any(|w| w.contains("1 events without a usable time")), "{:?}", report.warnings);
}

#[test]
fn any_cut_gives_a_report_or_an_error() {
    let json = file(&[kernel("a\\\"b", "0", "10", 7, 1), launch(1, 2, 1), kernel("c", "20.5", "1e1", 8, 2)]);
    let whole = report(&json);
    assert!(whole.warnings.iter().all(|w| !w.contains("ends before")), "{:?}", whole.warnings);
    for cut in 0..json.len() {
        match try_report(&json.as_bytes()[..cut]) {
            Ok(report) => {
                assert!(report.devices.iter().all(|device| device.account.adds_up()), "cut at {cut}");
                let said = report.warnings.iter().any(|w| w.contains("ends before"));
                assert!(said || cut >= json.len() - 1, "cut at {cut}: {:?}", report.warnings);
            }
            Err(Error::Empty | Error::CutBeforeEvents | Error::NotJson { .. } | Error::ForeignList) => {}
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
}

#[test]
fn any_byte_may_be_wrong() {
    let json =
        file(&[kernel("a", "0", "10", 7, 1), launch(1, 2, 1), cpu("cpu_op", "aten::mm", 0, 9, "\"External id\": 1")]);
    for at in 0..json.len() {
        for byte in [b'"', b'{', b'}', b'\\', 0xff, b','] {
            let mut broken = json.clone().into_bytes();
            broken[at] = byte;
            if let Ok(report) = try_report(&broken) {
                assert!(report.devices.iter().all(|device| device.account.adds_up()), "{byte} at {at}");
            }
        }
    }
}

#[test]
fn overlapping_streams_and_exposed_communication() {
    let report = report(&file(&[
        kernel("gemm", "0", "100", 7, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "50", "100", 20, 2),
        kernel("elementwise", "160", "40", 7, 3),
    ]));
    let a = report.devices[0].account;
    assert_eq!((a.span_ns, a.busy_ns, a.idle_ns), (200_000, 190_000, 10_000));
    assert_eq!((a.compute_ns, a.communication_ns, a.exposed_communication_ns), (140_000, 100_000, 50_000));
    assert_eq!(report.collectives[0].name, "allreduce");
    let finding = report.findings.iter().find(|f| f.kind == "exposed_communication").unwrap();
    assert_eq!(finding.lost_ns, 50_000);
}

#[test]
fn collectives_say_what_they_moved() {
    let comm = r#""External id": 5, "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
        "dtype": "BFloat16", "Group size": 8"#;
    let report = report(&file(&[
        cpu("cpu_op", "record_param_comms", 0, 5, comm),
        kernel("ncclDevKernel_AllReduce", "10", "20", 20, 99).replace("\"External id\": 99", "\"External id\": 5"),
    ]));
    let all = &report.collectives[0];
    assert_eq!((all.bytes, all.group_size, all.dtype.as_str(), all.count), (2000, 8, "BFloat16", 1));
}

#[test]
fn rocm_names() {
    let report = report(&file(&[
        cpu("cuda_runtime", "hipLaunchKernel", 0, 5, "\"correlation\": 1"),
        kernel("Cijk_Ailk_Bljk_SB_MT16x16x8", "4", "20", 0, 1),
        cpu("cuda_runtime", "hipDeviceSynchronize", 10, 14, "\"correlation\": 2"),
        cpu("cuda_runtime", "hipModuleLaunchKernel", 30, 5, "\"correlation\": 3"),
        kernel("void at::native::elementwise_kernel", "36", "4", 0, 3),
    ]));
    assert_eq!(report.categories[0].name, "GEMM");
    assert_eq!((report.syncs[0].name.as_str(), report.syncs[0].idle_after_ns), ("hipDeviceSynchronize", 12_000));
}

#[test]
fn idle_time_has_causes() {
    let report = report(&file(&[
        launch(0, 5, 1),
        kernel("a", "6", "10", 7, 1),                                      // idle from 16
        cpu("user_annotation", "enumerate(DataLoader)#_Next", 10, 30, ""), // 16 to 40
        cpu("cpu_op", "aten::mm", 40, 30, "\"External id\": 9"),           // 40 to 70, of which
        cpu("cuda_runtime", "cudaMalloc", 45, 10, "\"correlation\": 8"),   // the allocator 10
        launch(60, 8, 2),                                                  // the call 8, then 4 to the start
        kernel("b", "72", "10", 7, 2),
    ]));
    let ns = |cause: &str, name: &str| {
        let fits = |c: &&gpuwhy_torch::trace::IdleCause| c.cause == cause && (name.is_empty() || c.name == name);
        report.idle_causes.iter().filter(fits).map(|c| c.total_ns).sum::<u64>()
    };
    assert_eq!(ns("dataloader", ""), 24_000);
    assert_eq!(ns("allocator", "cudaMalloc"), 10_000);
    assert_eq!(ns("launch_latency", "cudaLaunchKernel"), 12_000);
    assert_eq!(ns("cpu_op", "aten::mm"), 10_000);
    assert_eq!(report.devices[0].account.idle_ns, 56_000);
    assert_eq!(report.findings[0].kind, "input_bound");
}

#[test]
fn external_ids_of_unlinked_kernels_are_no_links() {
    // External id = correlation = 7, and an op that happens to have the id 7.
    let report = report(&file(&[
        cpu("cpu_op", "aten::innocent", 0, 5, "\"External id\": 7"),
        cpu("cpu_op", "aten::guilty", 10, 10, "\"External id\": 8"),
        launch(12, 3, 7),
        kernel("k", "16", "5", 7, 7),
    ]));
    assert_eq!(report.ops.iter().map(|op| op.name.as_str()).collect::<Vec<_>>(), ["aten::guilty"]);
}

#[test]
fn steps_by_marks_of_every_kind() {
    let marks = |name: &str, cat: &str| {
        let mut events: Vec<String> = (0..4).map(|i| cpu(cat, name, i * 100, 90, "")).collect();
        events.push(kernel("k", "400", "1", 7, 1));
        report(&file(&events)).steps
    };
    let steps = marks("Optimizer.step#AdamW.step", "user_annotation");
    assert_eq!((steps.count, steps.method.as_str()), (4, "optimizer_step"));
    let steps = marks("train_step", "user_annotation");
    assert_eq!((steps.count, steps.method.as_str()), (4, "annotation"));
    let steps = marks("trainer.py(12): training_step", "python_function");
    assert_eq!((steps.count, steps.method.as_str()), (4, "python_function"));
    let steps = marks("enumerate(DataLoader)#_It.__next__", "user_annotation");
    assert_eq!((steps.count, steps.method.as_str()), (4, "dataloader"));
    assert_eq!(marks("aten::mm", "cpu_op").count, 0);
}

#[test]
fn steps_by_repetition_are_a_guess() {
    let mut events = Vec::new();
    for step in 0..5 {
        for (i, name) in ["first", "layer", "layer", "layer", "last"].iter().enumerate() {
            events.push(kernel(name, &format!("{}", step * 100 + i * 10), "5", 7, 1));
        }
    }
    let steps = report(&file(&events)).steps;
    assert_eq!((steps.count, steps.method.as_str()), (5, "periodicity"));
    assert_eq!(steps.confidence, Some(gpuwhy_model::Confidence::Low));
}

#[test]
fn a_cut_off_last_step_is_marked() {
    let mut events = Vec::new();
    for (i, done) in [true, true, false].into_iter().enumerate() {
        let at = i as u64 * 100;
        events.push(cpu("user_annotation", &format!("ProfilerStep#{i}"), at, 90, ""));
        if done {
            events.push(cpu("user_annotation", "Optimizer.step#SGD.step", at + 80, 5, ""));
        }
    }
    let steps = report(&file(&events)).steps;
    assert_eq!(steps.items.iter().map(|step| step.complete).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn accumulating_gradients_is_not_being_cut_off() {
    let steps = |last: u64| {
        let mut events = Vec::new();
        for i in 0..5 {
            let (at, dur) = (i * 100, if i == 4 { last } else { 90 });
            events.push(cpu("user_annotation", &format!("ProfilerStep#{i}"), at, dur, ""));
            if i % 2 == 1 {
                events.push(cpu("user_annotation", "Optimizer.step#SGD.step", at + 80, 5, ""));
            }
        }
        report(&file(&events)).steps.items.iter().map(|step| step.complete).collect::<Vec<_>>()
    };
    assert_eq!(steps(85), [true; 5]);
    assert_eq!(steps(30), [true, true, true, true, false]);
}

/// Kernels of 10 µs that the CPU launches one by one, `apart` µs from each other.
fn launched(apart: &[u64]) -> Vec<String> {
    let mut at = 0;
    let mut events = Vec::new();
    for (i, apart) in (1..).zip(apart) {
        at += apart;
        events.push(cpu("cpu_op", "aten::mm", at - apart + 10, apart - 10, ""));
        events.push(launch(at - 5, 4, i));
        events.push(kernel("k", &at.to_string(), "10", 7, i));
    }
    events
}

fn kinds(report: &TraceReport) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.kind.as_str()).collect()
}

#[test]
fn short_gaps_mean_slow_launches_and_long_ones_other_work() {
    assert_eq!(kinds(&report(&file(&launched(&[50; 20])))), ["launch_bound"]);
    assert_eq!(kinds(&report(&file(&launched(&[500; 20])))), ["cpu_bound"]);
}

#[test]
fn warm_up_does_not_decide_what_kind_of_idle_it_is() {
    // One step of 100 ms with one long gap in it, then short steps with short gaps.
    let mut events = launched(&[&[50, 99_000][..], &[50; 80]].concat());
    let mut at = 0;
    for (i, dur) in [99_500, 900, 900, 900].into_iter().enumerate() {
        events.push(cpu("user_annotation", &format!("ProfilerStep#{i}"), at, dur, ""));
        at += dur + 1;
    }
    let report = report(&file(&events));
    assert!(report.devices[0].steady.is_some());
    assert_eq!(kinds(&report), ["launch_bound"]);
    assert!(report.findings[0].effect[0].contains("after warm-up"), "{:?}", report.findings[0].effect);
}

#[test]
fn the_largest_part_is_not_most_of_it() {
    let mut events = Vec::new();
    for i in 0..4 {
        let at = u64::from(i) * 1000;
        events.push(cpu("cpu_op", &format!("aten::op{i}"), at + 10, 980, ""));
        events.push(launch(at + 991, 4, i + 1));
        events.push(kernel("k", &format!("{}", at + 1000), "10", 7, i + 1));
    }
    let summary = report(&file(&events)).findings[0].root_cause.detail.clone();
    assert!(summary.starts_with("largest cause: the CPU runs aten::op") && summary.ends_with(" (33 %)"), "{summary}");
    let summary = report(&file(&launched(&[500; 20]))).findings[0].root_cause.detail.clone();
    assert!(summary.starts_with("main cause: the CPU runs aten::mm"), "{summary}");
}

#[test]
fn queued_work_is_no_mystery() {
    let mut events = Vec::new();
    for (i, call) in (1..).zip(["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemsetAsync"]) {
        events.push(cpu("cuda_runtime", call, u64::from(i), 1, &format!("\"correlation\": {i}")));
        events.push(kernel("k", &format!("{}", i * 100), "10", 7, i));
    }
    let report = report(&file(&events));
    assert_eq!(kinds(&report), ["queue_stall"]);
    let finding = &report.findings[0];
    assert!(finding.title.ends_with("launched work waits for another stream or event"), "{}", finding.title);
    assert!(finding.effect.iter().all(|effect| !effect.starts_with("also")), "the same words: {:?}", finding.effect);
    assert!(finding.fixes[0].text.contains("cudaStreamWaitEvent"));
    // Without launches nothing is known, and nothing promised.
    let unknown = self::report(&file(&[kernel("k", "0", "10", 7, 1), kernel("k", "100", "10", 7, 2)]));
    assert_eq!(kinds(&unknown), ["gpu_idle"]);
    assert_eq!(unknown.findings[0].fixes[0].saves_ns, 0);
}

#[test]
fn sums_over_devices_are_shares_of_all_their_time() {
    let copy = |device: u32, ts: u64| {
        kernel("Memcpy HtoD (Pageable -> Device)", &ts.to_string(), "60", 7, 100 * device + ts as u32)
            .replace("\"cat\": \"kernel\"", "\"cat\": \"gpu_memcpy\"")
            .replace("\"device\": 0", &format!("\"device\": {device}, \"bytes\": 600"))
    };
    let events: Vec<String> = (0..8).flat_map(|device| [copy(device, 0), copy(device, 140)]).collect();
    let report = report(&file(&events));
    let finding = report.findings.iter().find(|finding| finding.kind == "pageable_copies").unwrap();
    assert_eq!((finding.lost_ns, finding.share), (8 * 120_000, 120_000.0 / 200_000.0));
    assert!(finding.effect[0].ends_with("960 µs of 1.60 ms on 8 GPUs (60 %)"), "{:?}", finding.effect);
}

#[test]
fn other_accelerators_are_not_called_cpu_only() {
    let mtia = report(&file(&[
        cpu("cpu_op", "aten::mm", 0, 5, ""),
        cpu("mtia_ccp_events", "k", 0, 5, ""),
        cpu("mtia_ccp_events", "k", 5, 5, ""),
        cpu("mtia_runtime", "launch", 0, 5, ""),
    ]));
    let said = mtia.warnings.join("\n");
    assert!(
        said.contains("3 events of categories that gpuwhy does not analyse: 2 mtia_ccp_events, 1 mtia_runtime"),
        "{said}"
    );
    assert!(said.contains("no GPU events") && !said.contains("CPU only"), "{said}");
}

#[test]
fn a_busy_gpu_is_the_bottleneck_and_nothing_else() {
    let report = report(&file(&[kernel("gemm", "0", "100", 7, 1), kernel("gemm", "101", "100", 7, 2)]));
    assert_eq!(report.findings.iter().map(|f| f.kind.as_str()).collect::<Vec<_>>(), ["gpu_bound"]);
    assert_eq!(report.findings[0].severity, gpuwhy_model::Severity::Info);
}

#[test]
fn without_gpu_and_without_events() {
    let cpu_only = report(&file(&[cpu("cpu_op", "aten::mm", 0, 5, "")]));
    assert!(cpu_only.devices.is_empty() && cpu_only.findings.is_empty());
    assert!(cpu_only.warnings.iter().any(|w| w.contains("no GPU events")), "{:?}", cpu_only.warnings);
    let empty = report(&file(&[]));
    assert_eq!((empty.events, empty.steps.count), (0, 0));
}

#[test]
fn foreign_files_are_refused_by_name() {
    for (json, error) in [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        ("\u{0}\u{1}\u{2}", "which is not JSON"),
        (r#"{"nodes": [], "schema": 1}"#, "nodes, schema"),
        ("[[1, 2], [3]]", "other than trace events"),
        (r#"[{"a": 1}, {"b": 2}]"#, "other than trace events"),
        (r#"{"schemaVersion": 1, "device"#, "ends before its list"),
    ] {
        let said = try_report(json.as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(error), "{json:?}: {said}");
    }
}

#[test]
fn one_device_of_several() {
    let json =
        file(&[kernel("a", "0", "10", 7, 1), kernel("b", "5", "10", 7, 2).replace("\"device\": 0", "\"device\": 1")]);
    assert_eq!(report(&json).devices.len(), 2);
    let options = Options { device: Some(1), ..Options::default() };
    let one = analyse(json.as_bytes(), &options, |_| ()).unwrap();
    assert_eq!((one.devices.len(), one.devices[0].index, one.kernels[0].name.as_str()), (1, 1, "b"));
}

#[test]
fn own_rules_decide() {
    let rules = Rules::parse("[[rule]]\ncategory = \"communication\"\nany = [\"my_ring\"]").unwrap();
    let options = Options { rules: Some(rules), ..Options::default() };
    let json = file(&[kernel("my_ring_kernel", "0", "10", 7, 1)]);
    let report = analyse(json.as_bytes(), &options, |_| ()).unwrap();
    assert_eq!(report.devices[0].account.communication_ns, 10_000);
}

#[test]
fn parts_of_a_large_file_fit_together() {
    // Several parts of 1 MB each, one event longer than a part, compact and spread-out text.
    let long = "x".repeat(3 << 20);
    for compact in [false, true] {
        let mut events: Vec<String> = (0..20_000)
            .map(|i| {
                kernel("void k<{lambda()#1}>, {", &format!("{}.500", i * 10), "5", 7, i)
                    .replace("\"device\": 0", "\"list\": [{\"name\": 1}, {\"name\": 2}], \"device\": 0")
            })
            .collect();
        events.insert(10_000, kernel(&long, "200000", "5", 7, 0));
        let mut json = file(&events);
        if compact {
            json = json.replace('\n', "").replace(": ", ":").replace(", \"", ",\"");
        }
        let report = analyse(json.as_bytes(), &Options { workers: 3, ..Options::default() }, |_| ()).unwrap();
        assert_eq!((report.events, report.devices[0].account.busy_ns), (20_001, 20_001 * 5000), "compact: {compact}");
        assert!(report.warnings.iter().all(|w| w.contains("launch call")), "{:?}", report.warnings);
    }
}

#[test]
fn progress_reaches_the_end() {
    let json = file(&[kernel("a", "0", "10", 7, 1)]);
    let mut seen = 0;
    analyse(json.as_bytes(), &Options::default(), |done| seen = done).unwrap();
    assert_eq!(seen, json.len() as u64);
}

#[test]
fn absurd_times_neither_panic_nor_break_the_account() {
    let mut events: Vec<String> = (0..50).map(|i| kernel("k", "-3999999999999999", "7999999999999998", i, i)).collect();
    events.extend([
        launch(0, 3_999_999_999_999_999, 1),
        kernel("far", "9999999999999999", "1", 7, 2),
        kernel("further", "1", "99999999999999999999999", 7, 3),
        kernel("backwards", "5", "-5", 7, 4),
        cpu("user_annotation", "ProfilerStep#1", 0, 3_999_999_999_999_999, ""),
        cpu("overhead", "Activity Buffer Request", 0, 3_999_999_999_999_999, ""),
    ]);
    let report = report(&file(&events));
    let device = &report.devices[0];
    assert!(device.account.adds_up());
    assert_eq!((device.account.span_ns, device.event_ns), (7_999_999_999_999_998_000, u64::MAX));
    assert!(report.warnings.iter().any(|w| w.starts_with("2 events without a usable time")), "{:?}", report.warnings);
    assert!(
        report.warnings.iter().any(|w| w.starts_with("1 events with a negative duration")),
        "{:?}",
        report.warnings
    );
}

#[test]
fn gzip_is_unpacked_and_may_be_cut_or_joined() {
    use std::io::Write;
    let pack = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let events: Vec<String> = (0..2000).map(|i| kernel("k", &format!("{}", i * 10), "5", 7, i)).collect();
    let json = file(&events);
    let whole = try_report(&pack(&json)).unwrap();
    assert_eq!(whole.events, 2000);
    let (one, two) = json.split_at(json.len() / 2);
    let joined = [pack(one), pack(two)].concat();
    assert_eq!(try_report(&joined).unwrap().events, 2000);
    let packed = pack(&json);
    let cut = try_report(&packed[..packed.len() / 2]).unwrap();
    assert!(cut.events > 100 && cut.events < 2000);
    assert!(cut.warnings.iter().any(|w| w.contains("the file ends before")), "{:?}", cut.warnings);
}

#[test]
fn a_few_bytes_that_unpack_to_very_many_are_refused() {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let event = kernel("k", "10", "5", 7, 1);
    let line = format!("{event},\n").repeat(10_000);
    out.write_all(b"{\"traceEvents\":[\n").unwrap();
    let mut text = 0;
    while text < 200 << 20 {
        out.write_all(line.as_bytes()).unwrap();
        text += line.len();
    }
    out.write_all(format!("{event}]}}").as_bytes()).unwrap();
    let packed = out.finish().unwrap();
    assert!(packed.len() * 100 < text);
    let refused = try_report(&packed).unwrap_err().to_string();
    assert!(refused.contains("unpack") && refused.contains("gunzip"), "{refused}");
    // The same events in a file that is as large as they are.
    let plain = file(&vec![event; 20_000]);
    assert_eq!(try_report(plain.as_bytes()).unwrap().events, 20_000);
}
