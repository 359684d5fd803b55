// SPDX-License-Identifier: Apache-2.0
//! SQL from outside, made harmless by SQLite's own means.
//!
//! Six locks, each enough against most of what could be tried: the file is open read-only; an authorizer
//! lets through nothing but reading; the schema is not trusted; no database can be attached; one statement
//! at a time, and only if SQLite calls it read-only; and time, memory, rows and the size of values are bounded.
//!
//! The clock is looked at every so many steps of SQLite's machine, and whenever a temporary file is read or written
//! (`scratch`): a sort is one step, however long it takes.

use crate::{Error, Reader, Result, schema, scratch};
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest text or blob a query may make, bytes.
const MAX_VALUE: i32 = 64 << 20;
/// The longest statement, bytes.
const MAX_SQL: i32 = 1 << 20;
/// The clock is looked at every so many steps of SQLite's machine: about every 50 µs.
const STEPS_BETWEEN_LOOKS: i32 = 1_000;
/// Memory for pages and for sorting in KiB, as a negative number (SQLite's way to say KiB).
pub(crate) const CACHE: i32 = -65_536;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// Pragmas that only read, whatever their argument.
const TELLING_PRAGMAS: [&str; 12] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "function_list",
    "module_list",
    "pragma_list",
    "compile_options",
    "database_list",
    "collation_list",
];
/// Pragmas that read without an argument and write with one.
const TELLING_WITHOUT_ARGUMENT: [&str; 6] =
    ["application_id", "user_version", "schema_version", "page_count", "page_size", "encoding"];

/// Limits SQLite's memory in this process, bytes, for all readers together: half for sorting and temporary data, half
/// for the rest. A query that needs more fails with [`Error::TooMuchMemory`]; others continue.
pub fn limit_memory(most: u64) {
    scratch::limit(most / 2);
    let limit = i64::try_from(most.div_ceil(2)).unwrap_or(i64::MAX);
    // The limit applies to the process, whichever connection sets it. Failing to open an in-memory database is ignored.
    let _ = Connection::open_in_memory().and_then(|db| db.pragma_update(None, "hard_heap_limit", limit));
}

/// How much a query may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time to work on it, the caller's work on the rows included; what [`Reader::off_the_clock`] does is not.
    pub time: Duration,
    /// Maximum rows; the query stops after these and sets [`Outcome::more`].
    pub rows: u64,
    /// The largest text or blob it may make, bytes. The clock is not looked at inside a function, and some take a time
    /// that grows with the square of this: searching 64 MB for 32 MB takes days.
    pub value: i32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), rows: u64::MAX, value: MAX_VALUE }
    }
}

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// SQL's NULL.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(Cow<'a, str>),
    /// Bytes.
    Blob(&'a [u8]),
}

/// How a query ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows handed over.
    pub rows: u64,
    /// Whether there were more than [`Limits::rows`].
    pub more: bool,
}

/// The state SQLite's callbacks share with [`Reader::query`].
#[derive(Debug)]
pub(crate) struct Guard {
    opened: Instant,
    /// Nanoseconds after `opened`.
    deadline: AtomicU64,
    /// The last action the authorizer refused.
    refused: Mutex<Option<String>>,
}

impl Guard {
    /// Locks a connection down for good; `cache` is as [`CACHE`].
    pub(crate) fn install(db: &mut Connection, cache: i32) -> rusqlite::Result<Arc<Self>> {
        db.pragma_update(None, "cache_size", cache)?;
        for (setting, value) in [
            (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        ] {
            db.set_db_config(setting, value)?;
        }
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_SQL),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
        ] {
            db.set_limit(limit, value)?;
        }
        let guard =
            Arc::new(Self { opened: Instant::now(), deadline: AtomicU64::new(NEVER), refused: Mutex::new(None) });
        let watch = Arc::clone(&guard);
        db.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || watch.is_late()))?;
        let gate = Arc::clone(&guard);
        db.authorizer(Some(move |context: AuthContext<'_>| gate.judge(context.action)))?;
        Ok(guard)
    }

    /// Whatever is asked, from now on.
    pub(crate) fn give_up_after(&self, time: Duration) {
        let allowed = u64::try_from(time.as_nanos()).unwrap_or(NEVER);
        self.deadline.store(self.now().saturating_add(allowed), Ordering::Relaxed);
    }

    /// When a question fails; `None` if it never does.
    fn deadline(&self) -> Option<Instant> {
        let deadline = self.deadline.load(Ordering::Relaxed);
        (deadline != NEVER).then(|| self.opened.checked_add(Duration::from_nanos(deadline))).flatten()
    }

    fn is_late(&self) -> bool {
        self.now() > self.deadline.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(NEVER - 1)
    }

    fn judge(&self, action: AuthAction<'_>) -> Authorization {
        match refusal(action) {
            None => Authorization::Allow,
            Some(what) => {
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
                Authorization::Deny
            }
        }
    }
}

