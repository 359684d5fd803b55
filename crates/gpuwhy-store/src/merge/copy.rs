// SPDX-License-Identifier: Apache-2.0
//! Copying rows: each value is checked for what its column holds, and becomes what it is in the result.

use super::input::{Input, PIDS, Shift};
use super::tables::{Ids, Kind, Table, read_as};
use crate::share::Reducer;
use crate::{Error, Result};
use gpuwhy_model::{Histogram, units};
use rusqlite::fallible_streaming_iterator::FallibleStreamingIterator;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, Row, Rows, Statement};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

/// Rows between two checks whether to continue.
const ROWS_BETWEEN_LOOKS: u64 = 4_096;
/// A time beyond this is as good as this: sums of two stay integers.
const LATEST: i64 = i64::MAX / 2;
const SECOND: i64 = 1_000_000_000;

/// Where rows go.
pub(crate) struct Copier<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) path: &'a Path,
    pub(crate) go_on: &'a mut dyn FnMut() -> bool,
    pub(crate) rows: u64,
    /// For a copy that is given to others.
    pub(crate) reducer: Option<&'a RefCell<Reducer>>,
}

impl<'a> Copier<'a> {
    /// Copies a table of one run.
    pub(crate) fn table(&mut self, input: &Input, table: &Table) -> Result<()> {
        if !input.has(table.since) {
            return Ok(());
        }
        let mut insert = self.prepare(table)?;
        let sql = select(input, table);
        let mut select = input.db.prepare(&sql).map_err(|source| input.failed(source))?;
        let mut rows = select.raw_query();
        while let Some(row) = rows.next().map_err(|source| input.failed(source))? {
            for (place, column) in table.columns.iter().enumerate() {
                self.bind(&mut insert, place, input, table, *column, row)?;
            }
            self.execute(&mut insert, input)?;
        }
        Ok(())
    }

    /// Copies rows whose id is their time, merged in time order. Of two with the same time, one moves on by a
    /// nanosecond.
    pub(crate) fn events(&mut self, inputs: &[Input], table: &Table) -> Result<()> {
        let mut insert = self.prepare(table)?;
        let inputs: Vec<&Input> = inputs.iter().filter(|input| input.has(table.since)).collect();
        let mut selects = inputs
            .iter()
            .map(|input| {
                let sql = format!("{} ORDER BY start", select(input, table));
                input.db.prepare(&sql).map_err(|source| input.failed(source))
            })
            .collect::<Result<Vec<Statement<'_>>>>()?;
        let mut rows: Vec<Rows<'_>> = selects.iter_mut().map(Statement::raw_query).collect();
        let mut fronts = BinaryHeap::new();
        for place in 0..rows.len() {
            self.step(&inputs, &mut rows, place, &mut fronts)?;
        }
        let mut previous = -1;
        while let Some(Reverse((time, place))) = fronts.pop() {
            let (Some(input), Some(row)) =
                (inputs.get(place), rows.get(place).and_then(FallibleStreamingIterator::get))
            else {
                break;
            };
            previous = time.max(previous + 1);
            insert.raw_bind_parameter(1, previous).map_err(|source| self.failed(source))?;
            for (column_place, column) in table.columns.iter().enumerate().skip(1) {
                self.bind(&mut insert, column_place, input, table, *column, row)?;
            }
            self.execute(&mut insert, input)?;
            self.step(&inputs, &mut rows, place, &mut fronts)?;
        }
        Ok(())
    }

    /// Brings the next row of a run to its front.
    fn step(
        &self,
        inputs: &[&Input],
        rows: &mut [Rows<'_>],
        place: usize,
        fronts: &mut BinaryHeap<Reverse<(i64, usize)>>,
    ) -> Result<()> {
        let (Some(input), Some(rows)) = (inputs.get(place), rows.get_mut(place)) else { return Ok(()) };
        let next = rows.next().and_then(|row| row.map(|row| row.get::<_, i64>(0)).transpose());
        if let Some(start) = next.map_err(|source| input.failed(source))? {
            // A row of an event is never older than its run.
            fronts.push(Reverse((time(start.max(0), &input.shift), place)));
        }
        Ok(())
    }

    fn prepare(&self, table: &Table) -> Result<Statement<'a>> {
        let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        let places: Vec<String> = (1..=names.len()).map(|place| format!("?{place}")).collect();
        let (name, names, places) = (table.name, names.join(", "), places.join(", "));
        let sql = format!("INSERT INTO {name} ({names}) VALUES ({places}) {}", table.conflict);
        self.db.prepare(&sql).map_err(|source| self.failed(source))
    }

