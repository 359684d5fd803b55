// SPDX-License-Identifier: Apache-2.0
//! What a run file looks like: its marks, tables and views, and the vocabulary written into each.
//!
//! `schema.sql` and `host.sql` hold the base tables; `calls.sql` (with `switches.sql` and `tensors.sql`), `views.sql` and
//! `host_views.sql` the public interface; `told.sql` has both of what libraries tell beside their calls, `findings.sql` of
//! what analysis adds, `merge.sql` of which runs a file was made, `alerts.sql` of what people were alerted of,
//! `source_lines.sql` of lines of source. `governor.sql` has the view of a table in `told.sql`.

use gpuwhy_model::ops::{self, Class};
use gpuwhy_model::{LossCause, OpId};
use rusqlite::{Connection, params};

/// `PRAGMA application_id` of a run file: "gpuy" in ASCII.
pub const APPLICATION_ID: i32 = 0x6770_7579;

/// `PRAGMA user_version`: the version of the run file's format that this gpuwhy writes; it reads every one up to it.
///
/// 1: the first. 2: `ledger`, and whole findings in `causal_chains`. 3: what libraries tell beside their calls; rows may
/// stand for others, `thinned` and `max_size` in `sessions`. 4: `merged`, and `input` in
/// `system_seconds` and `governor`. 5: `alerts`. 6: `source_lines`, and `pid` in
/// `governor`.
pub const VERSION: i32 = 6;

/// The public views, in the order people meet them.
pub const VIEWS: [&str; 36] = [
    "events",
    "inner_events",
    "process_names",
    "processes",
    "threads",
    "ops",
    "sessions",
    "seconds",
    "loss",
    "off_cpu",
    "thread_time",
    "cpu_waits",
    "cpu_held",
    "cpu_runs",
    "system_seconds",
    "process_seconds",
    "cgroup_seconds",
    "gpu_seconds",
    "gpu_busy",
    "gpu_processes",
    "gpu_errors",
    "gpus",
    "libraries",
    "stack_traces",
    "source_lines",
    "allocations",
    "collectives",
    "communicators",
    "graphs",
    "functions",
    "unwatched",
    "governor",
    "ledger",
    "causal_chains",
    "alerts",
    "merged",
];

/// Makes an empty database a run file, all or nothing.
pub(crate) fn create(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", VERSION)?;
    db.execute_batch(include_str!("schema.sql"))?;
    db.execute_batch(include_str!("host.sql"))?;
    db.execute_batch(include_str!("told.sql"))?;
    create_events(db)?;
    db.execute_batch(include_str!("views.sql"))?;
    db.execute_batch(include_str!("sessions.sql"))?;
    db.execute_batch(include_str!("host_views.sql"))?;
    db.execute_batch(include_str!("findings.sql"))?;
    db.execute_batch(include_str!("merge.sql"))?;
    db.execute_batch(include_str!("governor.sql"))?;
    db.execute_batch(include_str!("alerts.sql"))?;
    db.execute_batch(include_str!("source_lines.sql"))?;
    for op in ops::table() {
        insert_op(db, op.id)?;
    }
    for cause in LossCause::ALL {
        db.execute(
            "INSERT INTO cause_ (id, name, loses_event) VALUES (?1, ?2, ?3)",
            params![cause as u8, cause.name(), cause.loses_event()],
        )?;
    }
    Ok(())
}

/// The views of events.
fn create_events(db: &Connection) -> rusqlite::Result<()> {
    let others = concat!(include_str!("switches.sql"), include_str!("tensors.sql"));
    for (view, inner, rest) in [("events", "0", others), ("inner_events", "1", "")] {
        let calls = include_str!("calls.sql").replace("$VIEW", view).replace("$INNER", inner).replace("$REST", rest);
        db.execute_batch(&calls)?;
    }
    Ok(())
}

/// Makes a file of an earlier version one of this, inside the open transaction. What is in it stays.
pub(crate) fn upgrade(db: &Connection) -> rusqlite::Result<()> {
    let version: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version >= VERSION {
        return Ok(());
    }
    if version < 2 {
        db.execute_batch(include_str!("upgrade_2.sql"))?;
        db.execute_batch(include_str!("findings.sql"))?;
    }
    if version < 3 {
        db.execute_batch(include_str!("told.sql"))?;
        db.execute_batch("DROP VIEW events; DROP VIEW inner_events")?;
        create_events(db)?;
        db.execute_batch(include_str!("upgrade_3.sql"))?;
        db.execute_batch(include_str!("sessions.sql"))?;
    } else {
        if version < 4 {
            db.execute_batch("ALTER TABLE governor_ ADD COLUMN input INTEGER NOT NULL DEFAULT 0")?;
        }
        db.execute_batch("DROP VIEW governor; ALTER TABLE governor_ ADD COLUMN pid INTEGER")?;
    }
    db.execute_batch(include_str!("governor.sql"))?;
    if version < 4 {
        db.execute_batch(include_str!("upgrade_4.sql"))?;
        db.execute_batch(include_str!("merge.sql"))?;
    }
    if version < 5 {
        db.execute_batch(include_str!("alerts.sql"))?;
    }
    db.execute_batch(include_str!("source_lines.sql"))?;
    db.pragma_update(None, "user_version", VERSION)
}

/// Writes one function's row. An id without one in this gpuwhy's table gets a row that says so, because a
/// call must not vanish from the views for want of a name.
pub(crate) fn insert_op(db: &Connection, id: OpId) -> rusqlite::Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT OR IGNORE INTO op_ (id, name, function, layer, class, arg0_is_bytes, arg1_is_direction, arg0, arg1)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    match id.get() {
        Some(op) => {
            let (arg0, arg1) = op.decode.meaning();
            insert.execute(params![
                id.0,
                op.name,
                op.function,
                op.library.name(),
                op.class.name(),
                op.decode.arg0_is_bytes(),
                op.class == Class::Copy,
                arg0,
                arg1
            ])?
        }
        None => {
            let name = format!("op {}", id.0);
            insert.execute(params![id.0, name, name, "unknown", "unknown", false, false, "", ""])?
        }
    };
    Ok(())
}
