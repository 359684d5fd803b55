// SPDX-License-Identifier: Apache-2.0
//! The file that a merge makes: written under another name, and put in its place when it is whole.

use super::input::{Input, Session};
use crate::pending::write_machine;
use crate::place::{self, Claim, Owner};
use crate::{Error, Machine, Result, schema};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, ToSql, params, params_from_iter};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Memory for pages, KiB, negative (SQLite's way to say KiB): tables that are not in order of time are filled in
/// places.
const CACHE: i32 = -65_536;
/// Functions that a file may know: ids have 16 bits.
const MAX_WORDS: usize = 1 << 15;
/// Maximum different values listed for one fact about the machines.
const MAX_FACTS: usize = 8;

/// The file while it is made. Dropped before its end, it leaves nothing behind.
pub(crate) struct Target {
    path: PathBuf,
    // Dropped in this order: SQLite must close the file before the claim's descriptor does (see place.rs).
    db: Connection,
    claim: Claim,
    hidden: Hidden,
}

/// The name it has meanwhile: what still has it in the end is removed.
struct Hidden(Option<PathBuf>);

impl Drop for Hidden {
    fn drop(&mut self) {
        // An error in removing it would only hide the first.
        let _ = self.0.take().map(std::fs::remove_file);
    }
}

impl Target {
    /// Creates an empty file in the folder of `path`, which must not exist yet.
    pub(crate) fn create(path: &Path, owner: Option<Owner>) -> Result<Self> {
        let cannot = |source| Error::CannotPlaceMerged { path: path.into(), source };
        let name = path.file_name().ok_or_else(|| cannot(io::ErrorKind::IsADirectory.into()))?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = std::fs::canonicalize(folder).map_err(cannot)?;
        let place = folder.join(name);
        if place.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: path.into() });
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".merge-{}", std::process::id()));
        let claim = place::claim(&folder.join(hidden), owner).map_err(|error| match error {
            Error::CannotCreate { source, .. } => cannot(source),
            other => other,
        })?;
        let hidden = Hidden(Some(claim.path.clone()));
        let db = open(&claim.path).map_err(|source| Error::CannotWriteMerged { path: path.into(), source })?;
        Ok(Self { path: place, db, claim, hidden })
    }

    /// Makes it an empty run file, in a transaction that [`Target::finish`] ends.
    pub(crate) fn begin(&self) -> Result<()> {
        schema::create(self.db()).map_err(|source| self.failed(source))
    }

    pub(crate) fn db(&self) -> &Connection {
        &self.db
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        Error::CannotWriteMerged { path: self.path.clone(), source }
    }

    /// Finds what a run's functions and causes of loss are called here; those this gpuwhy does not know are added.
    pub(crate) fn know_words(&self, input: &mut Input) -> Result<()> {
        let ops = self.words(input, OPS, |row| self.op(row))?;
        let causes = self.words(input, CAUSES, |row| self.cause(row))?;
        (input.shift.ops, input.shift.causes) = (ops, causes);
        Ok(())
    }

    /// The ids that rows of a run have here.
    fn words(&self, input: &Input, sql: &str, known: impl Fn(&Row<'_>) -> Known) -> Result<HashMap<i64, i64>> {
        let mut ids = HashMap::new();
        let mut select = input.db.prepare(sql).map_err(|source| input.failed(source))?;
        let mut rows = select.raw_query();
        while let Some(row) = rows.next().map_err(|source| input.failed(source))? {
            let id = row.get(0).map_err(|source| input.failed(source))?;
            let here = known(row).map_err(|source| input.failed(source))?.map_err(|source| self.failed(source))?;
            ids.insert(id, here);
            if ids.len() > MAX_WORDS {
                return Err(input.refuse("it has more functions than one run file can hold".into()));
            }
        }
        Ok(ids)
    }

    fn op(&self, row: &Row<'_>) -> Known {
        let text = |column: usize| row.get::<_, String>(column);
        let (name, function, layer, class) = (text(1)?, text(2)?, text(3)?, text(4)?);
        let (bytes, direction): (i64, i64) = (row.get(5)?, row.get(6)?);
        let (arg0, arg1) = (text(7)?, text(8)?);
        let values = params![name, function, layer, class, bytes, direction, arg0, arg1];
        let insert = "INSERT INTO op_ (name, function, layer, class, arg0_is_bytes, arg1_is_direction, arg0, arg1)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        Ok(self.known("SELECT id FROM op_ WHERE function = ?1", &function, insert, values))
    }

    fn cause(&self, row: &Row<'_>) -> Known {
        let (name, loses): (String, i64) = (row.get(1)?, row.get(2)?);
        let insert = "INSERT INTO cause_ (name, loses_event) VALUES (?1, ?2)";
        Ok(self.known("SELECT id FROM cause_ WHERE name = ?1", &name, insert, params![name, loses]))
    }

    /// The id of what has this name; what has none is inserted.
    fn known(&self, select: &str, name: &str, insert: &str, values: &[&dyn ToSql]) -> rusqlite::Result<i64> {
        let known = self.db.prepare_cached(select)?.query_row([name], |row| row.get(0)).optional()?;
        known.map_or_else(|| self.db.prepare_cached(insert)?.insert(values), Ok)
    }

    /// Writes the run that all runs together are, and of which it was made.
    pub(crate) fn write_session(&self, inputs: &[Input], version: &str) -> Result<()> {
        let write = || -> rusqlite::Result<()> {
            insert_session(self.db(), inputs, version)?;
            let sessions: Vec<&Session> = inputs.iter().map(|input| &input.session).collect();
            write_machine(self.db(), &common_machine(&sessions))
        };
        write().map_err(|source| self.failed(source))?;
        for input in inputs {
            self.write_merged(input)?;
        }
        Ok(())
    }

    /// Says where a run's rows come from; of a merged file, where those of its runs came from.
    fn write_merged(&self, input: &Input) -> Result<()> {
        let merged = if input.has(4) { input.number("SELECT COUNT(*) FROM merged_")? } else { 0 };
        let sql = if merged == 0 { FROM_SESSION } else { FROM_MERGED };
        let (shift, session, path) = (&input.shift, &input.session, input.path.to_string_lossy());
        let values = params![
            shift.slot,
            path,
            shift.pid_offset(),
            shift.cpu_offset,
            shift.gpu_offset,
            shift.clock_ns,
            session.duration_ns,
            session.counts[5]
        ];
        let places: Vec<String> = (1..=MERGED_COLUMNS).map(|place| format!("?{place}")).collect();
        let insert = format!("INSERT INTO merged_ VALUES ({})", places.join(", "));
        let mut insert = self.db.prepare(&insert).map_err(|source| self.failed(source))?;
        let mut select = input.db.prepare(sql).map_err(|source| input.failed(source))?;
        let mut rows = select.query(values).map_err(|source| input.failed(source))?;
        while let Some(row) = rows.next().map_err(|source| input.failed(source))? {
            let row: rusqlite::Result<Vec<Value>> = (0..MERGED_COLUMNS).map(|column| row.get(column)).collect();
            let row = row.map_err(|source| input.failed(source))?;
            // A value that does not fit comes from the source file.
            insert.execute(params_from_iter(row)).map_err(|source| input.refuse(source.to_string()))?;
        }
        Ok(())
    }

    /// Closes the file and gives it its name. Its size.
    pub(crate) fn finish(self) -> Result<u64> {
        let Self { path, db, claim, mut hidden } = self;
        let ended = db.execute_batch("COMMIT").and_then(|()| db.close().map_err(|(_, source)| source));
        ended.map_err(|source| Error::CannotWriteMerged { path: path.clone(), source })?;
        let put_in_place = || -> io::Result<u64> {
            let file = File::open(&claim.path)?;
            file.sync_all()?;
            // Once more: not every file system can rename without replacing.
            if path.symlink_metadata().is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            place::rename_no_replace(&claim.path, &path)?;
            Ok(file.metadata()?.len())
        };
        let size = put_in_place().map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: path.clone() },
            _ => Error::CannotPlaceMerged { path: path.clone(), source },
        })?;
        // From here on there is nothing to remove.
        hidden.0 = None;
        // Syncing the folder makes the name durable, if the file system supports it.
        let _ = path.parent().map(|folder| File::open(folder).and_then(|folder| folder.sync_all()));
        Ok(size)
    }
}

