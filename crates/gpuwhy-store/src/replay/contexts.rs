// SPDX-License-Identifier: Apache-2.0
//! What rows refer to, read once: contexts, wakers and runners, as events without the fields of the row.

use crate::hash::FastMap;
use crate::names;
use gpuwhy_model::host::padded_name;
use gpuwhy_model::{Call, CallFlags, CpuRun, OffCpu, OpId, Reason, Wait, WokenBy, ops};
use rusqlite::{Connection, Row};
use std::collections::HashMap;

/// An id this far beyond the last one is kept aside: a damaged file must not make the table huge.
const MAX_HOLE: usize = 65_536;

/// Values by id. Ids are consecutive, so nearly all are indices.
pub(super) struct ById<T> {
    dense: Vec<Option<T>>,
    sparse: FastMap<u64, Option<T>>,
    /// The highest id looked for: up to here, what is not there does not exist.
    last: i64,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: FastMap::default(), last: i64::MIN }
    }
}

impl<T: Copy> ById<T> {
    fn new() -> Self {
        Self::default()
    }

    /// `None`: not read yet. `Some(None)`: of no use here.
    #[inline]
    fn get(&self, id: i64) -> Option<Option<T>> {
        if id > self.last {
            return None;
        }
        match usize::try_from(id).ok().and_then(|at| self.dense.get(at)) {
            Some(value) => Some(*value),
            None => Some(self.sparse.get(&id.cast_unsigned()).copied().flatten()),
        }
    }

    fn set(&mut self, id: i64, value: Option<T>) {
        self.last = self.last.max(id);
        match usize::try_from(id) {
            Ok(at) if at < self.dense.len() + MAX_HOLE => {
                if self.dense.len() <= at {
                    self.dense.resize(at + 1, None);
                }
                self.dense[at] = value;
            }
            _ => _ = self.sparse.insert(id.cast_unsigned(), value),
        }
    }

    /// The value of an id that was looked for again. One that is still not there is missing for good: rows and what
    /// they refer to are committed together.
    fn get_or_miss(&mut self, id: i64) -> Option<T> {
        let found = self.get(id).flatten();
        self.last = self.last.max(id);
        found
    }

    /// Reads what was added since the last time.
    fn extend(
        &mut self,
        db: &Connection,
        sql: &str,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<Option<T>>,
    ) -> rusqlite::Result<()> {
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query([self.last.saturating_add(1)])?;
        while let Some(row) = rows.next()? {
            let value = read(row)?;
            self.set(row.get(0)?, value);
        }
        Ok(())
    }
}

/// Who ended a wait.
type Waker = (WokenBy, u32, u32);

/// Everything rows refer to.
pub(super) struct Contexts<'a> {
    db: &'a Connection,
    /// This gpuwhy's op for each of the file's; those it does not have are missing.
    ops: HashMap<i64, OpId>,
    calls: ById<Call>,
    offs: ById<OffCpu>,
    wakers: ById<Waker>,
    runners: ById<CpuRun>,
}

/// The contexts of calls read so far, to continue later.
#[derive(Default)]
pub(super) struct Known {
    ops: HashMap<i64, OpId>,
    calls: ById<Call>,
}

impl<'a> Contexts<'a> {
    /// Of calls alone, and of those what is not known yet: all are read when they are met.
    pub(super) fn of_calls(db: &'a Connection, known: Known) -> Self {
        let Known { ops, calls } = known;
        Self { db, ops, calls, offs: ById::new(), wakers: ById::new(), runners: ById::new() }
    }

    /// The contexts of calls up to now.
    pub(super) fn into_known(self) -> Known {
        Known { ops: self.ops, calls: self.calls }
    }

    pub(super) fn load(db: &'a Connection) -> rusqlite::Result<Self> {
        let mut contexts = Self {
            db,
            ops: HashMap::new(),
            calls: ById::new(),
            offs: ById::new(),
            wakers: ById::new(),
            runners: ById::new(),
        };
        contexts.load_calls()?;
        contexts.load_offs()?;
        contexts.load_wakers()?;
        contexts.load_runners()?;
        Ok(contexts)
    }

