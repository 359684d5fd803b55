// SPDX-License-Identifier: Apache-2.0
//! Where a run file goes, and what becomes of what was there.

use crate::support::*;
use gpuwhy_store::{Error, NewRun, Owner, Reader, Writer};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn refusal(path: &Path) -> Error {
    Writer::create(path, &new_run()).map(|_| ()).unwrap_err()
}

fn set_modified(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_689_600);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn an_earlier_file_is_moved_aside_with_its_wal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    for (end, content) in [("", "main"), ("-wal", "log"), ("-shm", "index")] {
        let part = folder.path().join(format!("run.db{end}"));
        fs::write(&part, content).unwrap();
        set_modified(&part);
    }
    fs::write(folder.path().join("run-20250101-000000.db"), "taken").unwrap();
    let created = Writer::create(&path, &new_run()).unwrap();
    let moved = created.moved_to.unwrap();
    assert_eq!(moved.file_name().unwrap(), "run-20250101-000000-2.db");
    assert_eq!(fs::read_to_string(&moved).unwrap(), "main");
    assert_eq!(fs::read_to_string(folder.path().join("run-20250101-000000-2.db-wal")).unwrap(), "log");
    assert_eq!(fs::read_to_string(folder.path().join("run-20250101-000000-2.db-shm")).unwrap(), "index");
    assert_eq!(fs::read_to_string(folder.path().join("run-20250101-000000.db")).unwrap(), "taken");
    created.writer.finish(&end());
    assert!(Reader::open(&path).is_ok());
}

#[test]
fn a_second_writer_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut first = create(&path);
    let error = refusal(&path);
    assert!(matches!(error, Error::BeingWritten { .. }), "{error}");
    first.write_calls(&mut any_calls(100, 8)).unwrap();
    first.finish(&end());
    // Closed, it is an earlier file like any other.
    assert!(Writer::create(&path, &new_run()).unwrap().moved_to.is_some());
}

#[test]
fn a_link_is_moved_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("run.db"), folder.path().join("precious"));
    fs::write(&target, "precious").unwrap();
    symlink(&target, &path).unwrap();
    let created = Writer::create(&path, &new_run()).unwrap();
    created.writer.finish(&end());
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(fs::read_link(created.moved_to.unwrap()).unwrap(), target);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn a_folder_reached_through_a_link_is_fine() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink("real", folder.path().join("link")).unwrap();
    write(&folder.path().join("link/run.db"), &mut any_calls(10, 9));
    assert!(folder.path().join("real/run.db").is_file());
}

#[test]
fn what_is_no_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(refusal(folder.path()), Error::NotAFile { .. }));
    assert!(matches!(refusal(Path::new("/dev/null")), Error::NotAFile { .. }));
    assert!(matches!(refusal(Path::new("/")), Error::NotAFile { .. }));
    let missing = folder.path().join("no/such/run.db");
    let error = refusal(&missing);
    assert!(matches!(error, Error::FolderMissing { .. }) && error.to_string().contains("create it"), "{error}");
    let below_a_file = folder.path().join("file");
    fs::write(&below_a_file, "").unwrap();
    assert!(matches!(refusal(&below_a_file.join("run.db")), Error::CannotCreate { .. } | Error::FolderMissing { .. }));
    // Even root cannot create files here.
    let error = refusal(Path::new("/proc/run.db"));
    assert!(matches!(error, Error::CannotCreate { .. }), "{error}");
}

#[test]
fn the_file_is_its_users_from_the_first_moment() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let run = NewRun { owner: Some(Owner { uid: 12_345, gid: 23_456 }), ..new_run() };
    let mut writer = Writer::create(&path, &run).unwrap().writer;
    writer.write_calls(&mut any_calls(100, 10)).unwrap();
    writer.commit().unwrap();
    for end in ["", "-wal", "-shm"] {
        let found = fs::metadata(folder.path().join(format!("run.db{end}"))).unwrap();
        assert_eq!((found.uid(), found.gid()), (12_345, 23_456), "{end}");
    }
    writer.finish(&end());
    assert_eq!(fs::metadata(&path).unwrap().uid(), 12_345);
}

#[test]
fn closed_it_is_one_plain_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(1_000, 11));
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["run.db"]);
}
