// SPDX-License-Identifier: Apache-2.0
//! gpuwhy killed while it records: what its files hold, alone and together, and `gpuwhy repair`.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{
    GPUWHY, HeldSimjob, Place, Tracing, can_trace, number, one_at_a_time, open, refusal, sim, succeed, text, until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Events there are in a file that is being written.
fn events(path: &Path) -> i64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let counted = rusqlite::Connection::open_with_flags(path, flags)
        .and_then(|db| db.query_row("SELECT COUNT(*) FROM events", [], |row| row.get(0)));
    counted.unwrap_or(0)
}

/// What the main file holds by itself, read as a copy.
fn events_alone(place: &Place, name: &str) -> i64 {
    let copy = copy(place, name, &[""]);
    let uri = format!("file://{}?immutable=1", copy.display());
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI;
    let counted = rusqlite::Connection::open_with_flags(uri, flags)
        .and_then(|db| db.query_row("SELECT COUNT(*) FROM events", [], |row| row.get(0)));
    counted.unwrap_or(0)
}

fn copy(place: &Place, name: &str, parts: &[&str]) -> PathBuf {
    let folder = place.dir.path().join(name);
    fs::create_dir_all(&folder).unwrap();
    for part in parts {
        fs::copy(place.dir.path().join(format!("run.db{part}")), folder.join(format!("run.db{part}"))).unwrap();
    }
    folder.join("run.db")
}

/// A run whose gpuwhy is killed with signal 9 once the main file has events; the job goes on to its end.
fn killed() -> Option<Place> {
    if !can_trace() {
        return None;
    }
    let place = Place::new();
    let mut job = Command::new(&sim().simjob);
    job.arg("--cudart").arg(&sim().cudart).args(["--calls", "60000", "--rate", "6000"]);
    let mut job = HeldSimjob::start(&mut job);
    let mut command = place.trace();
    command.args(["--pid", &job.parent().to_string()]);
    let tracing = Tracing::start(&mut command, &place, 1);
    job.go();
    until("the main file has events by itself", || events_alone(&place, "look") > 1_000);
    let alone = events_alone(&place, "look");
    until("the -wal has more", || events(&place.db()) > alone + 1_000);
    tracing.signal("KILL");
    assert!(!tracing.end().status.success());
    job.end();
    Some(place)
}

fn gpuwhy(args: &[&str], path: &Path) -> Command {
    let mut command = Command::new(GPUWHY);
    command.args(args).arg(path);
    command
}

#[test]
fn the_file_of_a_killed_gpuwhy_is_worth_copying() {
    let _lock = one_at_a_time();
    let Some(place) = killed() else { return };
    // Only the main file: everything but the last seconds, and that is said.
    let alone = copy(&place, "alone", &[""]);
    let explained = succeed(&mut gpuwhy(&["explain"], &alone));
    let aside = String::from_utf8_lossy(&explained.stderr).into_owned();
    let missing = || {
        let uri = format!("file://{}?immutable=1", alone.display());
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI;
        let db = rusqlite::Connection::open_with_flags(uri, flags).unwrap();
        let last = number(&db, "SELECT duration_ns FROM sessions");
        format!("what came after {} is missing", gpuwhy_model::units::time(last.cast_unsigned()))
    };
    let missing = missing();
    assert!(aside.contains("run.db-wal is missing") && aside.contains(&missing), "{missing}: {aside}");
    let shared = place.dir.path().join("shared.db");
    let mut share = Command::new(GPUWHY);
    let said = text(&succeed(share.arg("share").arg(&alone).arg("-o").arg(&shared)));
    assert!(said.contains(&missing), "{said}");
    let made = place.dir.path().join("both.db");
    let mut merge = Command::new(GPUWHY);
    let said = text(&succeed(merge.arg("merge").arg(&alone).arg(&shared).arg("-o").arg(&made)));
    assert_eq!(said.matches(&missing).count(), 1, "{said}");
    let stored_alone = {
        let said = text(&succeed(&mut gpuwhy(&["repair"], &alone)));
        assert!(said.contains("run.db-wal is missing") && said.contains("the run is incomplete"), "{said}");
        assert!(said.contains(&missing), "{missing}: {said}");
        number(&open(&alone), "SELECT COUNT(*) FROM events")
    };
    assert!(stored_alone > 1_000, "{stored_alone}");

    // Both: everything that was committed.
    let both = copy(&place, "both", &["", "-wal"]);
    let before = events(&copy(&place, "read", &["", "-wal"]));
    let mut repair = Command::new(GPUWHY);
    let folder = both.parent().unwrap();
    let said = text(&succeed(repair.arg("repair").arg(&both).arg(folder.join("run.db-wal"))));
    assert!(said.contains("of that came from") && said.contains("gpuwhy was killed"), "{said}");
    assert!(!folder.join("run.db-wal").exists() && !folder.join("run.db-shm").exists());
    let db = open(&both);
    let stored = number(&db, "SELECT COUNT(*) FROM events");
    assert!(stored == before && stored > stored_alone, "{stored} of {before}, alone {stored_alone}");
    assert!(said.contains(" events of ") && said.contains(" lost; one file, "), "{said}");
    assert_eq!(
        number(&db, "SELECT SUM(calls) FROM seconds WHERE op = 'cudaLaunchKernel'"),
        number(&db, "SELECT SUM(weight) FROM events WHERE op = 'cudaLaunchKernel'")
    );
    assert!(text(&succeed(&mut gpuwhy(&["explain"], &both))).contains("has no end"));

    // merge takes what a shell's pattern gives, the -wal being read with its run.
    let pieces = copy(&place, "pieces", &["", "-wal"]);
    let merged = place.dir.path().join("merged.db");
    let mut merge = Command::new(GPUWHY);
    merge.arg("merge").arg(&pieces).arg(pieces.with_file_name("run.db-wal")).arg(&alone).arg("-o").arg(&merged);
    succeed(&mut merge);
    assert_eq!(number(&open(&merged), "SELECT COUNT(*) FROM events"), stored + stored_alone);
}

#[test]
fn what_cannot_be_repaired_is_said_in_a_sentence() {
    let place = Place::new();
    let missing = place.db();
    assert!(refusal(&mut gpuwhy(&["repair"], &missing), 1).contains("no run file"));
    fs::write(&missing, "").unwrap();
    for command in ["repair", "explain", "memory", "stacks"] {
        let said = refusal(&mut gpuwhy(&[command], &missing), 1);
        assert!(said.contains("is empty") && said.contains("run.db-wal"), "{command}: {said}");
    }
    let wal = place.dir.path().join("other.db-wal");
    assert!(refusal(&mut gpuwhy(&["repair"], &wal), 1).contains("is part of the run file "), "a part is no run");
    let help = text(&succeed(Command::new(GPUWHY).args(["repair", "--help"])));
    assert!(help.contains("Examples:") && help.matches("gpuwhy repair").count() >= 3, "{help}");
}
