// SPDX-License-Identifier: Apache-2.0
//! The figures people look for: tails, rates that fell, load and swap, warnings. Held against what the run was made of.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::made::{LONG, MS, Made, ORIGIN, SECOND, launch, sync};
use common::mcp::Served;
use common::{GPUWHY, Place, succeed};
use gpuwhy_model::Samples;
use gpuwhy_model::sample::{ProcessSample, SystemSample};
use serde_json::{Value, json};
use std::process::Command;

/// One whose launches fall from 100 a second to 25, with a tail in its waits and memory in swap.
const TROUBLED: u32 = 100;
/// Its child with an even pace, of which nothing is remarkable.
const WELL: u32 = 200;

/// How long the wait at this place of the run takes.
fn wait(i: u64) -> u64 {
    if i % 50 == 7 { 40 * MS } else { MS + i * 10 }
}

fn run() -> Place {
    let place = Place::new();
    let mut made = Made::of(&place.db(), Some("python3 train.py"));
    made.process(TROUBLED, "python3 train.py", None);
    made.process(WELL, "python3 rank.py", Some(TROUBLED));
    let mut at = 0;
    while at < LONG {
        made.calls.push(launch(TROUBLED, at, 9_000));
        at += if at < 12 * SECOND { 10 * MS } else { 40 * MS };
    }
    made.calls.extend((0..400).map(|i| sync(TROUBLED, i * 50 * MS + 5 * MS + 7, wait(i))));
    made.calls.extend((0..LONG / (20 * MS)).map(|i| launch(WELL, i * 20 * MS + 3, 9_000)));
    for second in 1..=20 {
        let at_ns = ORIGIN + second * SECOND;
        let system = SystemSample {
            at_ns,
            span_ns: SECOND,
            idle_ns: SECOND,
            cores: 2,
            load1: Some(second as f64 / 4.0),
            memory_total: Some(8_000_000_000),
            memory_available: Some(5_000_000_000 - second * 1_000_000),
            swap_used: Some(second * 10_000_000),
            swap_in: Some(1_000_000),
            swap_out: Some(2_500_000),
            ..SystemSample::default()
        };
        let process =
            |pid, swapped| ProcessSample { at_ns, span_ns: SECOND, pid, swapped: Some(swapped), ..Default::default() };
        let processes = vec![process(TROUBLED, second * 3_000_000), process(WELL, 0)];
        made.writer.add_samples(Samples { system: Some(system), processes, ..Samples::default() });
    }
    made.finish(LONG);
    place
}

fn explain(place: &Place) -> Value {
    let mut asked = Command::new(GPUWHY);
    asked.args(["explain", "--json", "--per-process", "--db"]).arg(place.db());
    serde_json::from_slice(&succeed(&mut asked).stdout).unwrap()
}

fn op<'a>(report: &'a Value, pid: u32, name: &str) -> &'a Value {
    let process = process(report, pid);
    process["ops"].as_array().unwrap().iter().find(|op| op["op"] == name).unwrap_or_else(|| panic!("{process:#}"))
}

fn process(report: &Value, pid: u32) -> &Value {
    report["per_process"].as_array().unwrap().iter().find(|one| one["pid"] == pid).unwrap()
}

/// The tail of the waits, from the durations themselves.
fn true_tail() -> f64 {
    let mut waits: Vec<u64> = (0..400).map(wait).collect();
    waits.sort_unstable();
    let at = |q: f64| waits[(q * waits.len() as f64).ceil() as usize - 1] as f64;
    at(0.99) / at(0.5)
}

#[test]
fn tails_and_rates_that_fell_are_those_the_run_was_made_with() {
    let place = run();
    let report = explain(&place);
    let near = |value: &Value, truth: f64| {
        let value = value.as_f64().unwrap_or_else(|| panic!("{report:#}"));
        // Histograms know a duration to a few percent.
        assert!((value / truth - 1.0).abs() < 0.05, "{value} is not {truth}");
    };
    near(&op(&report, TROUBLED, "cudaStreamSync")["tail_ratio"], true_tail());
    let launches = op(&report, TROUBLED, "cudaLaunchKernel");
    assert_eq!((&launches["peak_per_second"], &launches["drop"]), (&json!(100.0), &json!(0.75)), "{report:#}");
    assert_eq!(launches["warnings"], json!(["fell from 100/s to 25/s"]));
    let even = op(&report, WELL, "cudaLaunchKernel");
    assert_eq!((&even["peak_per_second"], &even["drop"], &even["warnings"]), (&json!(50.0), &json!(0.0), &json!([])));
    near(&even["tail_ratio"], 1.0);
    // A part within the slow time has no drop.
    let mut asked = Command::new(GPUWHY);
    asked.args(["explain", "--json", "--per-process", "--since", "8s", "--db"]).arg(place.db());
    let part: Value = serde_json::from_slice(&succeed(&mut asked).stdout).unwrap();
    assert_eq!(op(&part, TROUBLED, "cudaLaunchKernel")["warnings"], json!([]), "{part:#}");
}

#[test]
fn load_and_swap_are_told_of_the_machine() {
    let context = explain(&run())["context"].to_string();
    // 0.25, 0.5, … 5.0; and 200 MB in the end, 20 times 1 and 2.5 MB moved.
    assert!(context.contains("load average (1 min): mean 2.6, peak 5.0"), "{context}");
    assert!(context.contains("swap: peak 200 MB, 20.0 MB swapped in, 50.0 MB swapped out"), "{context}");
    assert!(context.contains("at least 4.98 GB of 8.00 GB free"), "{context}");
}

#[test]
fn warnings_of_a_process_are_told_and_a_healthy_one_has_none() {
    let place = run();
    let report = explain(&place);
    assert_eq!(process(&report, TROUBLED)["warnings"], json!(["up to 60.0 MB of its memory was in swap"]));
    assert_eq!(process(&report, WELL)["warnings"], json!([]));
    let stats = Served::run(&place.db()).call("get_trace_stats", json!({})).unwrap();
    let of = |pid: u32| stats["processes"].as_array().unwrap().iter().find(|one| one["pid"] == pid).unwrap();
    let told = of(TROUBLED)["warnings"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    let told: Vec<&str> = told.collect();
    assert!(told.contains(&"cudaLaunchKernel: fell from 100/s to 25/s"), "{stats:#}");
    assert!(told.iter().any(|one| one.starts_with("cudaStreamSync: p99 ")), "{stats:#}");
    assert!(told.contains(&"up to 60.0 MB of its memory was in swap"), "{stats:#}");
    assert_eq!(of(WELL).get("warnings"), None, "{stats:#}");
    let launches = stats["ops"].as_array().unwrap().iter().find(|op| op["op"] == "cudaLaunchKernel").unwrap();
    // Both together: 150 a second, then 75.
    assert_eq!((&launches["peak_per_second"], &launches["drop_percent"]), (&json!(150.0), &json!(50.0)), "{stats:#}");
}
