// SPDX-License-Identifier: Apache-2.0
//! Samples and per-thread sums: pending until a commit, then rows.

use crate::context::know_process;
use crate::pending::stored;
use gpuwhy_model::host::task_name;
use gpuwhy_model::sample::{CgroupSample, Gpu, GpuSample, ProcessSample, SystemSample};
use gpuwhy_model::{Samples, ThreadSums};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, VecDeque};

/// How many seconds of samples are kept while the disk fails; after that the oldest are dropped.
const MAX_WAITING: usize = 600;
/// The same of threads: a job that makes threads without end must not fill the memory.
const MAX_THREADS: usize = 65_536;

/// Samples and sums to be written with the next commit. Times are still those of the monotonic clock.
#[derive(Default)]
pub(crate) struct Waiting {
    samples: VecDeque<Samples>,
    gpus: BTreeMap<u32, Gpu>,
    /// By process, thread, and since when.
    threads: BTreeMap<(u32, u32, u64), ThreadSums>,
}

impl Waiting {
    /// Keeps the samples of a second. Returns how many older ones were dropped for them.
    pub(crate) fn add(&mut self, mut samples: Samples) -> u64 {
        // Told once, so never dropped.
        self.gpus.extend(samples.new_gpus.drain(..).map(|gpu| (gpu.gpu, gpu)));
        self.samples.push_back(samples);
        let surplus = self.samples.len().saturating_sub(MAX_WAITING);
        self.samples.drain(..surplus);
        surplus as u64
    }

    /// Keeps a thread's sums, unless newer ones wait already. `false` if there was no room for them.
    pub(crate) fn set_thread(&mut self, sums: ThreadSums) -> bool {
        let key = (sums.pid, sums.tid, sums.since_ns);
        if self.threads.get(&key).is_some_and(|known| known.at_ns > sums.at_ns) {
            return true;
        }
        let room = self.threads.len() < MAX_THREADS || self.threads.contains_key(&key);
        if room {
            self.threads.insert(key, sums);
        }
        room
    }

    /// Writes everything inside the open transaction.
    pub(crate) fn write(&self, db: &Connection, origin_ns: u64) -> rusqlite::Result<()> {
        let rows = Rows { db, origin_ns };
        for sums in self.threads.values() {
            rows.thread(sums)?;
        }
        for gpu in self.gpus.values() {
            db.prepare_cached("REPLACE INTO gpu_ (gpu, name, uuid, bus) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![gpu.gpu, gpu.name, gpu.uuid, gpu.bus])?;
        }
        for samples in &self.samples {
            samples.system.iter().try_for_each(|system| rows.system(system))?;
            samples.processes.iter().try_for_each(|process| rows.process(process))?;
            samples.cgroups.iter().try_for_each(|cgroup| rows.cgroup(cgroup))?;
            samples.gpus.iter().try_for_each(|gpu| rows.gpu(gpu))?;
            rows.gpu_details(samples)?;
        }
        Ok(())
    }
}

/// Writes rows, with times since the run began.
struct Rows<'a> {
    db: &'a Connection,
    origin_ns: u64,
}

