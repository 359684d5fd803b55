// SPDX-License-Identifier: Apache-2.0
//! How closely the kernel follows one function of one process, and whose traps were counted.

use super::{LOSS_OPS, Programs};
use gpuwhy_model::OpId;
use libbpf_rs::{MapCore, MapFlags};
use std::collections::{BTreeMap, BTreeSet};

/// How closely a function of a process is followed where that is less than fully, as `enum mode` in `state.h` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Calls in bursts are only counted; of the allocator's reports few have a stack.
    Sampled = 1,
    /// Calls leave no record.
    Muted = 2,
}

/// One in so many traps counts as a share: see `counts_as_share` in `traps.h`.
const SHARE_OF: u64 = 16;
/// Shares read with one system call.
const AT_ONCE: u32 = 1024;

/// How often a process hit the probes of a function, estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Entries.
    pub entered: u64,
    /// Of them, those followed to their return.
    pub followed: u64,
}

/// Which processes are limited in which functions.
pub(crate) type Limits = BTreeMap<u32, BTreeSet<OpId>>;

/// `struct process_op` in `state.h`.
fn key(pid: u32, op: OpId) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&pid.to_ne_bytes());
    key[4..].copy_from_slice(&u32::from(op.0).to_ne_bytes());
    key
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

impl Programs {
    /// Follows a function of one process less closely. False: the kernel has no room for one more limit.
    pub(crate) fn limit(&mut self, pid: u32, op: OpId, limit: Limit) -> bool {
        // `struct limit`: the mode, and how many calls were muted under it.
        let mut value = [0; 16];
        value[..4].copy_from_slice(&(limit as u32).to_ne_bytes());
        if self.skel.maps.limits.update(&key(pid, op), &value, MapFlags::ANY).is_err() {
            return false;
        }
        self.limits.entry(pid).or_default().insert(op);
        self.count_limits();
        true
    }

    /// Follows a function of one process fully again.
    pub(crate) fn unlimit(&mut self, pid: u32, op: OpId) {
        let Some(ops) = self.limits.get_mut(&pid).filter(|ops| ops.contains(&op)) else { return };
        ops.remove(&op);
        // Gone already is just as well.
        let _ = self.skel.maps.limits.delete(&key(pid, op));
        self.limits.retain(|_, ops| !ops.is_empty());
        self.count_limits();
    }

    /// Forgets all limits of a process that ended: its number may become another's.
    pub(crate) fn unlimit_process(&mut self, pid: u32) {
        let Some(ops) = self.limits.remove(&pid) else { return };
        for op in ops {
            let _ = self.skel.maps.limits.delete(&key(pid, op));
        }
        self.count_limits();
    }

    /// Calls of a process that hit a probe since the limit was set and were not followed. Zero where there is no limit.
    pub(crate) fn muted(&self) -> Vec<(u32, OpId, u64)> {
        let pairs = self.limits.iter().flat_map(|(pid, ops)| ops.iter().map(|op| (*pid, *op)));
        let calls = |(pid, op)| {
            let value = self.skel.maps.limits.lookup(&key(pid, op), MapFlags::ANY).ok().flatten()?;
            Some((pid, op, word(&value, 8)))
        };
        pairs.filter_map(calls).collect()
    }

    /// Whose the traps since the last time were. Counts are of samples: see [`Share`].
    pub(crate) fn take_shares(&self) -> Vec<(u32, OpId, Share)> {
        let Ok(shares) = self.skel.maps.shares.lookup_and_delete_batch(AT_ONCE, MapFlags::ANY, MapFlags::ANY) else {
            return Vec::new();
        };
        let own = std::process::id();
        let read = |(key, value): (Vec<u8>, Vec<u8>)| {
            let (entered, followed) = (word(&value, 0) * SHARE_OF, word(&value, 8) * SHARE_OF);
            let op = u16::try_from(half(&key, 4)).unwrap_or(LOSS_OPS as u16 - 1);
            (half(&key, 0), OpId(op), Share { entered, followed })
        };
        shares.map(read).filter(|(pid, ..)| *pid != own).collect()
    }

    /// Says whether a function has no probe any more: calls of it that are open will not be seen to return.
    pub(crate) fn set_gone(&mut self, op: OpId, on: bool) {
        let gone = self.skel.maps.bss_data.as_deref_mut().and_then(|bss| bss.gone.get_mut(usize::from(op.0)));
        if let Some(gone) = gone {
            // SAFETY: a plain byte in memory shared with the kernel; volatile because that reads it.
            unsafe { std::ptr::write_volatile(gone, u8::from(on)) };
        }
    }

    fn count_limits(&mut self) {
        let count = self.limits.values().map(BTreeSet::len).sum::<usize>() as u32;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: as in `set_gone`.
            unsafe { std::ptr::write_volatile(&raw mut bss.limited, count) };
        }
    }
}
