// SPDX-License-Identifier: Apache-2.0
//! Findings in the run file: added when a run is explained, after or during the recording.
//!
//! Findings are only added, one answer at a time; giving the same answer twice changes nothing.

use crate::pending::stored;
use crate::reader::{check_marks, read_error};
use crate::{Error, Result, schema, side_files};
use gpuwhy_model::{Finding, Fix, Link, units};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, params};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Retry interval and count while a gpuwhy writes the file: 10 s in total. Its transactions follow each other closely,
/// so SQLite's own busy handler, whose waits grow longer, would miss the gaps.
const RETRY: Duration = Duration::from_millis(2);
const RETRIES: i32 = 5_000;

/// Adds findings about the time range `from_ns` to `to_ns`, found at `detected_at_ns` (all in nanoseconds from the
/// start of the run), to a finished or growing run file. Adds nothing if the newest answer about that range is
/// identical. Returns how many were added. Upgrades a file of an earlier version. Only the owner of a file can add to
/// it.
pub fn add_findings(path: &Path, from_ns: u64, to_ns: u64, detected_at_ns: u64, findings: &[Finding]) -> Result<usize> {
    let Ok(found) = fs::metadata(path) else { return Err(Error::NotFound { path: path.into() }) };
    // SAFETY: asks for a number.
    if found.uid() != unsafe { libc::geteuid() } {
        return Err(Error::NotYours { path: path.into() });
    }
    side_files::check(path)?;
    let _journal = side_files::take_journal(&fs::canonicalize(path).unwrap_or_else(|_| path.into()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags).map_err(|source| read_error(path, source))?;
    db.busy_handler(Some(wait_a_moment)).map_err(|source| read_error(path, source))?;
    check_marks(&db, path)?;
    let added = add(&mut db, [from_ns, to_ns, detected_at_ns].map(stored), findings);
    added.map_err(|source| write_error(path, source))
}

fn wait_a_moment(tried: i32) -> bool {
    std::thread::sleep(RETRY);
    tried < RETRIES
}

fn add(db: &mut Connection, times: [i64; 3], findings: &[Finding]) -> rusqlite::Result<usize> {
    // The file may be anybody's: nothing in its schema is to act on its own.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    // Folding the -wal in is its writer's work; what a killed one left is folded in on closing.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    schema::upgrade(&transaction)?;
    let [from, to, detected_at] = times;
    let (newest, known) = newest_answer(&transaction, from, to)?;
    let answer: Vec<String> = findings.iter().map(json).collect::<rusqlite::Result<_>>()?;
    let added = if answer == known { 0 } else { findings.len() };
    // Answers are distinguished by their time.
    let times = [from, to, newest.map_or(detected_at, |newest| detected_at.max(newest.saturating_add(1)))];
    for (finding, json) in findings.iter().zip(&answer).take(added) {
        insert(&transaction, times, finding, json)?;
    }
    transaction.commit()?;
    Ok(added)
}

/// When the newest answer about a span was made, and its findings.
fn newest_answer(db: &Connection, from: i64, to: i64) -> rusqlite::Result<(Option<i64>, Vec<String>)> {
    let sql = "SELECT MAX(detected_at) FROM causal_chain_ WHERE from_ns = ?1 AND to_ns = ?2";
    let newest: Option<i64> = db.query_row(sql, [from, to], |row| row.get(0))?;
    let mut statement = db.prepare(
        "SELECT finding FROM causal_chain_ WHERE from_ns = ?1 AND to_ns = ?2 AND detected_at = ?3 ORDER BY id",
    )?;
    let known = statement.query_map(params![from, to, newest], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok((newest, known))
}

/// A finding as it is stored.
pub(crate) fn json(finding: &Finding) -> rusqlite::Result<String> {
    serde_json::to_string(finding).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

/// Stores a finding: about the time from the first to the second of `times`, made at the third.
pub(crate) fn insert(db: &Connection, times: [i64; 3], finding: &Finding, json: &str) -> rusqlite::Result<usize> {
    let [from, to, detected_at] = times;
    db.prepare_cached(
        "INSERT INTO causal_chain_ (detected_at, severity, kind, summary, root_cause, explanation, recommendations,
             pid, tid, lost_ns, from_ns, to_ns, finding)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?
    .execute(params![
        detected_at,
        finding.severity.label().to_ascii_lowercase(),
        finding.kind,
        finding.headline(),
        with_line(&finding.root_cause.detail, finding.root_cause.line.as_deref()),
        lines(&finding.chain, "\n← ", Link::sentence),
        lines(&finding.fixes, "\n", fix),
        finding.pid,
        finding.tid,
        stored(finding.lost_ns),
        from,
        to,
        json
    ])
}

fn lines<T>(of: &[T], between: &str, line: impl Fn(&T) -> String) -> String {
    of.iter().map(line).collect::<Vec<_>>().join(between)
}

fn fix(fix: &Fix) -> String {
    let saves = [(fix.saves_ns, units::time as fn(u64) -> String), (fix.saves_bytes, units::bytes)];
    let saves: Vec<String> = saves.into_iter().filter(|(n, _)| *n > 0).map(|(n, text)| text(n)).collect();
    if saves.is_empty() { fix.text.clone() } else { format!("{}: saves up to {}", fix.text, saves.join(" and ")) }
}

fn with_line(text: &str, line: Option<&str>) -> String {
    line.map_or_else(|| text.to_owned(), |line| format!("{text} ({line})"))
}

fn write_error(path: &Path, source: rusqlite::Error) -> Error {
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => read_error(path, source),
        _ => Error::CannotAdd { path: path.into(), source },
    }
}