    fn bind(
        &self,
        insert: &mut Statement<'_>,
        place: usize,
        input: &Input,
        table: &Table,
        (column, kind): (&str, Kind),
        row: &Row<'_>,
    ) -> Result<()> {
        let value = row.get_ref(place).map_err(|source| input.failed(source))?;
        let reducer = self.reducer.map(RefCell::borrow_mut);
        if let (Some(mut reducer), ValueRef::Text(text), Some(says)) = (reducer, value, kind.says()) {
            let reduced = reducer.reduce(says, &String::from_utf8_lossy(text));
            return insert.raw_bind_parameter(place + 1, reduced).map_err(|source| self.failed(source));
        }
        let Some(value) = mapped(kind, value, &input.shift) else {
            let what = format!("{}.{column} has an invalid value: {}", table.name, shown(value));
            return Err(input.refuse(what));
        };
        insert.raw_bind_parameter(place + 1, value).map_err(|source| self.failed(source))
    }

    fn execute(&mut self, insert: &mut Statement<'_>, input: &Input) -> Result<()> {
        insert.raw_execute().map_err(|source| match source.sqlite_error_code() {
            // A row that the table refuses is invalid in its source run.
            Some(ErrorCode::ConstraintViolation) => input.refuse(source.to_string()),
            _ => self.failed(source),
        })?;
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_BETWEEN_LOOKS) && !(self.go_on)() {
            return Err(Error::MergeStopped { path: self.path.into() });
        }
        Ok(())
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        Error::CannotWriteMerged { path: self.path.into(), source }
    }
}

/// The SQL that reads a table.
fn select(input: &Input, table: &Table) -> String {
    let columns: Vec<&str> =
        table.columns.iter().map(|(column, _)| read_as(table.name, column, input.version)).collect();
    format!("SELECT {} FROM {}", columns.join(", "), table.name)
}

/// The value in the result; `None` if it is invalid for its column.
fn mapped<'v>(kind: Kind, value: ValueRef<'v>, shift: &Shift) -> Option<ToSqlOutput<'v>> {
    let number = match (kind, value) {
        (_, ValueRef::Null) | (Kind::Text(_), ValueRef::Text(_)) | (Kind::Real, ValueRef::Real(_)) => {
            return Some(ToSqlOutput::Borrowed(value));
        }
        (Kind::CgroupPath, ValueRef::Text(path)) => return Some(cgroup_path(&String::from_utf8_lossy(path), shift)),
        (Kind::Histogram, ValueRef::Blob(blob)) => {
            return Histogram::decode(blob).map(|_| ToSqlOutput::Borrowed(value));
        }
        (Kind::Text(_) | Kind::CgroupPath | Kind::Histogram, _) => return None,
        (_, ValueRef::Integer(number)) => number,
        _ => return None,
    };
    let mapped = match kind {
        Kind::Time => time(number, shift),
        Kind::Until if number == i64::MAX => number,
        Kind::Until => time(number, shift),
        Kind::Second => number.saturating_add((shift.clock_ns + SECOND / 2) / SECOND),
        Kind::Pid => pid(number, shift)?,
        Kind::AnyPid => pid(number, shift).unwrap_or(number),
        Kind::Cpu => cpu(number, shift)?,
        Kind::Cpus => cpus(number, shift)?,
        Kind::Gpu => within(number, shift.gpus)? + shift.gpu_offset,
        Kind::Op if number == -1 => -1,
        Kind::Op => *shift.ops.get(&number)?,
        Kind::Cause => *shift.causes.get(&number)?,
        Kind::Input => within(number, shift.slots)? + shift.slot,
        Kind::Id(ids) => id(ids, number, shift)?,
        Kind::Int | Kind::Real | Kind::Text(_) | Kind::CgroupPath | Kind::Histogram => number,
    };
    Some(ToSqlOutput::Owned(Value::Integer(mapped)))
}

/// A number from 0 on, below an end.
fn within(number: i64, end: i64) -> Option<i64> {
    (0..end).contains(&number).then_some(number)
}

pub(crate) fn time(ns: i64, shift: &Shift) -> i64 {
    ns.saturating_add(shift.clock_ns).clamp(-LATEST, LATEST)
}

/// 0 is the idle task of every machine, or no thread.
pub(crate) fn pid(number: i64, shift: &Shift) -> Option<i64> {
    let number = within(number, shift.slots * PIDS)?;
    Some(if number == 0 { 0 } else { number + shift.pid_offset() })
}

