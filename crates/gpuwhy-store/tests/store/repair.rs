// SPDX-License-Identifier: Apache-2.0
//! The two files of a killed gpuwhy: copied both, copied one, and made one.

use crate::support::*;
use gpuwhy_store::{Error, MergeRequest, Owner, Reader, RepairRequest, Repaired, main_file, merge, repair};
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Three thousand events, of which the main file has the first two thousand, as a killed gpuwhy leaves it. Parts of it, copied
/// elsewhere.
fn killed(folder: &Path, parts: &[&str]) -> PathBuf {
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("run.db");
    let mut writer = create(&path);
    for second in 0..3 {
        writer.set_process(100, "train.py");
        writer.write_calls(&mut any_calls_of(second)).unwrap();
        writer.commit().unwrap();
        if second == 1 {
            writer.checkpoint();
        }
    }
    for part in parts {
        fs::copy(elsewhere.path().join(format!("run.db{part}")), folder.join(format!("run.db{part}"))).unwrap();
    }
    folder.join("run.db")
}

fn any_calls_of(second: u64) -> Vec<gpuwhy_model::Call> {
    (0..1_000).map(|i| call("cudaMalloc", second * 1_000_000_000 + i * 1_000, 10 + i)).collect()
}

fn events(path: &Path) -> i64 {
    number(&Reader::open(path).unwrap(), "SELECT COUNT(*) FROM events")
}

fn in_place(path: &Path) -> Repaired {
    repair(&RepairRequest { path, output: None, owner: None }).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_main_file_alone_has_what_was_checkpointed() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path(), &[""]);
    for _ in 0..2 {
        let reader = Reader::open(&path).unwrap();
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM events"), 2_000);
        assert!(reader.lacks_wal(), "and it is known that the last part is missing");
    }
    assert_eq!(names(folder.path()), ["run.db"], "looking leaves nothing behind that hides it");
    let repaired = in_place(&path);
    assert!(repaired.lacks_wal && !repaired.has_end && repaired.wal_bytes.is_none(), "{repaired:?}");
    assert_eq!((repaired.stored, repaired.damage.len(), events(&path)), (2_000, 0, 2_000));
    assert!(!Reader::open(&path).unwrap().lacks_wal(), "it is a file of its own now");
}

#[test]
fn both_files_together_have_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path(), &["", "-wal"]);
    let wal = fs::metadata(folder.path().join("run.db-wal")).unwrap().len();
    let repaired = in_place(&path);
    assert_eq!((repaired.wal_bytes, repaired.lacks_wal), (Some(wal), false));
    assert_eq!((repaired.stored, repaired.lost, repaired.processes, repaired.has_end), (3_000, 0, 1, false));
    assert_eq!(names(folder.path()), ["run.db"]);
    assert_eq!(events(&path), 3_000);
    assert_eq!(repaired.size_bytes, fs::metadata(&path).unwrap().len());
    // Once more changes nothing.
    let before = fs::read(&path).unwrap();
    assert_eq!(Repaired { wal_bytes: Some(wal), ..in_place(&path) }, repaired);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_repaired_copy_leaves_the_originals_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path(), &["", "-wal"]);
    let before = ["", "-wal"].map(|end| fs::read(folder.path().join(format!("run.db{end}"))).unwrap());
    let output = folder.path().join("whole.db");
    let owner = is_root().then_some(Owner { uid: 12_345, gid: 23_456 });
    let request = RepairRequest { path: &path, output: Some(&output), owner };
    assert_eq!(repair(&request).unwrap().stored, 3_000);
    assert_eq!(events(&output), 3_000);
    assert_eq!(before, ["", "-wal"].map(|end| fs::read(folder.path().join(format!("run.db{end}"))).unwrap()));
    assert_eq!(names(folder.path()), ["run.db", "run.db-wal", "whole.db"]);
    let made = fs::metadata(&output).unwrap();
    assert_eq!(made.mode() & 0o777, 0o600);
    assert!(owner.is_none_or(|owner| made.uid() == owner.uid));
    assert!(matches!(repair(&request).unwrap_err(), Error::Exists { .. }), "nothing is overwritten");
}

#[test]
fn a_main_file_without_any_event_says_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls_of(0)).unwrap();
    writer.commit().unwrap();
    let alone = folder.path().join("alone.db");
    fs::copy(&path, &alone).unwrap();
    let errors = [
        Reader::open(&alone).map(|_| ()).unwrap_err(),
        Reader::open(&alone).map(|_| ()).unwrap_err(),
        repair(&RepairRequest { path: &alone, output: None, owner: None }).unwrap_err(),
    ];
    for error in errors {
        let says = error.to_string();
        assert!(matches!(error, Error::WithoutWal { .. }) && says.contains("alone.db-wal, which is missing"), "{says}");
        assert!(says.contains("gpuwhy repair") && !folder.path().join("alone.db-wal").exists(), "{says}");
    }
    // The other part found, it is whole.
    fs::copy(folder.path().join("run.db-wal"), folder.path().join("alone.db-wal")).unwrap();
    assert_eq!(events(&alone), 1_000);
}

#[test]
fn what_is_being_recorded_is_not_repaired_and_controls_stay_silent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    // A run that has just begun has no events, and is no killed one.
    assert!(!Reader::open(&path).unwrap().lacks_wal());
    let refused = repair(&RepairRequest { path: &path, output: None, owner: None }).unwrap_err();
    assert!(refused.to_string().contains("still being recorded"), "{refused}");
    writer.write_calls(&mut any_calls_of(0)).unwrap();
    writer.finish(&end());
    let before = fs::read(&path).unwrap();
    let repaired = in_place(&path);
    assert!(repaired.has_end && !repaired.lacks_wal && repaired.wal_bytes.is_none(), "{repaired:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    for wrong in ["none.db", "."] {
        let path = folder.path().join(wrong);
        assert!(repair(&RepairRequest { path: &path, output: None, owner: None }).is_err(), "{wrong}");
    }
}

#[test]
fn damage_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path(), &["", "-wal"]);
    in_place(&path);
    let db = Connection::open(&path).unwrap();
    let page: i64 =
        db.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'stack_'", [], |row| row.get(0)).unwrap();
    drop(db);
    let mut bytes = fs::read(&path).unwrap();
    let at = (page as usize - 1) * 4_096;
    bytes[at..at + 100].fill(0xff);
    fs::write(&path, bytes).unwrap();
    assert!(!in_place(&path).damage.is_empty());
}

#[test]
fn a_killed_run_is_merged_with_its_wal() {
    let folder = tempfile::tempdir().unwrap();
    let path = killed(folder.path(), &["", "-wal"]);
    let output = folder.path().join("all.db");
    let request = MergeRequest { inputs: &[path], output: &output, version: "0.0.0-test", owner: None };
    let merged = merge(&request, || true).unwrap();
    assert!(merged.stored == 3_000 && merged.runs[0].unfinished, "{merged:?}");
    assert_eq!(events(&output), 3_000);
}

#[test]
fn parts_are_known_by_their_names() {
    let main = |name: &str| main_file(Path::new(name));
    assert_eq!(main("a/run.db-wal"), Some("a/run.db".into()));
    assert_eq!(main("run.db-shm"), Some("run.db".into()));
    assert_eq!((main("run.db"), main("-wal")), (None, None));
}
