// SPDX-License-Identifier: Apache-2.0
//! What people see on real terminals of 80, 100 and 120 columns: nothing is broken in the middle of a word or a number, nothing
//! is shown that is meant for programs, and files are named as arguments.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::terminal::on_terminal;
use common::{GPUWHY, Place, can_trace, number, one_at_a_time, refusal, succeed};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use unicode_width::UnicodeWidthStr;

/// A demo's run, recorded once, and what its screen of 80 columns showed.
struct Demo {
    place: Place,
    screen: String,
}

fn demo(scenario: &'static str) -> Demo {
    let place = Place::new();
    let mut command = Command::new(GPUWHY);
    // With the table of ops and gpuwhy's own figures.
    command.args(["--verbose", "demo", scenario, "--duration", "4s", "--db"]).arg(place.db());
    command.current_dir(place.dir.path());
    let screen = on_terminal(&mut command, 80);
    Demo { place, screen }
}

fn dataloader() -> &'static Demo {
    static DEMO: OnceLock<Demo> = OnceLock::new();
    DEMO.get_or_init(|| demo("dataloader"))
}

fn oom() -> &'static Demo {
    static DEMO: OnceLock<Demo> = OnceLock::new();
    DEMO.get_or_init(|| demo("oom"))
}

/// The text without what moves the cursor or changes colours.
fn plain(text: &str) -> String {
    let (mut out, mut escape) = (String::new(), None);
    for c in text.chars() {
        match escape {
            None if c == '\x1b' => escape = Some(0),
            None => out.push(c),
            Some(0) if c == '[' => escape = Some(1),
            Some(0) => escape = None,
            Some(_) if c.is_ascii_alphabetic() => escape = None,
            Some(_) => {}
        }
    }
    out
}

/// What scrolls by, without what is drawn in its place, which goes between remembering and restoring the cursor.
fn scrolled(text: &str) -> String {
    let mut parts = text.split("\x1b7");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once("\x1b8").map_or("", |(_, after)| after))
}

/// Lines that a terminal of so many columns would break by itself: in the middle of anything.
fn too_wide(text: &str, columns: usize) -> Vec<&str> {
    text.lines().filter(|line| line.width() > columns).collect()
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for place in [&dataloader().place, &oom().place] {
        for columns in [80, 100, 120] {
            for args in [
                &["explain"][..],
                &["explain", "--full"],
                &["explain", "--per-process"],
                &["memory"],
                &["memory", "--oom"],
                &["stacks"],
                &["stacks", "--by", "line", "--op", "sched_switch"],
                &["query", "--schema"],
            ] {
                let mut command = Command::new(GPUWHY);
                command.args(args).arg("run.db").current_dir(place.dir.path());
                let text = on_terminal(&mut command, columns);
                let wide = too_wide(&text, usize::from(columns));
                assert!(wide.is_empty(), "{args:?} at {columns}: {wide:#?} of {text}");
                assert!(text.lines().count() > 2 && !text.contains('\u{fffd}'), "{text}");
            }
        }
    }
}

#[test]
fn what_is_asked_with_sql_and_what_is_said_of_files_fits_too() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let place = &dataloader().place;
    succeed(Command::new(GPUWHY).args(["explain", "run.db"]).current_dir(place.dir.path()));
    for columns in [80, 100, 120] {
        let shared = format!("shared-{columns}.db");
        let merged = format!("merged-{columns}.db");
        let chains = "SELECT summary, explanation, recommendations FROM causal_chains";
        for args in [
            &["query", "run.db", chains][..],
            &["query", "run.db", "SELECT * FROM events"],
            &["query", "run.db", "SELECT * FROM causal_chains"],
            &["query", "run.db", "SELECT frames FROM stack_traces"],
            &["check"],
            &["share", "run.db", "-o", &shared],
            &["merge", "-o", &merged, "run.db", &shared],
        ] {
            let text = on_terminal(Command::new(GPUWHY).args(args).current_dir(place.dir.path()), columns);
            let wide = too_wide(&text, usize::from(columns));
            assert!(wide.is_empty(), "{args:?} at {columns}: {wide:#?}");
            assert!(text.lines().count() > 2 && !text.contains('\u{fffd}'), "{text}");
        }
        // What does not fit is said, and nowhere else it is left out.
        let all = on_terminal(
            Command::new(GPUWHY).args(["query", "run.db", "SELECT * FROM events"]).current_dir(place.dir.path()),
            columns,
        );
        assert!(all.contains("columns do not fit the terminal"), "{all}");
    }
    let piped = Command::new(GPUWHY)
        .args(["query", "run.db", "SELECT * FROM events LIMIT 3"])
        .current_dir(place.dir.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&piped.stderr), "");
}

#[test]
fn every_format_has_a_limit_on_a_terminal_and_none_in_a_pipe() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let folder = dataloader().place.dir.path();
    let sql = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1500) SELECT x FROM n";
    for format in [&["--json"][..], &["--csv"], &[]] {
        let mut command = Command::new(GPUWHY);
        command.args(["query", "run.db", sql]).args(format).current_dir(folder);
        let shown = on_terminal(&mut command, 80);
        assert!(shown.contains("first 1,000 rows; there are more") && !shown.contains("1001"), "{format:?}: {shown}");
        let mut command = Command::new(GPUWHY);
        command.args(["query", "run.db", sql]).args(format).current_dir(folder);
        let piped = succeed(&mut command);
        assert!(String::from_utf8_lossy(&piped.stdout).contains("1500") && piped.stderr.is_empty());
        let mut command = Command::new(GPUWHY);
        command.args(["query", "run.db", sql, "--rows", "2000"]).args(format).current_dir(folder);
        assert!(on_terminal(&mut command, 80).contains("1500"), "{format:?}");
    }
}