impl Rows<'_> {
    /// Negative before the run: threads may be older, and a driver may report past samples.
    fn since_start(&self, ns: u64) -> i64 {
        ns.wrapping_sub(self.origin_ns).cast_signed()
    }

    fn thread(&self, sums: &ThreadSums) -> rusqlite::Result<()> {
        know_process(self.db, sums.pid)?;
        let known = |n: u64| sums.has_times.then(|| stored(n));
        self.db
            .prepare_cached(
                "INSERT INTO thread_ (pid, tid, since, at, born, name, on_cpu_ns, ready_ns, blocked_ns, throttled_ns,
                     switches, page_allocations, page_bytes, ended)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
                 ON CONFLICT (pid, tid, since) DO UPDATE SET at = excluded.at, born = excluded.born,
                     name = excluded.name, on_cpu_ns = excluded.on_cpu_ns, ready_ns = excluded.ready_ns,
                     blocked_ns = excluded.blocked_ns, throttled_ns = excluded.throttled_ns,
                     switches = excluded.switches, page_allocations = excluded.page_allocations,
                     page_bytes = excluded.page_bytes, ended = excluded.ended
                 WHERE excluded.at >= at",
            )?
            .execute(params![
                sums.pid,
                sums.tid,
                self.since_start(sums.since_ns),
                self.since_start(sums.at_ns),
                self.since_start(sums.born_ns),
                task_name(&sums.name),
                known(sums.on_cpu_ns),
                known(sums.ready_ns),
                known(sums.blocked_ns),
                known(sums.throttled_ns),
                known(sums.switches),
                stored(sums.page_allocations),
                stored(sums.page_bytes),
                sums.ended
            ])?;
        Ok(())
    }

    fn system(&self, sample: &SystemSample) -> rusqlite::Result<()> {
        self.db
            .prepare_cached(
                "INSERT INTO system_second_ VALUES
                     (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, 0)",
            )?
            .execute(params![
                self.since_start(sample.at_ns),
                stored(sample.span_ns),
                stored(sample.user_ns),
                stored(sample.system_ns),
                stored(sample.iowait_ns),
                stored(sample.idle_ns),
                stored(sample.steal_ns),
                sample.cores,
                sample.load1,
                sample.runnable.map(stored),
                sample.memory_total.map(stored),
                sample.memory_available.map(stored),
                sample.swap_used.map(stored),
                sample.swap_in.map(stored),
                sample.swap_out.map(stored),
                sample.pressure_cpu_ns.map(stored),
                sample.pressure_memory_some_ns.map(stored),
                sample.pressure_memory_full_ns.map(stored),
                sample.pressure_io_some_ns.map(stored),
                sample.pressure_io_full_ns.map(stored)
            ])?;
        Ok(())
    }

    fn process(&self, sample: &ProcessSample) -> rusqlite::Result<()> {
        know_process(self.db, sample.pid)?;
        self.db
            .prepare_cached(
                "INSERT INTO process_second_ VALUES
                     (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?
            .execute(params![
                self.since_start(sample.at_ns),
                stored(sample.span_ns),
                sample.pid,
                stored(sample.user_ns),
                stored(sample.system_ns),
                stored(sample.resident),
                sample.anonymous.map(stored),
                sample.swapped.map(stored),
                sample.threads,
                stored(sample.major_faults),
                stored(sample.minor_faults),
                sample.read_bytes.map(stored),
                sample.write_bytes.map(stored),
                sample.page_allocations.map(stored),
                sample.page_bytes.map(stored)
            ])?;
        Ok(())
    }

    fn cgroup(&self, sample: &CgroupSample) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT OR IGNORE INTO cgroup_ (path, version) VALUES (?1, ?2)")?
            .execute(params![sample.path, sample.version])?;
        self.db
            .prepare_cached(
                "INSERT INTO cgroup_second_ VALUES (?1, (SELECT id FROM cgroup_ WHERE path = ?2 AND version = ?3),
                     ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?
            .execute(params![
                self.since_start(sample.at_ns),
                sample.path,
                sample.version,
                sample.quota_ns.map(stored),
                sample.period_ns.map(stored),
                sample.periods.map(stored),
                sample.throttled_periods.map(stored),
                sample.throttled_ns.map(stored),
                sample.usage_ns.map(stored),
                sample.memory_used.map(stored),
                sample.memory_limit.map(stored),
                sample.oom_kills.map(stored)
            ])?;
        Ok(())
    }

    fn gpu(&self, sample: &GpuSample) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT INTO gpu_second_ VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)")?
            .execute(params![
                self.since_start(sample.at_ns),
                sample.gpu,
                sample.rate_percent,
                sample.memory_rate_percent,
                sample.memory_used.map(stored),
                sample.memory_total.map(stored),
                sample.sm_mhz,
                sample.memory_mhz,
                sample.power_mw,
                sample.temperature_c,
                sample.throttle_reasons.map(u64::cast_signed)
            ])?;
        Ok(())
    }

    fn gpu_details(&self, samples: &Samples) -> rusqlite::Result<()> {
        for busy in &samples.busy {
            self.db.prepare_cached("INSERT INTO gpu_busy_ VALUES (?1, ?2, ?3)")?.execute(params![
                self.since_start(busy.at_ns),
                busy.gpu,
                busy.percent
            ])?;
        }
        for process in &samples.gpu_processes {
            self.db.prepare_cached("INSERT INTO gpu_process_ VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
                self.since_start(process.at_ns),
                process.gpu,
                process.pid,
                process.bytes.map(stored),
                process.sm_percent,
                (process.name[0] != 0).then(|| task_name(&process.name))
            ])?;
        }
        for error in &samples.gpu_errors {
            self.db.prepare_cached("INSERT INTO gpu_error_ VALUES (?1, ?2, ?3)")?.execute(params![
                self.since_start(error.at_ns),
                error.gpu,
                stored(error.xid)
            ])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_gpus_are_not_forgotten() {
        let mut waiting = Waiting::default();
        let gpu = Gpu { gpu: 3, ..Gpu::default() };
        waiting.add(Samples { new_gpus: vec![gpu], ..Samples::default() });
        let dropped: u64 = (0..MAX_WAITING + 9).map(|_| waiting.add(Samples::default())).sum();
        assert_eq!((dropped, waiting.samples.len(), waiting.gpus.len()), (10, MAX_WAITING, 1));
    }
}
