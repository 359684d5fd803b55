// SPDX-License-Identifier: Apache-2.0
//! Interning of what repeats from call to call: thread, op, device, stream, return code, flags.

use crate::hash::FastMap;
use crate::schema;
use gpuwhy_model::Call;
use rusqlite::{Connection, params};

/// How many contexts are remembered. A program that makes streams or threads without end would otherwise
/// fill the memory; forgetting only costs a second row for the same context.
const MAX_REMEMBERED: usize = 65_536;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    stream: Option<u64>,
    pid: u32,
    tid: u32,
    ret: i32,
    op: u16,
    device: Option<u8>,
    flags: u8,
}

/// The ids of contexts already in the file.
#[derive(Default)]
pub(crate) struct Contexts {
    known: FastMap<Key, i64>,
    last_id: i64,
}

impl Contexts {
    /// The id of a call's context, which is stored first when it is new.
    #[inline]
    pub(crate) fn id_of(&mut self, db: &Connection, call: &Call) -> rusqlite::Result<i64> {
        let key = Key {
            stream: call.stream,
            pid: call.pid,
            tid: call.tid,
            ret: call.ret,
            op: call.op.0,
            device: call.device,
            flags: call.flags.bits(),
        };
        match self.known.get(&key) {
            Some(id) => Ok(*id),
            None => self.store(db, call, key),
        }
    }

    #[cold]
    fn store(&mut self, db: &Connection, call: &Call, key: Key) -> rusqlite::Result<i64> {
        if call.op.get().is_none() {
            schema::insert_op(db, call.op)?;
        }
        // Every pid that made a call has a row, so that a join with process_names drops no call.
        db.prepare_cached("INSERT OR IGNORE INTO process_ (pid) VALUES (?1)")?.execute([call.pid])?;
        let id = self.last_id + 1;
        db.prepare_cached(
            "INSERT INTO context_ (id, flags, op, pid, tid, device, stream, ret) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            id,
            key.flags,
            key.op,
            key.pid,
            key.tid,
            key.device,
            key.stream.map(u64::cast_signed),
            key.ret
        ])?;
        self.last_id = id;
        if self.known.len() >= MAX_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, id);
        Ok(id)
    }

    /// Forgets everything, because the transaction that stored some of it was rolled back.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}