    /// The call of a context; `None` where its op is unknown here. A context not met before was added by a writer
    /// since: it is read then.
    #[inline]
    pub(super) fn call(&mut self, id: i64) -> rusqlite::Result<Option<Call>> {
        if let Some(known) = self.calls.get(id) {
            return Ok(known);
        }
        self.load_calls()?;
        Ok(self.calls.get_or_miss(id))
    }

    /// The time off the CPU of a context.
    #[inline]
    pub(super) fn off(&mut self, id: i64) -> rusqlite::Result<Option<OffCpu>> {
        if let Some(known) = self.offs.get(id) {
            return Ok(known);
        }
        self.load_offs()?;
        Ok(self.offs.get_or_miss(id))
    }

    /// Who ended a wait.
    #[inline]
    pub(super) fn waker(&mut self, id: i64) -> rusqlite::Result<Waker> {
        let nobody = (WokenBy::Nobody, 0, 0);
        if let Some(known) = self.wakers.get(id) {
            return Ok(known.unwrap_or(nobody));
        }
        self.load_wakers()?;
        Ok(self.wakers.get_or_miss(id).unwrap_or(nobody))
    }

    /// Who had a CPU.
    #[inline]
    pub(super) fn runner(&mut self, id: i64) -> rusqlite::Result<Option<CpuRun>> {
        if let Some(known) = self.runners.get(id) {
            return Ok(known);
        }
        self.load_runners()?;
        Ok(self.runners.get_or_miss(id))
    }

    fn load_calls(&mut self) -> rusqlite::Result<()> {
        // The few ops are read again, since the writer may have added some.
        let mut statement = self.db.prepare_cached("SELECT id, function FROM op_")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(op) = ops::by_function(row.get_ref(1)?.as_str()?) {
                self.ops.insert(row.get(0)?, op.id);
            }
        }
        let sql = "SELECT id, flags, op, pid, tid, device, stream, ret, stack FROM context_ WHERE id >= ?1 ORDER BY id";
        let ops = &self.ops;
        self.calls.extend(self.db, sql, |row| {
            let Some(op) = ops.get(&row.get(2)?).copied() else { return Ok(None) };
            call(row, op).map(Some)
        })
    }

    fn load_offs(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT id, pid, tid, reason, wait, syscall, file, io_wait, unfinished, stack FROM off_context_
            WHERE id >= ?1 ORDER BY id";
        self.offs.extend(self.db, sql, off)
    }

    fn load_wakers(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT id, woken_by, pid, tid FROM waker_ WHERE id >= ?1 ORDER BY id";
        self.wakers.extend(self.db, sql, |row| {
            let by = row.get_ref(1)?.as_str_or_null()?.and_then(WokenBy::from_name);
            let Some(by) = by else { return Ok(None) };
            Ok(Some((by, row.get::<_, Option<u32>>(2)?.unwrap_or(0), row.get::<_, Option<u32>>(3)?.unwrap_or(0))))
        })
    }

    fn load_runners(&mut self) -> rusqlite::Result<()> {
        let sql = "SELECT id, pid, tid, name FROM runner_ WHERE id >= ?1 ORDER BY id";
        self.runners.extend(self.db, sql, |row| {
            let name = padded_name(row.get_ref(3)?.as_bytes()?);
            Ok(Some(CpuRun { start_ns: 0, duration_ns: 0, pid: row.get(1)?, tid: row.get(2)?, cpu: 0, name }))
        })
    }
}

fn call(row: &Row<'_>, op: OpId) -> rusqlite::Result<Call> {
    let flags: u8 = row.get(1)?;
    Ok(Call {
        start_ns: 0,
        duration_ns: 0,
        pid: row.get(3)?,
        tid: row.get(4)?,
        op,
        device: row.get(5)?,
        stream: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
        arg0: None,
        arg1: None,
        ret: row.get(7)?,
        flags: CallFlags { inner: flags & 1 != 0, unfinished: flags & 2 != 0 },
        weight: 1,
        stack: row.get::<_, Option<i64>>(8)?.map(i64::cast_unsigned),
    })
}

