// SPDX-License-Identifier: Apache-2.0
//! What a query may take of memory and disk. Limits are the process's, so these tests have one of their own.
#![allow(missing_docs, clippy::unwrap_used)]

use gpuwhy_store::{Error, Limits, NewRun, Reader, RunEnd, Writer, limit_memory};
use std::ops::ControlFlow;
use std::time::Duration;

/// Temporary files on a disk: they have no name, or one that was removed.
fn temporary_files() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    names.filter(|name| name.starts_with("/") && name.to_string_lossy().ends_with(" (deleted)")).count()
}

#[test]
fn what_is_sorted_is_bounded_and_never_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    Writer::create(&path, &NewRun::default()).unwrap().writer.finish(&RunEnd::default());
    let reader = Reader::open(&path).unwrap();
    limit_memory(400 << 20);
    let limits = Limits { time: Duration::from_secs(600), ..Limits::default() };
    // More than SQLite's cache of 64 MiB, and less than half of the limit.
    let sorted = |bytes: u32| {
        let rows = bytes / 1_000;
        format!(
            "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {rows}) \
             SELECT x FROM n ORDER BY randomblob(980)"
        )
    };
    let mut seen = None;
    let outcome = reader.query(&sorted(130_000_000), &limits, |_, _| {
        seen.get_or_insert_with(temporary_files);
        ControlFlow::Continue(())
    });
    assert_eq!((outcome.unwrap().rows, seen), (130_000, Some(0)));
    let forms = [
        sorted(400_000_000),
        format!(
            "SELECT COUNT(*), MAX(y) FROM (SELECT DISTINCT x || randomblob(900) AS y FROM ({}))",
            sorted(400_000_000)
        ),
        format!("SELECT x, COUNT(*) OVER (PARTITION BY x % 3) FROM ({})", sorted(400_000_000)),
    ];
    for sql in forms {
        let wanted = reader.query(&sql, &limits, |_, _| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(wanted, Error::TooMuchMemory), "{sql}: {wanted}");
    }
    let outcome = reader.query("SELECT 1", &limits, |_, _| ControlFlow::Continue(()));
    assert_eq!(outcome.unwrap().rows, 1, "the next query is asked as ever");
}
