// SPDX-License-Identifier: Apache-2.0
//! Files that are not run files, no longer, or not yet.

use crate::support::*;
use gpuwhy_store::{Error, Reader, add_findings};
use rusqlite::Connection;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

fn refusal(path: &Path) -> Error {
    Reader::open(path).map(|_| ()).unwrap_err()
}

#[test]
fn what_is_not_a_run_file_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    assert!(matches!(refusal(&path), Error::NotFound { .. }));
    assert!(matches!(refusal(folder.path()), Error::NotSqlite { .. }));
    fs::write(&path, "just text, but long enough that it could have been a database header of SQLite, it is not one")
        .unwrap();
    assert!(matches!(refusal(&path), Error::NotSqlite { .. }));
    fs::write(&path, "").unwrap();
    fs::write(folder.path().join("run.db-wal"), "what was recorded").unwrap();
    let error = refusal(&path);
    assert!(matches!(error, Error::Empty { .. }) && error.to_string().contains("run.db-wal"), "{error}");
    assert!(folder.path().join("run.db-wal").exists(), "what may be all there is stays");
    fs::remove_file(folder.path().join("run.db-wal")).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE cats (name)").unwrap();
    assert!(matches!(refusal(&path), Error::NotARun { .. }));
}

#[test]
fn a_file_from_the_future_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(10, 12));
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 7).unwrap();
    let error = refusal(&path);
    assert!(matches!(error, Error::Newer { version: 7, .. }));
    assert!(
        error.to_string().contains("run-file version 7, but this gpuwhy reads versions up to 6: update gpuwhy"),
        "{error}"
    );
}

#[test]
fn a_read_only_disk_is_enough_to_read() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let closed = disk.path().join("closed.db");
    write(&closed, &mut any_calls(10, 13));
    // As after a copy of the main file alone: in WAL mode, but no -wal beside it.
    let alone = disk.path().join("odd name?#%.db");
    write(&alone, &mut any_calls(10, 13));
    Connection::open(&alone).unwrap().pragma_update(None, "journal_mode", "WAL").unwrap();
    // As a killed run leaves it.
    let elsewhere = tempfile::tempdir().unwrap();
    let source = elsewhere.path().join("run.db");
    let mut writer = create(&source);
    writer.write_calls(&mut any_calls(10, 13)).unwrap();
    writer.commit().unwrap();
    for (end, name) in [("", "killed"), ("-wal", "killed"), ("-shm", "killed"), ("", "torn"), ("-wal", "torn")] {
        let from = elsewhere.path().join(format!("run.db{end}"));
        fs::copy(from, disk.path().join(format!("{name}.db{end}"))).unwrap();
    }
    disk.make_read_only();
    for path in [closed, alone, disk.path().join("killed.db")] {
        let reader = Reader::open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert!(number(&reader, "SELECT COUNT(*) FROM events") > 0, "{}", path.display());
    }
    // Reading it without its -wal would be reading half of it.
    assert!(matches!(refusal(&disk.path().join("torn.db")), Error::CannotRead { .. }));
}

/// Reads everything there is; any outcome but a panic will do.
fn read_all(path: &Path) {
    let Ok(reader) = Reader::open(path) else {
        return;
    };
    let _ = (reader.session(), reader.op_totals(), reader.loss(), reader.processes(), reader.libraries());
    let _ = (reader.facts(0, None), reader.op_totals_by_process(0, None), reader.ledger(), reader.stack_text(&[0, 1]));
    let _ = reader.replay(0, None, |_| ControlFlow::Continue(()));
    for view in gpuwhy_store::schema::VIEWS {
        let _ = ask(&reader, &format!("SELECT * FROM {view}"));
    }
}

#[test]
fn damage_anywhere_is_an_error_at_worst() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    write(&path, &mut any_calls(3_000, 14));
    let whole = fs::read(&path).unwrap();
    let mut dice = Dice(15);
    for round in 0..150 {
        let mut bytes = whole.clone();
        for _ in 0..1 + dice.below(20) {
            // Every third round hits the first page, where the schema and the file's marks are.
            let span = if round % 3 == 0 { 4096 } else { bytes.len() as u64 };
            let at = dice.below(span) as usize;
            bytes[at] ^= 1 << dice.below(8);
        }
        if round % 5 == 0 {
            bytes.truncate(dice.below(whole.len() as u64) as usize);
        }
        fs::write(&path, &bytes).unwrap();
        read_all(&path);
        let _ = add_findings(&path, 0, 1, 2, &[crate::findings::finding()]);
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error =
        Reader::open(&path).and_then(|reader| reader.op_totals().and(ask(&reader, "SELECT COUNT(*) FROM call_")));
    assert!(matches!(error, Err(Error::Corrupt { .. })), "{error:?}");
    let error = Reader::open(&path).and_then(|reader| reader.replay(0, None, |_| ControlFlow::Continue(())));
    assert!(matches!(error, Err(Error::Corrupt { .. })), "{error:?}");
}
