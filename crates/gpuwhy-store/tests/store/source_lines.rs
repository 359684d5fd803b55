// SPDX-License-Identifier: Apache-2.0
//! Lines of source: kept with the run, carried into merged runs, and no guess where files of one name differ.

use crate::support::*;
use gpuwhy_model::{AUTOCAST, SourceLine};
use gpuwhy_store::{MergeRequest, Reader, merge};
use rusqlite::Connection;
use std::path::Path;

fn line(number: u32, text: &str) -> SourceLine {
    SourceLine { file: "/home/me/a.py".into(), line: number, text: Some(text.into()), around: None }
}

fn record(path: &Path, lines: &[SourceLine]) {
    let mut writer = create(path);
    writer.set_process(7, "python3");
    lines.iter().for_each(|line| writer.add_source_line(line.clone()));
    assert!(writer.finish(&end()).problem.is_none());
}

fn read(path: &Path) -> Vec<SourceLine> {
    Reader::open(path).unwrap().source_lines().unwrap()
}

#[test]
fn lines_come_back_as_they_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let around = SourceLine { around: Some(AUTOCAST.into()), ..line(9, "step(x)") };
    record(&path, &[line(3, "kept.append(x)"), around.clone(), line(3, "kept.append(x)")]);
    assert_eq!(read(&path), [line(3, "kept.append(x)"), around]);
}

#[test]
fn files_of_one_name_that_differ_have_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    record(&path, &[line(3, "one"), line(3, "two"), line(3, "one"), line(4, "same")]);
    assert_eq!(read(&path), [SourceLine { text: None, ..line(3, "") }, line(4, "same")]);
}

#[test]
fn merged_runs_keep_the_lines_that_agree() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, output] = ["a.db", "b.db", "all.db"].map(|name| folder.path().join(name));
    record(&first, &[line(1, "same"), line(2, "one"), line(3, "only here")]);
    record(&second, &[line(1, "same"), line(2, "two"), line(4, "only there")]);
    let inputs = [first, second];
    merge(&MergeRequest { inputs: &inputs, output: &output, version: "0.0.0-test", owner: None }, || true).unwrap();
    let differs = SourceLine { text: None, ..line(2, "") };
    assert_eq!(read(&output), [line(1, "same"), differs, line(3, "only here"), line(4, "only there")]);
}

#[test]
fn a_file_of_version_5_is_read_and_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    record(&path, &[line(3, "kept.append(x)")]);
    let sql = "DROP VIEW source_lines; DROP TABLE source_line_; PRAGMA user_version = 5;";
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    assert_eq!(read(&path), []);
    assert_eq!(Reader::open(&path).unwrap().processes().unwrap()[0].name, "python3");
}
