// SPDX-License-Identifier: Apache-2.0
//! Where a run file goes, and what becomes of what was there.

use crate::support::*;
use gpuwhy_store::{Error, NewRun, Owner, Reader, RepairRequest, Writer, add_findings, repair};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
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
        assert_eq!(found.mode() & 0o777, 0o600, "{end}: it holds command lines and paths");
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

/// A stranger, who may create files in a folder like /tmp but not touch those of others.
const STRANGER: u32 = 65_534;

fn shared_folder() -> Option<tempfile::TempDir> {
    let folder = is_root().then(|| tempfile::tempdir().unwrap())?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    Some(folder)
}

fn as_stranger(folder: &Path, script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder).stderr(std::process::Stdio::null());
    command.uid(STRANGER).gid(STRANGER).status().unwrap().success()
}

#[test]
fn what_a_stranger_put_beside_a_run_file_is_never_used() {
    let Some(folder) = shared_folder() else { return };
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(100, 12));
    let before = fs::read(&path).unwrap();
    for (plant, says) in [
        ("head -c 40000 /dev/zero > run.db-wal", "another user (65534)"),
        ("head -c 40000 /dev/zero > run.db-shm", "another user (65534)"),
        ("echo anything > run.db-journal", "another user (65534)"),
        ("ln -s /etc/passwd run.db-wal", "is not a regular file"),
        ("mkfifo run.db-shm", "is not a regular file"),
    ] {
        assert!(as_stranger(folder.path(), plant), "{plant}");
        let request = RepairRequest { path: &path, output: None, owner: None };
        let errors = [
            Reader::open(&path).map(|_| ()).unwrap_err(),
            add_findings(&path, 1, 2, 3, &[crate::findings::finding()]).unwrap_err(),
            repair(&request).unwrap_err(),
            refusal(&path),
        ];
        for error in errors {
            let words = error.to_string();
            assert!(matches!(error, Error::Planted { .. }) && words.contains(says), "{plant}: {words}");
            assert!(words.contains("remove it"), "{words}");
        }
        assert_eq!(fs::read(&path).unwrap(), before, "{plant}");
        assert!(as_stranger(folder.path(), "rm run.db-*"));
    }
    // The same where no run file is yet.
    assert!(as_stranger(folder.path(), "echo mine > new.db-shm"));
    let error = refusal(&folder.path().join("new.db"));
    assert!(matches!(error, Error::Planted { .. }), "{error}");
    assert!(!folder.path().join("new.db").exists());
    // A second name of a file of ours, and one that all may write.
    fs::write(folder.path().join("run.db-wal"), "").unwrap();
    fs::hard_link(folder.path().join("run.db-wal"), folder.path().join("other")).unwrap();
    assert!(Reader::open(&path).map(|_| ()).unwrap_err().to_string().contains("hard link"));
    fs::remove_file(folder.path().join("other")).unwrap();
    fs::set_permissions(folder.path().join("run.db-wal"), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(Reader::open(&path).map(|_| ()).unwrap_err().to_string().contains("is writable by other users"));
    // What SQLite itself leaves is fine.
    fs::set_permissions(folder.path().join("run.db-wal"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Reader::open(&path).is_ok());
}

#[test]
fn a_stranger_cannot_cut_what_gpuwhy_has_mapped() {
    let Some(folder) = shared_folder() else { return };
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.write_calls(&mut any_calls(100, 12)).unwrap();
    writer.commit().unwrap();
    for end in ["-wal", "-shm"] {
        let found = fs::metadata(folder.path().join(format!("run.db{end}"))).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600), "{end}");
        for script in ["truncate -s 0 run.db$E", "rm -f run.db$E && false", ": > run.db$E", "mv run.db$E elsewhere"] {
            assert!(!as_stranger(folder.path(), &script.replace("$E", end)), "{script} {end}");
        }
        assert!(folder.path().join(format!("run.db{end}")).exists(), "{end}");
    }
    writer.write_calls(&mut any_calls(100, 13)).unwrap();
    let done = writer.finish(&end());
    assert!(done.problem.is_none(), "{done:?}");
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["run.db"]);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}
