// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy share`: what is left out, what is left, and that the answer stays the same. Run files, and whatever else has
//! command lines in it, are for their owners only.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::made::{LONG, MS, Made};
use common::{GPUWHY, Place, number, one_at_a_time, open, refusal, succeed, text};
use gpuwhy_model::Wait;
use gpuwhy_store::StackText;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const PLANTED: [&str; 5] = ["annabel", "secret-project", "hunter2", "planted-box", "--lr"];

/// A job that waits for its data, of somebody whose name is in every path.
fn run(path: &Path) {
    let mut made =
        Made::of(path, Some("/home/annabel/env/bin/python3 /home/annabel/secret-project/train.py --lr hunter2"));
    let command = "/home/annabel/env/bin/python3 /home/annabel/secret-project/train.py --lr hunter2";
    made.process(1000, "train.py", None);
    made.writer.set_process_command(1000, command);
    made.process(1001, "pt_data_worker", Some(1000));
    made.writer.set_process_command(1001, command);
    let line = "/home/annabel/secret-project/train.py:12 step";
    let torch = "/home/annabel/env/lib/python3.12/site-packages/torch/utils/data/dataloader.py:1 _next";
    made.writer.add_stack(11, StackText { frames: format!("{torch}\n{line}"), top_line: line.into() });
    made.stack(12, "/home/annabel/secret-project/lib/train.py:12 other");
    made.steps(1000, 0, 100 * MS, 20 * MS, Some((Wait::Sleep, 11)));
    made.steps(1001, 0, 200 * MS, 10 * MS, Some((Wait::File, 12)));
    made.finish(LONG);
}

fn share(args: &[&str], db: &Path) -> String {
    text(&succeed(Command::new(GPUWHY).arg("share").arg(db).args(args).env("USER", "annabel").env_remove("SUDO_UID")))
}

fn explain(db: &Path) -> Value {
    let output = succeed(Command::new(GPUWHY).args(["explain", "--json"]).arg(db));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All numbers of an answer with where they stand; texts are left out.
fn numbers(at: &str, value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| numbers(&format!("{at}.{name}"), value, into)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(place, value)| numbers(&format!("{at}[{place}]"), value, into));
        }
        Value::String(_) => into.push(format!("{at}: text")),
        other => into.push(format!("{at}: {other}")),
    }
}

#[test]
fn a_copy_for_others_is_explained_like_the_original() {
    // A run is written here, and a process started beside it would for a moment have it open, too.
    let _lock = one_at_a_time();
    let place = Place::new();
    run(&place.db());
    let original = explain(&place.db());
    assert!(number(&open(&place.db()), "SELECT COUNT(*) FROM causal_chains") > 0, "its findings are in it now");
    let said = share(&["--hide", "planted-box"], &place.db());
    let made = place.dir.path().join("run-shared.db");
    let bytes = fs::read(&made).unwrap();
    for words in PLANTED {
        assert!(!bytes.windows(words.len()).any(|window| window == words.as_bytes()), "{words} is in the copy");
        assert!(!said.replace("--hide", "").contains(words), "{words}: {said}");
    }
    for words in ["removed:", "kept:", "programs: ", "python3", "train.py", "Check these names"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o600);
    let db = open(&made);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM causal_chains"), 0);
    assert_eq!(number(&db, "SELECT COUNT(*) FROM sessions WHERE flags IS NULL AND command = 'python3'"), 1);
    let lines = "SELECT COUNT(*) FROM stack_traces WHERE top_line IN ('train.py:12 step', '2/train.py:12 other')";
    assert_eq!(number(&db, lines), 2, "two files of one name stay two");
    drop(db);

    let copy = explain(&made);
    assert_eq!(copy["verdict"], original["verdict"]);
    let of = |answer: &Value| {
        let mut all = Vec::new();
        numbers("", answer, &mut all);
        all
    };
    assert_eq!(of(&copy), of(&original));
    assert!(of(&copy).len() > 50 && !copy["findings"].as_array().unwrap().is_empty());
}

#[test]
fn a_copy_is_made_whole_or_not_at_all() {
    // A run is written here, and a process started beside it would for a moment have it open, too.
    let _lock = one_at_a_time();
    let place = Place::new();
    run(&place.db());
    let before = fs::read(place.db()).unwrap();
    let output = place.dir.path().join("out.db");
    let mut again = Command::new(GPUWHY);
    again.arg("share").arg(place.db()).arg("-o").arg(&output);
    succeed(&mut again);
    assert!(refusal(&mut again, 1).contains("already exists"));
    assert_eq!(fs::read(place.db()).unwrap(), before, "the original stays as it is");
    let missing = place.dir.path().join("none.db");
    assert!(refusal(Command::new(GPUWHY).arg("share").arg(&missing), 1).contains("none.db"));
    fs::write(
        &missing,
        "no run file at all, but as long as the head of a database, which has a hundred bytes, and more",
    )
    .unwrap();
    let said = refusal(Command::new(GPUWHY).arg("share").arg(&missing), 1);
    assert!(said.contains("not a run file"), "{said}");
    assert!(!place.dir.path().join("none-shared.db").exists());
    let names = fs::read_dir(place.dir.path()).unwrap().count();
    assert_eq!(names, 3, "nothing half done is left");
    let help = text(&succeed(Command::new(GPUWHY).args(["share", "--help"])));
    assert!(help.contains("Examples:") && help.contains("removed") && help.contains("kept"), "{help}");
}

#[test]
fn run_files_and_bundles_are_for_their_owners_only() {
    // A run is written here, and a process started beside it would for a moment have it open, too.
    let _lock = one_at_a_time();
    let place = Place::new();
    run(&place.db());
    let bundle = place.dir.path().join("bundle");
    succeed(Command::new(GPUWHY).arg("memory").arg(place.db()).arg("--bundle").arg(&bundle));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&place.db()), mode(&bundle)), (0o600, 0o700));
    for file in fs::read_dir(&bundle).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}
