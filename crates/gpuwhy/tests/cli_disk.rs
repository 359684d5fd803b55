// SPDX-License-Identifier: Apache-2.0
//! A run file on a disk that is too small: whoever looks is told of the loss, while tracing and ever after.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::mcp::Served;
use common::{GPUWHY, Place, can_trace, number, one_at_a_time, sim, succeed, text};
use gpuwhy_model::units::count;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A small file system over a folder, unmounted however the test ends.
struct TinyDisk<'a>(&'a Path);

impl<'a> TinyDisk<'a> {
    fn over(folder: &'a Path) -> Self {
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(folder));
        Self(folder)
    }
}

impl Drop for TinyDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

/// Traces more calls than the disk has room for.
fn trace(place: &Place, args: &[&str]) -> std::process::Output {
    let mut command = place.trace();
    command.args(args).arg("--").arg(&sim().simjob).arg("--cudart").arg(&sim().cudart);
    command.args(["--calls", "30000", "--rate", "6000"]).env_remove("SIMGPU_LOG");
    succeed(&mut command)
}

#[test]
fn a_full_disk_is_told_at_once_and_in_every_answer() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let _disk = TinyDisk::over(place.dir.path());
    let output = trace(&place, &["--json"]);
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.iter().find(|line| line["type"] == "summary").unwrap();
    let (lost, stored) = (summary["lost"].as_u64().unwrap(), summary["stored"].as_u64().unwrap());
    assert!(lost > 10_000, "{summary}");

    // While tracing: in the figures, and for each function.
    let sum = |line: &Value| line["ops"].as_array().unwrap().iter().map(|op| op["lost"].as_u64().unwrap()).sum::<u64>();
    let missing = |line: &Value| line["lost"].as_u64().unwrap() + line["not_on_disk"].as_u64().unwrap();
    let troubled = lines.iter().filter(|line| line["type"] == "progress" && !line["trouble"].is_null());
    let troubled: Vec<&Value> = troubled.collect();
    assert!(!troubled.is_empty(), "{lines:#?}");
    for line in troubled {
        assert!(missing(line) > 0 && sum(line) == missing(line), "{line}");
    }
    // At the end: the table, the file, and whatever is answered from it.
    assert_eq!(sum(summary), lost, "{summary}");
    let db = place.run_file();
    assert_eq!(number(&db, "SELECT events_lost FROM sessions"), lost as i64);
    assert_eq!(number(&db, "SELECT events_stored FROM sessions"), stored as i64);
    let says_it = |words: &str| {
        assert!(words.contains("events were lost because the disk was full"), "{words}");
        assert!(!words.contains("othing is holding the GPU back") && !words.contains("No cause costs"), "{words}");
    };
    says_it(summary["verdict"].as_str().unwrap());
    says_it(&text(&succeed(Command::new(GPUWHY).arg("explain").arg(place.db()))).replace("\n", " ").replace("  ", " "));
    let stats = Served::run(&place.db()).call("get_trace_stats", json!({})).unwrap();
    says_it(stats["verdict"].as_str().unwrap());
    let of_loss = stats["loss"].as_array().unwrap().iter().filter(|row| row["cause"] == "write_failed");
    assert!(of_loss.count() > 0, "{stats}");
    // Explained: of all that were seen, which is what the summary counts.
    let of = format!("{} of {} events", count(lost), count(lost + stored));
    assert!(summary["verdict"].as_str().unwrap().contains(&of), "{of}: {summary}");
    assert!(stats["verdict"].as_str().unwrap().contains(&of), "{of}: {stats}");
    // Which lines, and which memory: neither is whole.
    let stacks = text(&succeed(Command::new(GPUWHY).arg("stacks").arg(place.db())));
    assert!(stacks.contains(&format!("{} events were lost and are not counted here", count(lost))), "{stacks}");
    let stacks = Served::run(&place.db()).call("get_stacks", json!({})).unwrap();
    assert_eq!(stacks["lost"], lost, "{stacks}");
    let memory = text(&succeed(Command::new(GPUWHY).arg("memory").arg(place.db()))).replace('\n', " ");
    assert!(memory.contains("allocations or frees were lost"), "{memory}");
    assert!(!memory.contains("No leak found."), "{memory}");
}

#[test]
fn people_read_of_a_full_disk_in_the_first_line_after_it() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let _disk = TinyDisk::over(place.dir.path());
    let said = text(&trace(&place, &[]));
    let full = said.lines().position(|line| line.contains("warning:") && line.contains("is full")).expect(&said);
    let next = said.lines().skip(full + 1).find(|line| line.contains(" events  ")).expect(&said);
    assert!(next.contains("not on disk") && !next.contains("no loss"), "{next} of {said}");
    let end = said.lines().skip(full + 1).collect::<Vec<_>>().join(" ");
    let (verdict, accounting) = end.split_once("gpuwhy: recorded ").expect(&said);
    assert!(verdict.contains("lost because the disk was full"), "{said}");
    assert!(accounting.contains(" lost (write_failed "), "{said}");
}
