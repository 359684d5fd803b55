// SPDX-License-Identifier: Apache-2.0
//! The runs to be merged: opened so that nothing in them can act, checked, and measured for what their numbers become.

use super::tables::{EVENTS, Ids, TABLES};
use crate::guarded::Guard;
use crate::pending::Machine;
use crate::place;
use crate::reader::{check_marks, open_read_only, read_error};
use crate::{Error, Result};
use rusqlite::{Connection, OptionalExtension, Row};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The numbers of processes and threads that one recorded run takes: more than Linux gives (its largest `pid_max`).
pub(crate) const PIDS: i64 = 1 << 22;
/// Recorded runs in one file: a process's number stays below 2^32.
const MAX_RUNS: i64 = 1 << 10;
/// CPUs of all runs together: a row has 16 bits for one.
const MAX_CPUS: i64 = 1 << 16;
/// GPUs of one run.
const MAX_GPUS: i64 = 1 << 16;
/// Ids of all runs together.
const MAX_IDS: i64 = 1 << 62;
/// Page cache per run; negative means KiB in SQLite. Small, because runs are read sequentially.
const CACHE: i32 = -4_096;

/// The run as its file has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Session {
    pub(crate) start_unix_ns: i64,
    pub(crate) start_monotonic_ns: i64,
    pub(crate) stop_unix_ns: Option<i64>,
    pub(crate) duration_ns: i64,
    pub(crate) stop_reason: Option<String>,
    pub(crate) command: Option<String>,
    pub(crate) machine: Machine,
    /// Seen, stored, lost, missing in seconds, samples missing, thinned.
    pub(crate) counts: [i64; 6],
}

/// How a run's ids change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IdShift {
    /// Added to each.
    pub(crate) offset: i64,
    /// The largest there is.
    pub(crate) last: i64,
}

/// The offsets added to a run's ids, and the limits of the ids.
#[derive(Debug, Default)]
pub(crate) struct Shift {
    /// Recorded runs before this one, and in it.
    pub(crate) slot: i64,
    pub(crate) slots: i64,
    pub(crate) clock_ns: i64,
    pub(crate) cpu_offset: i64,
    pub(crate) cpus: i64,
    pub(crate) gpu_offset: i64,
    pub(crate) gpus: i64,
    pub(crate) ids: [IdShift; Ids::ALL.len()],
    /// The op and the cause of loss each of the run's own is in the result.
    pub(crate) ops: HashMap<i64, i64>,
    pub(crate) causes: HashMap<i64, i64>,
}

impl Shift {
    pub(crate) fn pid_offset(&self) -> i64 {
        self.slot * PIDS
    }
}

/// A run to be merged, open for reading.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) db: Connection,
    pub(crate) version: i32,
    pub(crate) session: Session,
    pub(crate) shift: Shift,
}

