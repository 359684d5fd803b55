// SPDX-License-Identifier: Apache-2.0
//! Alerts that were raised while a run was recorded.

use crate::context::know_process;
use crate::facts::{known, unsigned};
use crate::pending::stored;
use crate::{Reader, Result};
use rusqlite::{Connection, params};

/// An alert. Given to the writer, times are `CLOCK_MONOTONIC` nanoseconds; read, nanoseconds since the run began.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertRow {
    /// Its number in the run. When the alert is over, a second row replaces the first.
    pub id: u64,
    /// When it was raised.
    pub at_ns: u64,
    /// Since when it is over.
    pub cleared_ns: Option<u64>,
    /// `warning`, `critical`.
    pub level: String,
    /// `memory`, `growth`, `leak`, `oom`.
    pub kind: String,
    /// The rule, as it was written.
    pub rule: String,
    /// Process.
    pub pid: Option<u32>,
    /// CUDA's number of the device.
    pub device: Option<u32>,
    /// NVML's index of the GPU.
    pub gpu: Option<u32>,
    /// The measured value, in the rule's unit.
    pub value: f64,
    /// The limit.
    pub threshold: Option<f64>,
    /// In words.
    pub text: String,
}

/// Writes alerts inside the open transaction, newer rows over older ones.
pub(crate) fn write(db: &Connection, rows: &[AlertRow], since: impl Fn(u64) -> i64) -> rusqlite::Result<()> {
    let mut upsert = db.prepare_cached(
        "INSERT INTO alert_ (id, at, cleared, level, kind, rule, pid, device, gpu, value, threshold, text)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT (id) DO UPDATE SET cleared = excluded.cleared",
    )?;
    for row in rows {
        if let Some(pid) = row.pid {
            know_process(db, pid)?;
        }
        upsert.execute(params![
            stored(row.id),
            since(row.at_ns),
            row.cleared_ns.map(&since),
            row.level,
            row.kind,
            row.rule,
            row.pid,
            row.device,
            row.gpu,
            row.value,
            row.threshold,
            row.text
        ])?;
    }
    Ok(())
}

impl Reader {
    /// Alerts that were raised from `from_ns` on and up to `to_ns`, in the order of time. Files of earlier versions
    /// have none.
    pub fn alerts(&self, from_ns: u64, to_ns: u64) -> Result<Vec<AlertRow>> {
        let table = "SELECT 1 FROM sqlite_master WHERE name = 'alert_' AND type = 'table'";
        if self.rows(table, [], |_| Ok(()))?.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT id, at, cleared, level, kind, rule, pid, device, gpu, value, threshold, text FROM alert_
            WHERE at BETWEEN ?1 AND ?2 ORDER BY at, id LIMIT 10000";
        self.rows(sql, [stored(from_ns), stored(to_ns)], |row| {
            Ok(AlertRow {
                id: unsigned(row, 0)?,
                at_ns: unsigned(row, 1)?,
                cleared_ns: known(row, 2)?,
                level: row.get(3)?,
                kind: row.get(4)?,
                rule: row.get(5)?,
                pid: row.get(6)?,
                device: row.get(7)?,
                gpu: row.get(8)?,
                value: row.get(9)?,
                threshold: row.get(10)?,
                text: row.get(11)?,
            })
        })
    }
}
