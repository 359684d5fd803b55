// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy profile` as users call it, on recordings from an H200.
#![allow(clippy::unwrap_used)]

mod common;

use common::{GPUWHY, refusal, succeed, text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Recordings that gpuwhy-torch's own tests check in depth.
fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuwhy-torch/tests").join(name)
}

fn profile(args: &[&str]) -> Command {
    let mut command = Command::new(GPUWHY);
    command.arg("profile").args(args);
    command
}

/// A folder with a trace and a snapshot, named as PyTorch's examples name them.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(recording("data_trace/vision.json.gz"), folder.path().join("profiler_trace.json.gz")).unwrap();
    std::fs::copy(recording("data/vision/snapshot.pickle.gz"), folder.path().join("snapshot.pickle.gz")).unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    folder
}

fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&succeed(command.arg("--json")).stdout).unwrap()
}

#[test]
fn a_folder_gives_one_document_with_every_key_that_is_promised() {
    let folder = folder();
    let document = json(&mut profile(&[folder.path().to_str().unwrap()]));
    assert_eq!(document["schema"], "gpuwhy.profile/1");
    assert_eq!(document["files"].as_array().unwrap().len(), 2, "config.json is not one of PyTorch's files");
    let device = &document["trace"]["devices"][0];
    let parts = "index name span_ns busy_ns idle_ns compute_ns communication_ns copy_ns exposed_communication_ns exposed_copy_ns";
    for key in parts.split(' ') {
        assert!(!device[key].is_null(), "trace.devices[].{key}");
    }
    let ns = |key: &str| device[key].as_u64().unwrap();
    let sum = ns("compute_ns") + ns("exposed_communication_ns") + ns("exposed_copy_ns") + ns("idle_ns");
    assert_eq!(ns("span_ns"), sum, "the parts add up to the span");
    let memory = &document["memory"]["devices"][0];
    let keys = "index reserved_bytes allocated_bytes requested_bytes peak_allocated_bytes peak_requested_bytes \
                preexisting_bytes reconciled stuck_bytes releasable_bytes largest_fit_bytes";
    for key in keys.split_whitespace() {
        assert!(!memory[key].is_null(), "memory.devices[].{key}");
    }
    assert!(memory["capacity_bytes"].as_u64().unwrap() > 100_000_000_000, "the trace has the GPU's memory");
    for (part, keys) in [
        ("/trace/steps", "count method confidence items"),
        ("/trace/kernels/0", "name total_ns count"),
        ("/trace/categories/0", "name total_ns count"),
        ("/trace/copies/0", "direction bytes total_ns count"),
        ("/trace/idle_causes/0", "cause total_ns count"),
        ("/memory/live/0", "file line function op category bytes count"),
        ("/memory/peak/0", "file line function op category bytes count"),
        ("/memory/churn/0", "file line function op category bytes count"),
    ] {
        let object = document.pointer(part).and_then(Value::as_object).unwrap_or_else(|| panic!("no {part}"));
        for key in keys.split(' ') {
            assert!(object.contains_key(key), "{part} has no {key}: {object:?}");
        }
    }
    for list in ["/memory/ooms", "/findings", "/warnings"] {
        assert!(document.pointer(list).is_some_and(Value::is_array), "{list}");
    }
}

#[test]
fn switches_choose_what_is_analysed() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let memory = json(&mut profile(&[path, "--memory-only", "--gpu-gb", "80"]));
    assert!(memory["trace"].is_null());
    assert_eq!(memory["memory"]["devices"][0]["capacity_bytes"], 80u64 << 30, "GPU vendors write GB for 2^30 bytes");
    let trace = json(&mut profile(&[path, "--trace-only"]));
    assert!(trace["memory"].is_null());
    let quick = json(&mut profile(&[path, "--trace-only", "--quick"]));
    assert_eq!(quick["trace"]["devices"], trace["trace"]["devices"], "--quick gives the same account");
    let other = json(&mut profile(&[path, "--device", "5"]));
    assert_eq!(other["trace"]["devices"].as_array().unwrap().len(), 0);
}