impl Input {
    /// Opens a snapshot of a run: later writes are not seen.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let refuse = |what: &str| Error::CannotMerge { path: path.into(), what: what.into() };
        match place::is_written(path) {
            Ok(true) => return Err(refuse("it is still being recorded; wait for that gpuwhy to end")),
            Err(e) => return Err(refuse(&e.to_string())),
            Ok(false) => {}
        }
        let mut db = open_read_only(path).map_err(|error| match error {
            Error::NotSqlite { .. } => refuse("it is not a run file (not an SQLite database)"),
            Error::NotARun { .. } => refuse("it is an SQLite database, but not a gpuwhy run file"),
            other => other,
        })?;
        let failed = |source| read_error(path, source);
        // Before the guard, which refuses transactions.
        db.execute_batch("BEGIN").map_err(failed)?;
        Guard::install(&mut db, CACHE).map_err(failed)?;
        let version = check_marks(&db, path)?;
        let mut input = Self { path: path.into(), db, version, session: Session::default(), shift: Shift::default() };
        input.check_tables()?;
        input.session = input.read_session().map_err(failed)?;
        if input.session.start_unix_ns < 0 {
            return Err(input.refuse("its start time is invalid".into()));
        }
        Ok(input)
    }

    /// An error about what is in this file.
    pub(crate) fn refuse(&self, what: String) -> Error {
        Error::CannotMerge { path: self.path.clone(), what }
    }

    /// What SQLite said about this file.
    pub(crate) fn failed(&self, source: rusqlite::Error) -> Error {
        read_error(&self.path, source)
    }

    /// Whether a table of that first version is in the file.
    pub(crate) fn has(&self, since: i32) -> bool {
        self.version >= since
    }

    /// Only plain tables are read: a view, a virtual table or a computed column could do more than hold values.
    fn check_tables(&self) -> Result<()> {
        let mut names = vec!["session_", "op_", "cause_", "causal_chain_"];
        names.extend(EVENTS.iter().chain(&TABLES).filter(|table| self.has(table.since)).map(|table| table.name));
        names.extend(self.has(4).then_some("merged_"));
        for name in names {
            let sql = "SELECT type = 'table' AND rootpage > 0
                AND NOT EXISTS (SELECT 1 FROM pragma_table_xinfo(?1) WHERE hidden <> 0)
                FROM sqlite_schema WHERE name = ?1";
            let plain = self.db.query_row(sql, [name], |row| row.get(0)).optional();
            if !plain.map_err(|source| self.failed(source))?.unwrap_or(false) {
                return Err(self.refuse(format!("its {name} is not a plain table, so gpuwhy did not write this file")));
            }
        }
        Ok(())
    }

    fn read_session(&self) -> rusqlite::Result<Session> {
        let thinned = if self.has(3) { "thinned" } else { "0" };
        let sql = format!(
            "SELECT start_unix_ns, start_monotonic_ns, stop_unix_ns, COALESCE(duration_ns,
                 (SELECT MAX(start) FROM call_), 0), COALESCE(duration_ns, (SELECT MAX(start) FROM off_), 0),
                 stop_reason, command, gpu, driver, cuda, cpu, cores, memory_bytes, kernel, python,
                 events_seen, events_stored, events_lost, seconds_missing, samples_missing, {thinned} FROM session_"
        );
        self.db.query_row(&sql, [], session)
    }

    /// One number of this file.
    pub(crate) fn number(&self, sql: &str) -> Result<i64> {
        let number = self.db.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
        Ok(number.map_err(|source| self.failed(source))?.unwrap_or(0))
    }

    /// How many recorded runs are in it: a merged file can be merged again.
    fn runs(&self) -> Result<i64> {
        if !self.has(4) {
            return Ok(1);
        }
        let last = self.number("SELECT MAX(input) FROM merged_")?;
        if (0..MAX_RUNS).contains(&last) { Ok(last + 1) } else { Err(self.refuse(format!("it has a run {last}"))) }
    }

    /// The largest number of a CPU, and of a GPU.
    fn largest(&self) -> Result<(i64, i64)> {
        let cpu = self.number(
            "SELECT MAX(last) FROM (SELECT MAX(cpu) AS last FROM cpu_run_ UNION ALL SELECT MAX(cpu) FROM moved_wait_
                 UNION ALL SELECT MAX(MAX(cpus & 65535, (cpus >> 16) - 1)) FROM off_)",
        )?;
        let gpu = self.number(
            "SELECT MAX(last) FROM (SELECT MAX(gpu) AS last FROM gpu_ UNION ALL SELECT MAX(gpu) FROM gpu_second_
                 UNION ALL SELECT MAX(gpu) FROM gpu_busy_ UNION ALL SELECT MAX(gpu) FROM gpu_process_
                 UNION ALL SELECT MAX(gpu) FROM gpu_error_)",
        )?;
        if !(0..MAX_CPUS).contains(&cpu) || !(0..MAX_GPUS).contains(&gpu) {
            return Err(self.refuse(format!("it has a CPU {cpu} or a GPU {gpu}")));
        }
        Ok((cpu, gpu))
    }
}

fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let count = |column: usize| row.get::<_, i64>(column).map(|n| n.max(0));
    Ok(Session {
        start_unix_ns: row.get(0)?,
        start_monotonic_ns: row.get(1)?,
        stop_unix_ns: row.get(2)?,
        duration_ns: count(3)?.max(count(4)?),
        stop_reason: row.get(5)?,
        command: row.get(6)?,
        machine: Machine {
            gpu: row.get(7)?,
            driver: row.get(8)?,
            cuda: row.get(9)?,
            cpu: row.get(10)?,
            cores: row.get(11)?,
            memory_bytes: row.get::<_, Option<i64>>(12)?.map(|n| n.max(0).cast_unsigned()),
            kernel: row.get(13)?,
            python: row.get(14)?,
        },
        counts: [count(15)?, count(16)?, count(17)?, count(18)?, count(19)?, count(20)?],
    })
}

/// Opens all runs and assigns their offsets.
pub(crate) fn open_all(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let mut known: HashMap<(u64, u64), &PathBuf> = HashMap::new();
    for path in paths {
        let refuse = |what: String| Error::CannotMerge { path: path.clone(), what };
        let found = std::fs::metadata(path).map_err(|e| refuse(e.to_string()))?;
        // Opening a pipe would block forever.
        if !found.is_file() {
            return Err(refuse("it is not a regular file".into()));
        }
        if let Some(same) = known.insert((found.dev(), found.ino()), path) {
            return Err(refuse(format!("it is the same file as {}", same.display())));
        }
    }
    let mut inputs = paths.iter().map(|path| Input::open(path)).collect::<Result<Vec<_>>>()?;
    let begin = inputs.iter().map(|input| input.session.start_unix_ns).min().unwrap_or(0);
    let mut before = Shift::default();
    for input in &mut inputs {
        let shift = next_shift(input, &before, begin)?;
        input.shift = shift;
        before = Shift { ids: input.shift.ids, ..Shift::default() };
        before.slot = input.shift.slot + input.shift.slots;
        before.cpu_offset = input.shift.cpu_offset + input.shift.cpus;
        before.gpu_offset = input.shift.gpu_offset + input.shift.gpus;
    }
    Ok(inputs)
}

/// The offsets for a run that follows runs ending at `before`.
fn next_shift(input: &Input, before: &Shift, begin: i64) -> Result<Shift> {
    let (cpu, gpu) = input.largest()?;
    let mut shift = Shift {
        slot: before.slot,
        slots: input.runs()?,
        // Both are at least 0.
        clock_ns: input.session.start_unix_ns - begin,
        cpu_offset: before.cpu_offset,
        cpus: cpu + 1,
        gpu_offset: before.gpu_offset,
        gpus: gpu + 1,
        ..Shift::default()
    };
    if shift.slot + shift.slots > MAX_RUNS {
        return Err(input.refuse(format!("one file holds at most {MAX_RUNS} runs")));
    }
    if shift.cpu_offset + shift.cpus > MAX_CPUS {
        return Err(input.refuse(format!("one file holds at most {MAX_CPUS} CPUs")));
    }
    for (place, ids) in Ids::ALL.into_iter().enumerate() {
        let name = ids.table();
        let (first, last) = (
            input.number(&format!("SELECT MIN(id) FROM {name}"))?,
            input.number(&format!("SELECT MAX(id) FROM {name}"))?,
        );
        let offset = before.ids[place].offset + before.ids[place].last;
        if first < 0 || last > MAX_IDS - offset {
            return Err(input.refuse(format!("{name} has ids from {first} to {last}")));
        }
        shift.ids[place] = IdShift { offset, last };
    }
    Ok(shift)
}