#[test]
fn a_demo_is_for_people() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for Demo { screen, place } in [dataloader(), oom()] {
        let text = plain(&scrolled(screen));
        let wide = too_wide(&text, 80);
        assert!(wide.is_empty(), "{wide:#?} of {text}");
        assert!(!text.contains("{\""), "JSON is for programs: {text}");
        // A short run's file is mostly what every file takes.
        let long = number(&place.run_file(), "SELECT events_stored FROM sessions") >= 10_000;
        assert_eq!(text.contains("bytes an event"), long, "{text}");
        let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("op ")).collect();
        for head in ["op", "calls", "p50", "p99", "max", "time/s", "bytes"] {
            assert!(table[0].split_whitespace().any(|name| name == head), "{head}: {}", table[0]);
        }
        let first = table.iter().skip(1).find(|line| !line.trim().is_empty()).unwrap();
        assert!(first.starts_with("cuda"), "calls come first: {first}");
    }
}

#[test]
fn the_live_table_has_its_best_columns_at_80() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    // Every drawing goes to a line of its own, by moving the cursor there.
    let drawn: Vec<&str> = dataloader().screen.split("\x1b[2K").filter(|line| line.starts_with("op ")).collect();
    assert!(!drawn.is_empty(), "it was drawn");
    for head in drawn {
        let head = plain(head);
        let head = head.lines().next().unwrap();
        assert!(head.width() <= 80, "{head}");
        for name in ["op", "calls", "p50", "p99", "max", "time/s", "bytes"] {
            assert!(head.split_whitespace().any(|found| found == name), "{name}: {head}");
        }
    }
}

#[test]
fn the_simulated_gpu_raises_no_false_alert() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let healthy = demo("healthy");
    assert!(!healthy.screen.contains("ALERT"), "{}", healthy.screen);
    assert_eq!(number(&healthy.place.run_file(), "SELECT COUNT(*) FROM alerts"), 0);
    // Where memory really runs out, what NVML said was used at each look was allocated then.
    let run = oom().place.run_file();
    let looks = "SELECT COUNT(*) FROM gpu_seconds WHERE memory_used IS NOT NULL";
    assert!(number(&run, looks) > 0, "the simulated GPU was asked");
    let false_looks = "SELECT COUNT(*) FROM gpu_seconds AS g WHERE g.memory_used > (
        SELECT COALESCE(SUM(CASE e.op WHEN 'cudaMalloc' THEN e.arg0 ELSE -e.arg0 END), 0) FROM events AS e
        WHERE e.op IN ('cudaMalloc', 'cudaFree') AND e.ret = 0 AND e.timestamp <= g.timestamp + 100000000)";
    assert_eq!(number(&run, false_looks), 0);
    assert!(number(&run, "SELECT COUNT(*) FROM alerts WHERE kind = 'oom'") > 0, "a true alert is raised");
}

fn both_are_refused(command: &str, folder: &Path) {
    let output = Command::new(GPUWHY).args([command, "run.db", "--db", "run.db"]).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("FILE") && said.contains("--db"), "{said}");
}

#[test]
fn a_file_may_be_an_argument_or_an_option_but_not_both() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let folder = dataloader().place.dir.path();
    let said = |args: &[&str]| {
        let output = succeed(Command::new(GPUWHY).args(args).current_dir(folder));
        String::from_utf8(output.stdout).unwrap()
    };
    let bundle = folder.join("bundle");
    succeed(Command::new(GPUWHY).args(["memory", "run.db", "--bundle"]).arg(&bundle).current_dir(folder));
    for command in ["explain", "memory", "stacks"] {
        let named = said(&[command, "run.db"]);
        assert_eq!(named, said(&[command, "--db", "run.db"]), "{command}");
        both_are_refused(command, folder);
    }
    assert_eq!(said(&["memory", "bundle"]), said(&["memory", "bundle/events.json"]), "a bundle's folder");
    for args in [&["explain", "bundle"][..], &["stacks", "bundle"], &["query", "bundle", "SELECT 1"]] {
        let said = refusal(Command::new(GPUWHY).args(args).current_dir(folder), 1);
        assert!(said.contains("`gpuwhy memory bundle`"), "{said}");
    }
    assert_eq!(said(&["query", "run.db", "SELECT 1 AS one"]), "one\n  1\n");
    assert_eq!(said(&["query", "run.db", "--schema"]), said(&["query", "--db", "run.db", "--schema"]));
    for (args, of) in [
        (&["query", "run.db", "SELECT 1", "--db", "run.db"][..], "--db"),
        (&["query", "run.db", "SELECT 1", "--schema"], "--schema"),
        (&["query", "run.db"], "SQL"),
        (&["query"], "SQL"),
    ] {
        let output = Command::new(GPUWHY).args(args).current_dir(folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(of), "{args:?}: {said}");
    }
    both_are_refused("mcp", folder);
    assert!(Path::new(&bundle).join("events.json").exists());
}

#[test]
fn memory_that_did_not_run_out_is_good_news() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let folder = dataloader().place.dir.path();
    let output = succeed(Command::new(GPUWHY).args(["memory", "run.db", "--oom"]).current_dir(folder));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Memory did not run out"), "{text}");
    let free = text.lines().find(|line| line.contains("free")).unwrap_or_else(|| panic!("how much was left: {text}"));
    assert!(free.contains("GB"), "{free}");
    let oom = succeed(Command::new(GPUWHY).args(["memory", "run.db", "--oom"]).current_dir(oom().place.dir.path()));
    assert!(!String::from_utf8_lossy(&oom.stdout).contains("did not run out"));
}