/// Opens the claimed, empty file.
fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(path, flags)?;
    db.pragma_update(None, "cache_size", CACHE)?;
    // Not in use yet: if anything fails, the whole file is removed.
    db.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    db.pragma_update(None, "synchronous", "OFF")?;
    Ok(db)
}

/// The id of a word here; an error outside is about the run's row, inside about the result.
type Known = rusqlite::Result<rusqlite::Result<i64>>;

const OPS: &str = "SELECT id, name, function, layer, class, arg0_is_bytes, arg1_is_direction, arg0, arg1 FROM op_";
const CAUSES: &str = "SELECT id, name, loses_event FROM cause_";
const MERGED_COLUMNS: usize = 19;

/// Parameters: input, path, the offsets of pids, CPUs, GPUs and the clock, the duration, how many events were thinned.
const FROM_SESSION: &str = "SELECT ?1, ?2, ?3, ?4, ?5, ?6, start_unix_ns, ?7, stop_reason, command, gpu, cpu, cores,
    memory_bytes, kernel, version, events_stored, events_lost, ?8 FROM session_";
const FROM_MERGED: &str = "SELECT input + ?1, path, pid_offset + ?3, cpu_offset + ?4, gpu_offset + ?5,
    clock_offset_ns + ?6, start_unix_ns, duration_ns, stop_reason, command, gpu, cpu, cores, memory_bytes, kernel,
    version, events_stored, events_lost, thinned FROM merged_ WHERE ?2 IS NOT NULL AND ?7 >= 0 AND ?8 >= 0 LIMIT 1024";

