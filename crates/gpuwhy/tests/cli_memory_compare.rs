// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory --compare`: really traces jobs with known memory behaviour on a simulated GPU and compares them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::jobs::report;
use common::{GPUWHY, Place, can_trace, one_at_a_time, refusal, sim, succeed, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Traces a memjob into a file of this name; returns its own report.
fn traced(place: &Place, name: &str, args: &[&str]) -> Value {
    let mut command = Command::new(GPUWHY);
    command.args(["trace", "--budget", "none", "--quiet", "--db"]).arg(place.dir.path().join(name));
    command.env("LD_LIBRARY_PATH", &sim().dir).args(["--", "python3"]).arg(&sim().memjob_py).args(args);
    report(&text(&succeed(&mut command)))
}

fn compare(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.current_dir(place.dir.path()).args(["memory", "--compare"]).args(args);
    command
}

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_slice(&succeed(compare(place, args).arg("--json")).stdout).unwrap()
}

#[test]
fn a_leak_is_reported_by_line_and_step() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let healthy = traced(&place, "healthy.db", &["healthy", "--steps", "60"]);
    let leaky = traced(&place, "leaky.db", &["leak", "--steps", "90"]);
    let fixed = traced(&place, "fixed.db", &["healthy", "--steps", "60"]);
    let line = format!("memjob.py:{}", leaky["lines"]["leak"]);
    let files = ["healthy.db", "leaky.db", "fixed.db"];
    let all = json(&place, &files);
    assert_eq!(all["schema"], "gpuwhy.memory-compare/1");
    let leak = &all["lines"][0];
    assert_eq!(leak["line"], line, "{all:#}");
    let in_leaky = &leak["in_runs"][1];
    assert_eq!((&in_leaky["change"], &in_leaky["at_end"]), (&"new".into(), &leaky["kept_bytes"]), "{leak:#}");
    let (found, truth) = (in_leaky["bytes_per_step"].as_f64().unwrap(), leaky["bytes_per_step"].as_f64().unwrap());
    assert!((found / truth - 1.0).abs() < 0.02, "{found} instead of {truth} a step: {leak:#}");
    for place in [0, 2] {
        assert_eq!(leak["in_runs"][place]["bytes_per_second"], Value::Null, "{leak:#}");
    }
    for (run, (truth, file)) in all["runs"].as_array().unwrap().iter().zip([&healthy, &leaky, &fixed].iter().zip(files))
    {
        assert_eq!((&run["steps"], &run["run"]), (&truth["steps"], &file.into()), "{run:#}");
        let alone = ["memory", "--json", "--db", file];
        let alone = succeed(Command::new(GPUWHY).current_dir(place.dir.path()).args(alone)).stdout;
        let alone: Value = serde_json::from_slice(&alone).unwrap();
        assert_eq!(run["peak_allocated"], alone["spaces"][0]["peak_allocated"], "as the run alone has it");
    }
    let growth: Vec<&str> = all["runs"].as_array().unwrap().iter().map(|run| run["growth"].as_str().unwrap()).collect();
    assert_eq!(growth[1], "leaks");
    assert!(growth[0] != "leaks" && growth[2] != "leaks", "{growth:?}");
    let verdict = all["verdict"].as_str().unwrap();
    let said = format!("/step at {line} that healthy.db and fixed.db do not; peak ");
    assert!(verdict.starts_with("leaky.db keeps ") && verdict.contains(&said), "{verdict}");
    assert!(all["notes"][0].as_str().unwrap().contains("compared per step"), "{all:#}");
    // The same for people.
    let shown = String::from_utf8(succeed(&mut compare(&place, &files)).stdout).unwrap();
    for part in ["peak in use", "leaky.db", &line, " new", "Notes on this comparison"] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "no terminal, no colours");
    // Each run has its own process.
    let (first, second) = (healthy["pid"].to_string(), leaky["pid"].to_string());
    let some = json(&place, &["healthy.db", "leaky.db", "--pid", &first, "--pid", &second]);
    assert_eq!(some["lines"][0]["line"], line, "{some:#}");
    assert!(
        refusal(&mut compare(&place, &["healthy.db", "leaky.db", "--pid", &first]), 1).contains("leaky.db has none of")
    );
    // Against itself nothing has changed.
    let same = json(&place, &["healthy.db", "healthy.db"]);
    assert_eq!(same["lines"], serde_json::json!([]), "{same:#}");
}

#[test]
fn missing_runs_and_runs_without_memory_are_reported() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut nothing = Command::new(GPUWHY);
    nothing.args(["trace", "--quiet", "--db"]).arg(place.dir.path().join("nothing.db")).args(["--", "true"]);
    succeed(&mut nothing);
    traced(&place, "some.db", &["healthy", "--steps", "30"]);
    let all = json(&place, &["some.db", "nothing.db"]);
    assert_eq!((&all["runs"][0]["has_memory"], &all["runs"][1]["has_memory"]), (&true.into(), &false.into()));
    assert!(all["verdict"].as_str().unwrap().contains("nothing.db allocated no GPU memory"), "{all:#}");
    let shown = String::from_utf8(succeed(&mut compare(&place, &["some.db", "nothing.db"])).stdout).unwrap();
    assert!(shown.contains("no data"), "{shown}");
    refusal(&mut compare(&place, &["some.db", "/nowhere/run.db"]), 1);
    let alone = compare(&place, &["some.db"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(2), "one run is nothing to compare: {}", text(&alone));
    assert!(!Path::new("/nowhere").exists());
}
