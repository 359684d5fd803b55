// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy trace --max-size`: the file keeps to it, its sums are the truth, and everybody says so.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::compare::true_sums;
use common::{GPUWHY, Place, can_trace, number, one_at_a_time, sim, succeed, text};
use gpuwhy_model::ops;
use std::collections::BTreeMap;
use std::process::Command;

/// Many fast calls that fill the file, then some that wait for slow kernels.
const JOB: &str = r#""$0" --cudart "$1" --calls 400000 --rate 150000 && "$0" --cudart "$1" --calls 600 --mix mixed --kernel-ns 2500000"#;
/// From this on a call is slow by either clock, ns: gpuwhy's probes and simgpu's log do not measure the same moments.
const SLOW_NS: u64 = 1_200_000;

fn query(place: &Place, args: &[&str]) -> std::process::Output {
    succeed(Command::new(GPUWHY).args(["query", "--db"]).arg(place.db()).args(args))
}

/// A lost launch may be counted under the driver's name, where who made it could not be told at once.
fn kind(op: &str) -> String {
    if op.contains("LaunchKernel") { "launch".into() } else { op.to_owned() }
}

/// By weight, stored and lost together are what was made, op by op.
fn assert_nothing_vanishes(place: &Place) {
    let (truth, db) = (place.truth(), place.run_file());
    let mut made = BTreeMap::new();
    for (function, sums) in true_sums(&truth) {
        *made.entry(kind(&ops::short_name(&function))).or_insert(0) += sums.calls as i64;
    }
    let sql = "SELECT op, SUM(n) FROM (SELECT op, SUM(weight) AS n FROM events WHERE layer <> 'kernel' GROUP BY op \
               UNION ALL SELECT op, SUM(count) FROM loss WHERE loses_event GROUP BY op) GROUP BY op";
    let mut accounted = BTreeMap::new();
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    for (op, count) in rows.map(Result::unwrap) {
        if ops::by_function(&op).is_none_or(|op| op.id.is_cuda()) {
            *accounted.entry(kind(&op)).or_insert(0) += count;
        }
    }
    assert_eq!(accounted, made, "stored and lost together are what was made, op by op");
    let calls: i64 = made.values().sum();
    let sql = "SELECT SUM(calls) FROM seconds WHERE op NOT IN (SELECT op FROM ops WHERE layer = 'kernel')";
    assert_eq!(number(&db, sql), calls - number(&db, "SELECT SUM(count) FROM loss WHERE cause = 'ring_full'"));
}

#[test]
fn a_small_file_has_true_sums_and_every_slow_call() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    let mut command = place.trace();
    command.args(["--max-size", "3MB", "--", "sh", "-c", JOB]).arg(&sim().simjob).arg(&sim().cudart);
    let said = text(&succeed(&mut command));
    let size = std::fs::metadata(place.db()).unwrap().len();
    assert!(size > 1_500_000 && size <= 3_000_000, "{size}");
    assert_eq!(
        std::fs::read_dir(place.dir.path()).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count(),
        1
    );
    assert_nothing_vanishes(&place);

    let db = place.run_file();
    let thinned = number(&db, "SELECT thinned FROM sessions");
    assert!(thinned > 50_000, "{thinned} of 400,000");
    assert_eq!(number(&db, "SELECT max_size FROM sessions"), 3_000_000);
    assert_eq!(number(&db, "SELECT SUM(weight - 1) FROM events WHERE op <> 'sched_wakeup'"), thinned);
    // Of a launch gpuwhy times the driver's part only.
    let timed = |call: &simgpu::log::Call| call.depth == 0 && !call.function.contains("Launch");
    let slow = place.truth().calls().filter(|call| timed(call) && call.exit_ns - call.enter_ns >= SLOW_NS).count();
    assert!(slow > 20, "{slow}");
    let sql =
        format!("SELECT COUNT(*) FROM events WHERE layer <> 'kernel' AND weight = 1 AND duration_ns >= {SLOW_NS}");
    assert!(number(&db, &sql) >= slow as i64, "{} of {slow}", number(&db, &sql));

    let note = "events are represented by similar rows";
    assert!(said.contains(note) && said.contains("--max-size 3.00 MB"), "{said}");
    let explained = text(&succeed(Command::new(GPUWHY).args(["explain", "--db"]).arg(place.db())));
    assert!(explained.contains("are represented by similar rows"), "{explained}");
    for format in [None, Some("--json"), Some("--csv")] {
        let args: Vec<&str> = format.into_iter().chain(["SELECT COUNT(*) AS n FROM sessions"]).collect();
        let output = query(&place, &args);
        let (out, aside) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(aside.starts_with("gpuwhy: ") && aside.contains(note) && aside.contains("SUM(weight)"), "{aside}");
        assert!(!out.contains("weight") && out.contains('1'), "{out}");
    }
}

#[test]
fn a_file_that_is_large_enough_is_as_without() {
    if !can_trace() {
        return;
    }
    let (_lock, place) = (one_at_a_time(), Place::new());
    for (flags, max_size) in
        [(&[][..], 2_000_000_000), (&["--max-size", "none"][..], 0), (&["--max-size", "1GiB"], 1 << 30)]
    {
        let mut command = place.trace();
        command.args(flags).args(["--quiet", "--"]).arg(&sim().simjob).arg("--cudart").arg(&sim().cudart);
        let said = text(&succeed(command.args(["--calls", "20000"])));
        assert!(!said.contains("represented by similar rows"), "{said}");
        let db = place.run_file();
        assert_eq!(number(&db, "SELECT max_size FROM sessions"), max_size);
        assert_eq!(number(&db, "SELECT thinned FROM sessions"), 0);
        assert_eq!(number(&db, "SELECT COUNT(*) FROM events WHERE op = 'cudaLaunchKernel'"), 20_000);
        assert!(query(&place, &["SELECT 1"]).stderr.is_empty());
    }
}

#[test]
fn a_size_that_makes_no_sense_is_refused_before_anything_is_done() {
    let place = Place::new();
    for (size, says) in
        [("10kB", "at least 1 MB"), ("2 elephants", "expected a size such as 500MB"), ("", "such as 500MB")]
    {
        let output = Command::new(GPUWHY).args(["trace", "--max-size", size, "--db"]).arg(place.db()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{size}");
        assert!(text(&output).contains(says), "{}", text(&output));
    }
    assert!(!place.db().exists());
}
