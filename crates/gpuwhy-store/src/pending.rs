// SPDX-License-Identifier: Apache-2.0
//! The small facts about a run that wait in memory for the next commit.
//!
//! They are kept until a commit has succeeded, so that a transaction rolled back on a full disk costs
//! rows of events only: names, loss, sums and samples are written with the next one that works.

use crate::aggregate::{Aggregator, CellKey, OpTotals};
use crate::ledger;
use crate::rows::RowWriter;
use crate::samples::Waiting;
use crate::source_lines;
use crate::told::Told;
use gpuwhy_model::{Histogram, LossCause, OpId, SourceLine};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;

/// Known facts about the machine and its software.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// GPU model; several are separated by commas.
    pub gpu: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Version of CUDA.
    pub cuda: Option<String>,
    /// CPU model.
    pub cpu: Option<String>,
    /// Logical CPUs.
    pub cores: Option<u32>,
    /// Main memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Version of the Python the program runs in.
    pub python: Option<String>,
}

/// A library whose functions are traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryRow {
    /// Where the program has it.
    pub path: String,
    /// Which it is: `runtime`, `driver`.
    pub library: String,
    /// Device and inode, as text: the same file may be reached by several paths.
    pub inode: String,
    /// How many of its functions have probes.
    pub functions: u32,
    /// When they were attached, `CLOCK_MONOTONIC` nanoseconds.
    pub attached_ns: u64,
    /// A note, for example why functions are missing.
    pub note: Option<String>,
}

/// Facts about a process; `None` leaves the stored value.
#[derive(Debug, Default)]
pub(crate) struct ProcessFacts {
    pub(crate) name: Option<String>,
    pub(crate) started: Option<i64>,
    pub(crate) ended: Option<i64>,
    pub(crate) parent: Option<u32>,
    pub(crate) container: Option<String>,
    pub(crate) command: Option<String>,
}

/// Facts to be written with the next commit. Times are nanoseconds since the run began.
#[derive(Default)]
pub(crate) struct Pending {
    processes: BTreeMap<u32, ProcessFacts>,
    loss: BTreeMap<(u64, u8, i32), u64>,
    libraries: Vec<(LibraryRow, i64)>,
    machine: Option<Machine>,
    stacks: Vec<(i64, StackText)>,
    source_lines: Vec<SourceLine>,
    pub(crate) ledger: ledger::Waiting,
    pub(crate) host: Waiting,
    pub(crate) told: Told,
}

/// A stack's frames in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackText {
    /// One frame a line, the innermost first: `/home/me/train.py:74 step`.
    pub frames: String,
    /// The line that is the user's own, or the innermost.
    pub top_line: String,
}

impl Pending {
    /// The pending facts of a process.
    pub(crate) fn process(&mut self, pid: u32) -> &mut ProcessFacts {
        self.processes.entry(pid).or_default()
    }

    pub(crate) fn add_loss(&mut self, second: u64, cause: LossCause, op: Option<OpId>, count: u64) {
        let op = op.map_or(-1, |op| i32::from(op.0));
        *self.loss.entry((second, cause as u8, op)).or_default() += count;
    }

    pub(crate) fn add_library(&mut self, library: LibraryRow, attached: i64) {
        self.libraries.push((library, attached));
    }

    pub(crate) fn add_stack(&mut self, id: i64, text: StackText) {
        self.stacks.push((id, text));
    }

    pub(crate) fn add_source_line(&mut self, line: SourceLine) {
        self.source_lines.push(line);
    }

    pub(crate) fn set_machine(&mut self, machine: Machine) {
        self.machine = Some(machine);
    }

    /// Writes everything inside the open transaction, keeping it until [`Pending::stored`].
    pub(crate) fn write(&self, db: &Connection, rows: &mut RowWriter, origin_ns: u64) -> rusqlite::Result<()> {
        self.write_processes(db)?;
        rows.told(db, origin_ns, &self.told)?;
        self.host.write(db, origin_ns)?;
        self.ledger.write(db, origin_ns)?;
        self.write_loss(db)?;
        self.write_libraries(db)?;
        self.write_stacks(db)?;
        source_lines::write(db, &self.source_lines)?;
        self.machine.as_ref().map_or(Ok(()), |machine| write_machine(db, machine))
    }

    /// Forgets what the committed transaction holds.
    pub(crate) fn stored(&mut self) {
        *self = Self::default();
    }

    /// Forgets everything but what was lost.
    pub(crate) fn keep_loss_alone(&mut self) {
        *self = Self { loss: std::mem::take(&mut self.loss), ..Self::default() };
    }

    fn write_stacks(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut insert =
            db.prepare_cached("INSERT OR IGNORE INTO stack_ (id, frames, top_line) VALUES (?1, ?2, ?3)")?;
        for (id, text) in &self.stacks {
            insert.execute(params![id, text.frames, text.top_line])?;
        }
        Ok(())
    }

