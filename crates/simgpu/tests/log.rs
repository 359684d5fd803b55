// SPDX-License-Identifier: Apache-2.0
//! The log reader on files that are not whole.

#![allow(missing_docs, clippy::expect_used)]

mod common;

use std::fs;

use common::{Bench, output_of};
use simgpu::log::Truth;

#[test]
fn a_file_without_its_header_is_left_out() {
    let bench = Bench::new("unfinished");
    fs::write(bench.root.join("log/1.1.simlog"), []).expect("write");
    fs::write(bench.root.join("log/1.2.simlog"), [0; 4096]).expect("write");
    assert!(bench.truth().threads.is_empty());
}

#[test]
fn a_foreign_file_is_an_error() {
    let bench = Bench::new("foreign");
    fs::write(bench.root.join("log/1.1.simlog"), [7; 4096]).expect("write");
    assert!(Truth::read(&bench.root.join("log")).is_err());
}

#[test]
fn a_truncated_file_is_an_error() {
    let bench = Bench::new("truncated");
    output_of(bench.simjob(&["--calls", "10"]));
    let path = bench.truth().threads[0].path.clone();
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[..whole.len() / 100]).expect("write");
    assert!(Truth::read(&bench.root.join("log")).is_err());
}