fn cpu(number: i64, shift: &Shift) -> Option<i64> {
    within(number, shift.cpus).map(|number| number + shift.cpu_offset)
}

fn cpus(packed: i64, shift: &Shift) -> Option<i64> {
    let next = cpu(packed & 0xffff, shift)?;
    let left = match packed >> 16 {
        0 => 0,
        left => cpu(left - 1, shift)? + 1,
    };
    Some(left << 16 | next)
}

fn id(ids: Ids, number: i64, shift: &Shift) -> Option<i64> {
    let change = shift.ids.get(ids as usize)?;
    let nobody = ids == Ids::Waker && number == 0;
    if nobody { Some(0) } else { (1..=change.last).contains(&number).then_some(number + change.offset) }
}

/// Different machines have the same paths, so those of all runs but the first are prefixed: `1:/user.slice`.
fn cgroup_path(path: &str, shift: &Shift) -> ToSqlOutput<'static> {
    let numbered = path.split_once(':').and_then(|(number, path)| Some((number.parse::<u16>().ok()?, path)));
    let (number, path) = numbered.map_or((0, path), |(number, path)| (i64::from(number), path));
    let number = number + shift.slot;
    let path = if number == 0 { path.to_owned() } else { format!("{number}:{path}") };
    ToSqlOutput::Owned(Value::Text(path))
}

fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(text) => format!("the text '{}'", units::safe(&String::from_utf8_lossy(text), 40)),
        ValueRef::Blob(bytes) => format!("a blob of {} bytes", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::IdShift;
    use super::super::tables::Says;
    use super::*;

    fn shift() -> Shift {
        Shift {
            slot: 2,
            slots: 1,
            clock_ns: 1_600_000_000,
            cpu_offset: 16,
            cpus: 8,
            gpu_offset: 4,
            gpus: 2,
            ids: [IdShift { offset: 100, last: 10 }; 5],
            ops: [(7, 70)].into(),
            causes: [(1, 3)].into(),
        }
    }

    fn number(kind: Kind, n: i64) -> Option<i64> {
        match mapped(kind, ValueRef::Integer(n), &shift())? {
            ToSqlOutput::Owned(Value::Integer(n)) => Some(n),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_become_what_they_are_in_the_result() {
        for (kind, before, after) in [
            (Kind::Int, -5, Some(-5)),
            (Kind::Time, -7, Some(1_599_999_993)),
            (Kind::Time, i64::MAX, Some(LATEST)),
            (Kind::Until, i64::MAX, Some(i64::MAX)),
            (Kind::Second, 3, Some(5)),
            (Kind::Pid, 0, Some(0)),
            (Kind::Pid, 12, Some(2 * PIDS + 12)),
            (Kind::Pid, PIDS, None),
            (Kind::Pid, -1, None),
            (Kind::AnyPid, 12, Some(2 * PIDS + 12)),
            (Kind::AnyPid, -1, Some(-1)),
            (Kind::Cpu, 7, Some(23)),
            (Kind::Cpu, 8, None),
            (Kind::Cpus, 3, Some(19)),
            (Kind::Cpus, 6 << 16 | 3, Some(22 << 16 | 19)),
            (Kind::Cpus, -1, None),
            (Kind::Gpu, 1, Some(5)),
            (Kind::Gpu, 2, None),
            (Kind::Op, -1, Some(-1)),
            (Kind::Op, 7, Some(70)),
            (Kind::Op, 8, None),
            (Kind::Cause, 1, Some(3)),
            (Kind::Input, 0, Some(2)),
            (Kind::Id(Ids::Waker), 0, Some(0)),
            (Kind::Id(Ids::Context), 0, None),
            (Kind::Id(Ids::Context), 10, Some(110)),
            (Kind::Id(Ids::Context), 11, None),
            (Kind::Text(Says::Word), 1, None),
        ] {
            assert_eq!(number(kind, before), after, "{kind:?} {before}");
        }
        assert!(mapped(Kind::Int, ValueRef::Text(b"1"), &shift()).is_none());
        assert!(mapped(Kind::Real, ValueRef::Blob(b"1"), &shift()).is_none());
        assert!(mapped(Kind::Histogram, ValueRef::Blob(&[0x80]), &shift()).is_none());
        let path = |path: &str, shift: &Shift| match cgroup_path(path, shift) {
            ToSqlOutput::Owned(Value::Text(path)) => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(path("/a", &shift()), "2:/a");
        assert_eq!(path("1:/a", &shift()), "3:/a");
        assert_eq!(path("/a", &Shift::default()), "/a");
    }
}