/// `None` for what only reads; otherwise what it would do.
fn refusal(action: AuthAction<'_>) -> Option<String> {
    let named = |list: &[&str], name: &str| list.iter().any(|known| known.eq_ignore_ascii_case(name));
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name } => {
            named(&["load_extension", "fts3_tokenizer", "edit", "readfile", "writefile"], function_name)
                .then(|| format!("the function {function_name}"))
        }
        AuthAction::Pragma { pragma_name, pragma_value } => {
            let harmless = named(&TELLING_PRAGMAS, pragma_name)
                || pragma_value.is_none() && named(&TELLING_WITHOUT_ARGUMENT, pragma_name);
            (!harmless).then(|| format!("PRAGMA {pragma_name}"))
        }
        AuthAction::Insert { .. } => Some("INSERT".into()),
        AuthAction::Update { .. } => Some("UPDATE".into()),
        AuthAction::Delete { .. } => Some("DELETE".into()),
        AuthAction::Attach { .. } => Some("ATTACH".into()),
        AuthAction::Detach { .. } => Some("DETACH".into()),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some("a transaction".into()),
        _ => Some("changing the schema".into()),
    }
}

impl Reader {
    /// Runs one SELECT (or EXPLAIN, or a PRAGMA that only reads) and passes each row, with the column names, to
    /// `on_row`, which may stop.
    pub fn query<F>(&self, sql: &str, limits: &Limits, on_row: F) -> Result<Outcome>
    where
        F: FnMut(&[String], &[Value<'_>]) -> ControlFlow<()>,
    {
        self.query_with(sql, &[], limits, on_row)
    }

    /// The same with values for named parameters (`:from_ns`). Parameters that the statement does not use are ignored.
    pub fn query_with<F>(&self, sql: &str, values: &[(&str, i64)], limits: &Limits, on_row: F) -> Result<Outcome>
    where
        F: FnMut(&[String], &[Value<'_>]) -> ControlFlow<()>,
    {
        let guard = &self.guard;
        guard.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let allowed = u64::try_from(limits.time.as_nanos()).unwrap_or(NEVER);
        let before = guard.deadline.load(Ordering::Relaxed);
        guard.deadline.store(guard.now().saturating_add(allowed).min(before), Ordering::Relaxed);
        let value =
            |most: i32| self.db.set_limit(Limit::SQLITE_LIMIT_LENGTH, most).map_err(|source| self.error(source));
        value(limits.value.min(MAX_VALUE))?;
        let outer = scratch::fail_after(guard.deadline());
        let outcome = self.run(sql, values, limits, on_row);
        scratch::fail_after(outer);
        guard.deadline.store(before, Ordering::Relaxed);
        value(MAX_VALUE)?;
        outcome
    }

    /// Runs work whose time does not count against the query's limit, such as waiting for a pager to read the output.
    pub fn off_the_clock<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.guard.now();
        let done = work();
        let taken = self.guard.now() - before;
        let deadline = self.guard.deadline.load(Ordering::Relaxed);
        self.guard.deadline.store(deadline.saturating_add(taken), Ordering::Relaxed);
        scratch::fail_after(self.guard.deadline());
        done
    }

    fn run<F>(&self, sql: &str, values: &[(&str, i64)], limits: &Limits, mut on_row: F) -> Result<Outcome>
    where
        F: FnMut(&[String], &[Value<'_>]) -> ControlFlow<()>,
    {
        let explain = |source| self.query_error(source, sql, limits);
        let mut statement = self.db.prepare(sql).map_err(explain)?;
        check(&statement)?;
        for (name, value) in values {
            if let Some(place) = statement.parameter_index(name).map_err(explain)? {
                statement.raw_bind_parameter(place, value).map_err(explain)?;
            }
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let (mut count, mut more) = (0, false);
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(explain)? {
            if count == limits.rows {
                more = true;
                break;
            }
            count += 1;
            let values: Vec<Value<'_>> = (0..columns.len())
                .map(|i| row.get_ref(i).map(value))
                .collect::<rusqlite::Result<_>>()
                .map_err(explain)?;
            if on_row(&columns, &values).is_break() {
                break;
            }
            // SQLite checks the clock only every so many steps, and a row may take few steps.
            if self.guard.is_late() {
                return Err(Error::TimedOut { limit: limits.time });
            }
        }
        Ok(Outcome { columns, rows: count, more })
    }

    fn query_error(&self, source: rusqlite::Error, sql: &str, limits: &Limits) -> Error {
        match source.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => return Error::TimedOut { limit: limits.time },
            Some(ErrorCode::AuthorizationForStatementDenied) => {
                let what = self.guard.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                return Error::Refused { what: what.unwrap_or_else(|| "this".into()) };
            }
            Some(ErrorCode::OutOfMemory | ErrorCode::DiskFull) => return Error::TooMuchMemory,
            Some(ErrorCode::ReadOnly) => {
                return Error::Refused { what: "writing".into() };
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::DatabaseBusy | ErrorCode::SystemIoFailure) => {
                return self.error(source);
            }
            _ => {}
        }
        let message = match source {
            rusqlite::Error::MultipleStatement => return Error::NotOneStatement { many: true },
            rusqlite::Error::SqliteFailure(_, Some(message)) => message,
            rusqlite::Error::SqlInputError { msg, .. } => msg,
            other => other.to_string(),
        };
        let hint = self.hint(&message, sql);
        Error::Sql { message: overflow_in_sum(&message, sql).unwrap_or(message), hint }
    }

    /// The existing views or columns, for an error about a missing one.
    fn hint(&self, message: &str, sql: &str) -> Option<String> {
        if message.starts_with("no such table") {
            return Some(format!("the run file has {}", schema::VIEWS.join(", ")));
        }
        if !message.starts_with("no such column") {
            return None;
        }
        let meant: Vec<String> = schema::VIEWS
            .iter()
            .filter(|view| sql.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == **view))
            .filter_map(|view| Some(format!("{view} has {}", self.columns_of(view).ok()?.join(", "))))
            .collect();
        (!meant.is_empty()).then(|| meant.join("; "))
    }

    fn columns_of(&self, view: &str) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.db.prepare("SELECT name FROM pragma_table_info(?1)")?;
        statement.query_map([view], |row| row.get(0))?.collect()
    }
}

/// Advice for a SUM() that does not fit into 64 bits, for example of addresses.
fn overflow_in_sum(message: &str, sql: &str) -> Option<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let sums = sql.split(|c: char| !is_word(c)).any(|word| word.eq_ignore_ascii_case("sum"));
    (message == "integer overflow" && sums)
        .then(|| "SQLite: integer overflow in SUM(); use TOTAL() for a floating-point sum".to_owned())
}

/// Refuses what compiles but is not a query: VACUUM is not read-only, and an empty statement has no columns.
fn check(statement: &Statement<'_>) -> Result<()> {
    if !statement.readonly() {
        return Err(Error::Refused { what: "writing".into() });
    }
    if statement.column_count() == 0 {
        return Err(Error::NotOneStatement { many: false });
    }
    Ok(())
}

fn value(value: ValueRef<'_>) -> Value<'_> {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(x) => Value::Real(x),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes)),
        ValueRef::Blob(bytes) => Value::Blob(bytes),
    }
}