/// `None` for a reason that has no name here. A wait without one is something else.
fn off(row: &Row<'_>) -> rusqlite::Result<Option<OffCpu>> {
    let Some(reason) = Reason::from_name(row.get_ref(3)?.as_str()?) else { return Ok(None) };
    let wait = match row.get_ref(4)?.as_str_or_null()? {
        Some(name) => Wait::from_name(name).unwrap_or(Wait::Other),
        None => Wait::Nothing,
    };
    Ok(Some(OffCpu {
        start_ns: 0,
        duration_ns: 0,
        ready_ns: 0,
        pid: row.get(1)?,
        tid: row.get(2)?,
        reason,
        wait,
        syscall: row.get_ref(5)?.as_str_or_null()?.and_then(names::syscall_number),
        file: row.get_ref(6)?.as_str_or_null()?.map_or(0, |text| names::file_number(wait, text)),
        object: 0,
        timeout_ns: None,
        io_wait: row.get(7)?,
        woken_by: WokenBy::Nobody,
        waker_pid: 0,
        waker_tid: 0,
        left_cpu: 0,
        cpu: 0,
        unfinished: row.get(8)?,
        weight: 1,
        stack: row.get::<_, Option<i64>>(9)?.map(i64::cast_unsigned),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    fn new_file() -> Connection {
        let db = Connection::open_in_memory().unwrap();
        schema::create(&db).unwrap();
        db.execute_batch("COMMIT").unwrap();
        db
    }

    #[test]
    fn what_a_writer_added_since_is_read_when_it_is_met() {
        let db = new_file();
        let mut contexts = Contexts::load(&db).unwrap();
        assert_eq!(contexts.waker(0).unwrap(), (WokenBy::Nobody, 0, 0));
        db.execute_batch(
            "INSERT INTO op_ VALUES (9999, 'x', 'newer_than_this_gpuwhy', '', '', 0, 0, '', '');
             INSERT INTO context_ VALUES (1, 2, (SELECT id FROM op_ WHERE function = 'cudaFree'), 5, 6, NULL, -1, 0, 7);
             INSERT INTO context_ VALUES (2, 0, 9999, 5, 6, NULL, NULL, 0, NULL);
             INSERT INTO off_context_ VALUES (1, 5, 6, 'asleep', 'telepathy', 'futex', NULL, 1, 0, NULL);
             INSERT INTO waker_ VALUES (1, 'disk', 8, 9);
             INSERT INTO runner_ VALUES (1, 5, 6, 'a name that is longer than sixteen');",
        )
        .unwrap();
        let call = contexts.call(1).unwrap().unwrap();
        assert_eq!(call.op, ops::by_function("cudaFree").unwrap().id);
        assert_eq!((call.flags.unfinished, call.stream, call.stack), (true, Some(u64::MAX), Some(7)));
        assert_eq!(contexts.call(2).unwrap(), None, "an op that is unknown here");
        assert_eq!(contexts.call(3).unwrap(), None);
        let off = contexts.off(1).unwrap().unwrap();
        assert_eq!((off.wait, off.io_wait, off.syscall), (Wait::Other, true, Some(libc::SYS_futex as u16)));
        assert_eq!(contexts.waker(1).unwrap(), (WokenBy::Disk, 8, 9));
        assert_eq!(contexts.waker(0).unwrap(), (WokenBy::Nobody, 0, 0));
        assert_eq!(contexts.runner(1).unwrap().unwrap().name, *b"a name that is l");
    }

    #[test]
    fn ids_far_apart_take_no_room() {
        let db = new_file();
        for id in [-5, 3, 1 << 60, i64::MAX] {
            db.execute("INSERT INTO runner_ VALUES (?1, ?2, 1, '')", [id, id & 0xff]).unwrap();
        }
        let mut contexts = Contexts::load(&db).unwrap();
        assert!(contexts.runners.dense.len() < MAX_HOLE);
        for id in [-5, 3, 1 << 60, i64::MAX] {
            assert_eq!(contexts.runner(id).unwrap().unwrap().pid, (id & 0xff) as u32);
        }
        assert_eq!(contexts.runner(4).unwrap(), None);
    }
}