fn insert_session(db: &Connection, inputs: &[Input], version: &str) -> rusqlite::Result<()> {
    let sessions: Vec<&Session> = inputs.iter().map(|input| &input.session).collect();
    let first = sessions.iter().min_by_key(|session| session.start_unix_ns);
    let end = |input: &Input| input.shift.clock_ns.saturating_add(input.session.duration_ns);
    let duration = inputs.iter().map(end).max().unwrap_or(0);
    // If one run is incomplete, so is the result.
    let stop = sessions.iter().map(|session| session.stop_unix_ns).collect::<Option<Vec<i64>>>();
    let runs: i64 = inputs.iter().map(|input| input.shift.slots).sum();
    // A command means that the job was recorded from its start: set it only if that holds for all runs.
    let started = sessions.iter().all(|session| session.command.is_some());
    let sum = |place: usize| sessions.iter().fold(0i64, |sum, session| sum.saturating_add(session.counts[place]));
    let names: Vec<String> = inputs.iter().map(|input| input.path.display().to_string()).take(64).collect();
    db.execute(
        "INSERT INTO session_ (id, version, start_unix_ns, start_monotonic_ns, stop_unix_ns, duration_ns, stop_reason,
             command, flags, events_seen, events_stored, events_lost, seconds_missing, samples_missing, thinned)
         VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            version,
            first.map_or(0, |session| session.start_unix_ns),
            first.map_or(0, |session| session.start_monotonic_ns),
            stop.as_ref().and_then(|all| all.iter().max().copied()),
            duration,
            stop.and_then(|_| common(sessions.iter().map(|session| session.stop_reason.clone()))),
            started.then(|| format!("merged from {runs} runs")),
            format!("merge {}", names.join(" ")),
            sum(0),
            sum(1),
            sum(2),
            sum(3),
            sum(4),
            sum(5)
        ],
    )?;
    Ok(())
}

/// The different values there are, in the order they come.
fn common(values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    for value in values.flatten() {
        if !all.contains(&value) && all.len() < MAX_FACTS {
            all.push(value);
        }
    }
    (!all.is_empty()).then(|| all.join(", "))
}

/// Facts common to the machines; numbers that differ are left out.
fn common_machine(sessions: &[&Session]) -> Machine {
    let machines = || sessions.iter().map(|session| &session.machine);
    let text = |of: fn(&Machine) -> &Option<String>| common(machines().map(|machine| of(machine).clone()));
    let first = machines().next();
    let same = |of: fn(&Machine) -> Option<u64>| {
        first.and_then(of).filter(|number| machines().all(|machine| of(machine) == Some(*number)))
    };
    Machine {
        gpu: text(|machine| &machine.gpu),
        driver: text(|machine| &machine.driver),
        cuda: text(|machine| &machine.cuda),
        cpu: text(|machine| &machine.cpu),
        cores: same(|machine| machine.cores.map(u64::from)).and_then(|cores| u32::try_from(cores).ok()),
        memory_bytes: same(|machine| machine.memory_bytes),
        kernel: text(|machine| &machine.kernel),
        python: text(|machine| &machine.python),
    }
}
