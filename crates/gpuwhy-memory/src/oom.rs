// SPDX-License-Identifier: Apache-2.0
//! Records of memory that ran out, and of processes that ended.

use crate::report::TimelinePoint;
use crate::space::{Held, SpaceKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Records kept: the first and the last ones.
const FIRST: usize = 8;
const LAST: usize = 8;
/// A process that fails within this time ended because memory ran out, ns.
pub(crate) const FATAL_NS: u64 = 5_000_000_000;

/// Memory ran out.
#[derive(Debug, Clone)]
pub(crate) struct OomRecord {
    pub(crate) at_ns: u64,
    pub(crate) key: SpaceKey,
    pub(crate) tid: u32,
    pub(crate) asked: u64,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) unseen: u64,
    pub(crate) stack: Option<u64>,
    pub(crate) held: Vec<Held>,
    /// Memory over the time before.
    pub(crate) before: Vec<TimelinePoint>,
}

/// A process ended.
#[derive(Debug, Clone)]
pub(crate) struct EndRecord {
    pub(crate) at_ns: u64,
    pub(crate) pid: u32,
    pub(crate) code: u64,
    pub(crate) signal: u64,
    /// Its memory, by space; only if a signal ended it.
    pub(crate) held: Vec<(SpaceKey, u64, Vec<Held>)>,
}

/// All records.
#[derive(Debug, Default)]
pub(crate) struct OomLog {
    first: Vec<OomRecord>,
    last: VecDeque<OomRecord>,
    pub(crate) count: u64,
    pub(crate) ends: BTreeMap<u32, EndRecord>,
    pub(crate) killed_for_memory: BTreeSet<u32>,
}

impl OomLog {
    pub(crate) fn push(&mut self, record: OomRecord) {
        self.count += 1;
        if self.first.len() < FIRST {
            self.first.push(record);
            return;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(record);
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &OomRecord> {
        self.first.iter().chain(&self.last)
    }

    /// Whether it ended the process: soon after, and with a failure.
    pub(crate) fn is_fatal(&self, record: &OomRecord) -> bool {
        self.ends.get(&record.key.pid).is_some_and(|end| {
            let soon = end.at_ns >= record.at_ns && end.at_ns - record.at_ns <= FATAL_NS;
            soon && (end.code != 0 || end.signal != 0)
        })
    }
}
