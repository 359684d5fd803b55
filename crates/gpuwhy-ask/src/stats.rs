// SPDX-License-Identifier: Apache-2.0
//! Figures of a run: every op, every process, and loss.

use crate::part::Asked;
use crate::{Part, Result};
use gpuwhy_model::{Class, Rates};
use gpuwhy_store::{LossRow, OpTotals, Process, Reader, Session};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A run being recorded has an event, or a sample, no older than this.
const FRESH: Duration = Duration::from_secs(10);

/// Figures of a run.
#[derive(Debug, Clone)]
pub struct Stats {
    /// The run.
    pub session: Session,
    /// Start of the time range, nanoseconds since the run began.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// CUDA ops, those with most time first.
    pub ops: Vec<OpStats>,
    /// Processes, those with most time in CUDA calls first.
    pub processes: Vec<ProcessStats>,
    /// Loss in the time range, most first.
    pub loss: Vec<LossRow>,
}

impl Stats {
    /// Length of the time range.
    pub fn wall_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// An op: its functions together.
#[derive(Debug, Clone)]
pub struct OpStats {
    /// Its short name.
    pub op: String,
    /// Its class; `None` for an op this gpuwhy does not know.
    pub class: Option<Class>,
    /// The sums.
    pub totals: OpTotals,
    /// Calls per second.
    pub rates: Rates,
}

impl OpStats {
    /// A quantile of its durations, ns.
    pub fn quantile(&self, q: f64) -> u64 {
        self.totals.histogram.quantile(q).unwrap_or(0).min(self.totals.max_ns)
    }
}

/// A process.
#[derive(Debug, Clone)]
pub struct ProcessStats {
    /// Which.
    pub process: Process,
    /// Its CUDA calls.
    pub calls: u64,
    /// Time in them.
    pub cuda_ns: u64,
    /// Kernels launched.
    pub launches: u64,
}

/// Whether a run is still recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// It has ended.
    Ended,
    /// It is being recorded.
    Running,
    /// gpuwhy was killed: the run ends with the last commit.
    Cut,
}

/// Whether the run in a file is still recorded. A run without events is still written to, because samples are taken.
/// Nobody writes to a copy without its -wal.
pub fn state(session: &Session, path: &Path, lacks_wal: bool) -> RunState {
    if session.stop_unix_ns.is_some() {
        return RunState::Ended;
    }
    if lacks_wal {
        return RunState::Cut;
    }
    let last = Duration::from_nanos(session.start_unix_ns.saturating_add(session.duration_ns));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let written = std::fs::metadata(log).and_then(|log| log.modified()).ok();
    let written = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    if now.saturating_sub(last.max(written)) < FRESH { RunState::Running } else { RunState::Cut }
}

/// Figures of a time range of a run.
pub fn stats(reader: &Reader, part: &Part) -> Result<Stats> {
    let asked = Asked::find(reader, part)?;
    let (from_ns, to_ns) = (asked.from_ns, asked.to_ns);
    let mut processes: BTreeMap<u32, ProcessStats> = asked
        .processes
        .iter()
        .filter(|process| asked.has(process.pid))
        .map(|process| (process.pid, ProcessStats { process: process.clone(), calls: 0, cuda_ns: 0, launches: 0 }))
        .collect();
    let mut ops: BTreeMap<String, OpStats> = BTreeMap::new();
    for row in reader.op_totals_by_process(from_ns, Some(to_ns))?.into_iter().filter(|row| asked.has(row.pid)) {
        let class = row.id.and_then(gpuwhy_model::OpId::get).map(|op| op.class);
        if let Some(process) = processes.get_mut(&row.pid) {
            process.calls += row.totals.calls;
            process.cuda_ns = process.cuda_ns.saturating_add(row.totals.total_ns);
            process.launches += if class == Some(Class::Launch) { row.totals.calls } else { 0 };
        }
        let new = || OpStats { op: row.op.clone(), class, totals: OpTotals::default(), rates: Rates::default() };
        let op = ops.entry(row.op.clone()).or_insert_with(new);
        op.totals.merge(&row.totals);
        op.rates.merge(&row.rates);
    }
    let mut ops: Vec<OpStats> = ops.into_values().collect();
    ops.sort_by_key(|op| std::cmp::Reverse((op.totals.total_ns, op.totals.calls)));
    let mut processes: Vec<ProcessStats> = processes.into_values().collect();
    processes.sort_by_key(|process| (std::cmp::Reverse((process.cuda_ns, process.calls)), process.process.pid));
    let loss = reader.loss_of(from_ns, Some(to_ns))?;
    Ok(Stats { session: asked.session, from_ns, to_ns, ops, processes, loss })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_its_wal_is_not_running_however_young_it_is() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let session = Session { start_unix_ns: now, ..Session::default() };
        let path = Path::new("/nowhere/run.db");
        assert_eq!(state(&session, path, false), RunState::Running);
        assert_eq!(state(&session, path, true), RunState::Cut);
        let ended = Session { stop_unix_ns: Some(now), ..session };
        assert_eq!(state(&ended, path, true), RunState::Ended);
    }
}