    fn write_processes(&self, db: &Connection) -> rusqlite::Result<()> {
        if self.processes.is_empty() {
            return Ok(());
        }
        let mut upsert = db.prepare_cached(
            "INSERT INTO process_ (pid, name, started, ended, parent, container, command)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (pid) DO UPDATE SET name = COALESCE(excluded.name, name),
                 started = COALESCE(excluded.started, started), ended = COALESCE(excluded.ended, ended),
                 parent = COALESCE(excluded.parent, parent), container = COALESCE(excluded.container, container),
                 command = COALESCE(excluded.command, command)",
        )?;
        for (pid, facts) in &self.processes {
            upsert.execute(params![
                pid,
                facts.name,
                facts.started,
                facts.ended,
                facts.parent,
                facts.container,
                facts.command
            ])?;
        }
        number_siblings(db)
    }

    fn write_loss(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut upsert = db.prepare_cached(
            "INSERT INTO loss_ (second, cause, op, count) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (second, cause, op) DO UPDATE SET count = count + excluded.count",
        )?;
        for ((second, cause, op), count) in &self.loss {
            upsert.execute(params![stored(*second), cause, op, stored(*count)])?;
        }
        Ok(())
    }

    fn write_libraries(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(
            "INSERT INTO library_ (path, library, inode, functions, attached_at, note) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for (row, attached) in &self.libraries {
            insert.execute(params![row.path, row.library, row.inode, row.functions, attached, row.note])?;
        }
        Ok(())
    }
}

/// Numbers children with the same parent and name (`pt_data_worker:0`, `pt_data_worker:1`) in the order they started. A
/// child named like its parent is not a worker but a fork that is about to exec.
///
/// Done when facts about a process arrive, not in the view, where a window over all processes would keep SQLite from
/// looking up a name by pid. Numbers do not change, since later siblings start later; only the first sibling has no
/// number until the second starts.
fn number_siblings(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE process_ AS p SET number = n.number FROM (
             SELECT c.pid AS pid, CASE
                 WHEN c.parent IS NOT NULL AND c.name IS NOT NULL AND c.name IS NOT q.name AND COUNT(*) OVER same > 1
                 THEN ROW_NUMBER() OVER (same ORDER BY c.started IS NULL, c.started, c.pid) - 1 END AS number
             FROM process_ AS c LEFT JOIN process_ AS q ON q.pid = c.parent
             WINDOW same AS (PARTITION BY c.parent, c.name)
         ) AS n WHERE n.pid = p.pid AND n.number IS NOT p.number",
    )?
    .execute([])?;
    Ok(())
}

pub(crate) fn write_machine(db: &Connection, machine: &Machine) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE session_ SET gpu = ?1, driver = ?2, cuda = ?3, cpu = ?4, cores = ?5, memory_bytes = ?6,
             kernel = ?7, python = ?8",
    )?
    .execute(params![
        machine.gpu,
        machine.driver,
        machine.cuda,
        machine.cpu,
        machine.cores,
        machine.memory_bytes.map(stored),
        machine.kernel,
        machine.python
    ])?;
    Ok(())
}

/// Adds the waiting sums to those the file holds for the same second.
pub(crate) fn write_sums(db: &Connection, sums: &Aggregator) -> rusqlite::Result<()> {
    let mut select = db.prepare_cached(
        "SELECT calls, errors, total_ns, max_ns, bytes, histogram FROM second_
         WHERE second = ?1 AND pid = ?2 AND op = ?3 AND device = ?4",
    )?;
    let mut replace = db.prepare_cached(
        "REPLACE INTO second_ (second, pid, op, device, calls, errors, total_ns, max_ns, bytes, histogram)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    let mut cells: Vec<(&CellKey, &OpTotals)> = sums.cells().collect();
    // In the table's order, so that pages are filled one after the other.
    cells.sort_unstable_by_key(|(key, _)| **key);
    for (key, added) in cells {
        let device = key.device.map_or(-1, i32::from);
        let id = params![stored(key.second), key.pid, key.op.0, device];
        let before = select.query_row(id, |row| sums_from_row(row, 0)).optional()?;
        let merged = before.map(|mut sums| {
            sums.merge(added);
            sums
        });
        let sums = merged.as_ref().unwrap_or(added);
        replace.execute(params![
            stored(key.second),
            key.pid,
            key.op.0,
            device,
            stored(sums.calls),
            stored(sums.errors),
            stored(sums.total_ns),
            stored(sums.max_ns),
            stored(sums.bytes),
            sums.histogram.encode()
        ])?;
    }
    Ok(())
}

/// Reads calls, errors, total_ns, max_ns, bytes and histogram from neighbouring columns.
pub(crate) fn sums_from_row(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<OpTotals> {
    let number = |i: usize| row.get::<_, i64>(first + i).map(|n| n.max(0).cast_unsigned());
    let blob = row.get_ref(first + 5)?.as_blob()?;
    let damaged = || rusqlite::Error::InvalidColumnType(first + 5, "histogram".into(), Type::Blob);
    Ok(OpTotals {
        calls: number(0)?,
        errors: number(1)?,
        total_ns: number(2)?,
        max_ns: number(3)?,
        bytes: number(4)?,
        histogram: Histogram::decode(blob).ok_or_else(damaged)?,
    })
}

/// A count, size or duration as an SQLite integer; values above 2^63 are invalid anyway.
pub(crate) fn stored(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