#[test]
fn files_of_several_ranks_are_told_apart() {
    let (a, b) = (recording("data_trace/base.json.gz"), recording("data_trace/ckpt.json.gz"));
    let document = json(&mut profile(&[a.to_str().unwrap(), b.to_str().unwrap()]));
    let files = document["files"].as_array().unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!(files[0]["trace"]["devices"], document["trace"]["devices"]);
    assert_ne!(files[0]["trace"]["devices"], files[1]["trace"]["devices"]);
    let titles: Vec<_> =
        document["findings"].as_array().unwrap().iter().map(|f| f["title"].as_str().unwrap()).collect();
    assert!(
        !titles.is_empty() && titles.iter().all(|t| t.starts_with("base.json.gz:") || t.starts_with("ckpt.json.gz:")),
        "{titles:?}"
    );
}

#[test]
fn a_file_that_cannot_be_read_takes_nothing_from_the_others() {
    let folder = folder();
    std::fs::write(folder.path().join("snapshot.pickle"), b"garbage").unwrap();
    let output = profile(&[folder.path().to_str().unwrap(), "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "something could not be read");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["trace"].is_object() && document["memory"].is_object());
    let errors: Vec<_> = document["files"].as_array().unwrap().iter().filter(|f| f["error"].is_string()).collect();
    assert_eq!(errors.len(), 1);
    assert!(document["warnings"].to_string().contains("snapshot.pickle"));
}

#[test]
fn text_names_the_line_and_has_no_escape_codes_in_a_pipe() {
    let leak = recording("data/leak/snapshot.pickle.gz");
    let short = text(&succeed(&mut profile(&[leak.to_str().unwrap()])));
    assert!(short.contains("work_train.py:32") && short.contains("Fix: "), "{short}");
    assert!(short.lines().count() <= 30, "one screen: {short}");
    let more = format!("More: gpuwhy profile --full {}", leak.display());
    assert!(short.split_whitespace().collect::<Vec<_>>().join(" ").contains(&more), "{short}");
    let full = text(&succeed(&mut profile(&[leak.to_str().unwrap(), "--full"])));
    assert!(full.contains("work_train.py:32"), "{full}");
    assert!(full.contains("memory_growth") && full.contains("reconciled to the byte"), "{full}");
    assert!(full.contains("Churn: allocated and freed again") && !full.contains("More: "), "{full}");
    assert!(!short.contains('\x1b') && !full.contains('\x1b'), "{short:?}");
}

#[test]
fn a_pickle_that_would_run_code_is_refused_by_name_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot.pickle");
    // os.system('true'), as protocol 4 writes it.
    std::fs::write(&path, b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.").unwrap();
    let said = refusal(&mut profile(&[path.to_str().unwrap()]), 1);
    assert!(said.contains("STACK_GLOBAL") && said.contains("16"), "{said}");
}

#[test]
fn what_cannot_be_read_is_said_in_one_line_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (path, part) in [
        (at("empty.json", b""), "empty"),
        (at("foreign.json", b"{\"name\": \"not a trace\"}"), "traceEvents"),
        (at("words.txt", b"hello"), "neither"),
        (folder.path().join("missing.json").to_str().unwrap().to_owned(), "missing.json"),
        (at("rules.pickle", b"garbage"), "rules.pickle"),
    ] {
        let said = refusal(&mut profile(&[&path]), 1);
        assert!(said.contains(part), "{path}: {said}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(&mut profile(&[empty.path().to_str().unwrap()]), 1).contains("no profiler trace"));
    let rules = at("rules.toml", b"this is = = not toml");
    let trace = recording("data_trace/base.json.gz");
    let said = refusal(&mut profile(&[trace.to_str().unwrap(), "--rules", &rules]), 1);
    assert!(said.contains("rules.toml"), "{said}");
}
