// SPDX-License-Identifier: Apache-2.0
//! Interning of what repeats: of calls thread, op, device, stream, return code, flags and stack.

use crate::hash::FastMap;
use crate::schema;
use gpuwhy_model::Call;
use rusqlite::{Connection, params};
use std::collections::HashSet;
use std::hash::Hash;

/// How many values are remembered. A program that makes streams or threads without end would otherwise
/// fill the memory; forgetting only costs a second row for the same value.
const MAX_REMEMBERED: usize = 65_536;

/// Ids of values already in the file. Ids start at 1 and are never reused.
pub(crate) struct Interned<K> {
    known: FastMap<K, i64>,
    last_id: i64,
}

impl<K> Default for Interned<K> {
    fn default() -> Self {
        Self { known: FastMap::default(), last_id: 0 }
    }
}

impl<K: Eq + Hash> Interned<K> {
    /// The id of a value, which `store` writes under a new id first when it is new.
    #[inline]
    pub(crate) fn id_of(
        &mut self,
        key: K,
        store: impl FnOnce(i64, &K) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<i64> {
        match self.known.get(&key) {
            Some(id) => Ok(*id),
            None => self.add(key, store),
        }
    }

    #[cold]
    fn add(&mut self, key: K, store: impl FnOnce(i64, &K) -> rusqlite::Result<()>) -> rusqlite::Result<i64> {
        let id = self.last_id + 1;
        store(id, &key)?;
        self.last_id = id;
        if self.known.len() >= MAX_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, id);
        Ok(id)
    }

    /// Clears the cache, because the transaction that stored some of these values was rolled back.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    stream: Option<u64>,
    pid: u32,
    tid: u32,
    ret: i32,
    op: u16,
    device: Option<u8>,
    flags: u8,
    stack: Option<u64>,
}

/// The contexts of calls already in the file.
#[derive(Default)]
pub(crate) struct Contexts {
    contexts: Interned<Key>,
    /// Threads that made a CUDA call; when there are too many to remember, all may have.
    callers: HashSet<u32>,
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
            stack: call.stack,
        };
        let callers = &mut self.callers;
        self.contexts.id_of(key, |id, key| {
            if call.op.is_cuda() && callers.len() < MAX_REMEMBERED {
                callers.insert(call.tid);
            }
            store(db, call, id, key)
        })
    }

    /// Whether a thread has made a CUDA call.
    pub(crate) fn calls_cuda(&self, tid: u32) -> bool {
        self.callers.len() >= MAX_REMEMBERED || self.callers.contains(&tid)
    }

    /// See [`Interned::forget`].
    pub(crate) fn forget(&mut self) {
        self.contexts.forget();
    }
}

fn store(db: &Connection, call: &Call, id: i64, key: &Key) -> rusqlite::Result<()> {
    if call.op.get().is_none() {
        schema::insert_op(db, call.op)?;
    }
    know_process(db, call.pid)?;
    db.prepare_cached(
        "INSERT INTO context_ (id, flags, op, pid, tid, device, stream, ret, stack)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        id,
        key.flags,
        key.op,
        key.pid,
        key.tid,
        key.device,
        key.stream.map(u64::cast_signed),
        key.ret,
        key.stack.map(u64::cast_signed)
    ])?;
    Ok(())
}

/// Every pid with an event has a row, so that a join with process_names drops no event.
pub(crate) fn know_process(db: &Connection, pid: u32) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR IGNORE INTO process_ (pid) VALUES (?1)")?.execute([pid])?;
    Ok(())
}
