// SPDX-License-Identifier: Apache-2.0
//! examples/leak-tutorial does what its README says, on the simulated GPU.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{GPUWHY, Place, can_trace, one_at_a_time, succeed};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/leak-tutorial")
}

/// The line of train.py that has this in it.
fn line_of(part: &str) -> String {
    let text = std::fs::read_to_string(folder().join("train.py")).unwrap();
    format!("train.py:{}", text.lines().position(|line| line.contains(part)).unwrap() + 1)
}

fn memory(place: &Place, args: &[&str]) -> Value {
    let mut command = Command::new(GPUWHY);
    command.current_dir(place.dir.path()).args(["memory", "--json"]).args(args);
    serde_json::from_slice(&succeed(&mut command).stdout).unwrap()
}

#[test]
fn the_leak_is_found_runs_out_of_memory_is_fixed_and_the_comparison_shows_it() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut tutorial = Command::new(folder().join("run.sh"));
    tutorial.args(["--sim", "--out"]).arg(place.dir.path()).env("GPUWHY", GPUWHY);
    let output = succeed(&mut tutorial);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!said.contains('\x1b'), "no terminal, no colours: {said:?}");
    let leak = line_of("# the leak");
    assert!(said.contains("CUDA out of memory"), "what PyTorch says is shown: {said}");

    let leaky = memory(&place, &["--db", "leaky.db"]);
    let [found] = leaky["leaks"].as_array().unwrap().as_slice() else { panic!("one leak: {:#}", leaky["leaks"]) };
    assert_eq!((&found["line"], &found["function"]), (&leak.as_str().into(), &"train".into()), "{found:#}");
    let per_step = found["bytes_per_step"].as_f64().unwrap();
    assert!((per_step / (512.0 * 1024.0 * 4.0) - 1.0).abs() < 0.02, "a batch of outputs a step: {found:#}");

    let oom = memory(&place, &["--db", "oom.db"]);
    assert!(oom["oom_count"].as_u64().unwrap() >= 1, "{:#}", oom["ooms"]);
    let last = oom["ooms"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["fatal"], &last["live"][0]["line"]), (&true.into(), &leak.as_str().into()), "{last:#}");
    assert!(last["line"].as_str().is_some_and(|line| line.starts_with("train.py:")), "{last:#}");

    let all = memory(&place, &["--compare", "healthy.db", "leaky.db", "fixed.db"]);
    let verdict = all["verdict"].as_str().unwrap();
    let says = format!("/step at {leak} that healthy.db and fixed.db do not");
    assert!(verdict.starts_with("leaky.db keeps ") && verdict.contains(&says), "{verdict}");
    let runs = all["runs"].as_array().unwrap();
    for (run, leaks) in runs.iter().zip([false, true, false]) {
        assert_eq!((run["growth"] == "leaks", &run["steps"]), (leaks, &120.into()), "{run:#}");
    }
    assert_eq!(all["lines"][0]["line"], leak.as_str(), "{all:#}");
    assert_eq!(all["lines"][0]["in_runs"][2]["bytes_per_step"], Value::Null, "{all:#}");
    assert_eq!(runs[0]["peak_allocated"], runs[2]["peak_allocated"], "the fixed run is the healthy one again");
}

#[test]
fn the_readme_names_the_lines_that_are_there() {
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for part in ["# the leak", "outputs = model(inputs)", "loss.backward()"] {
        let line = line_of(part);
        let number = line.rsplit(':').next().unwrap();
        assert!(readme.contains(&line) || readme.contains(&format!("line {number}")), "{line} is not in the README");
    }
}

#[test]
fn the_simulated_gpu_can_be_unpacked_by_anybody() {
    let place = Place::new();
    let mut unpack = Command::new(GPUWHY);
    let output = succeed(unpack.args(["demo", "--unpack"]).arg(place.dir.path().join("sim")));
    let folder = String::from_utf8(output.stdout).unwrap();
    for file in ["libcuda.so.1", "libc10.so", "site-packages/simtorch.py"] {
        assert!(PathBuf::from(folder.trim()).join(file).exists(), "{file}");
    }
}
