// SPDX-License-Identifier: Apache-2.0
//! The watched processes: CPU time, memory, faults and storage, from `/proc/PID`.

use super::files::{Units, ahead_of_monotonic_ns, clock_ns, gained, text, value_of};
use crate::capture::now_ns;
use gpuwhy_model::sample::ProcessSample;
use std::collections::HashMap;
use std::path::PathBuf;

/// The figures of a whole process in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: char,
    minor_faults: u64,
    major_faults: u64,
    user_ticks: u64,
    system_ticks: u64,
    threads: u32,
    /// Ticks since boot; with the number it names a process for ever.
    start_ticks: u64,
}

impl Stat {
    /// Ended, and only waits for its parent to notice. A main thread may end before the others.
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// Counters since the start of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    user_ns: u64,
    system_ns: u64,
    minor_faults: u64,
    major_faults: u64,
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
}

impl Counters {
    /// A process that just began.
    const NOTHING: Self =
        Self { user_ns: 0, system_ns: 0, minor_faults: 0, major_faults: 0, read_bytes: Some(0), write_bytes: Some(0) };
}

/// The time before, of one process.
#[derive(Debug, Clone, Copy)]
struct Before {
    at_ns: u64,
    start_ticks: u64,
    counters: Counters,
}

/// Reads watched processes and remembers the counters of the time before.
#[derive(Debug)]
pub(super) struct ProcessReader {
    proc_root: PathBuf,
    units: Units,
    /// When watching began, ticks since boot: of what began later, everything counts.
    began_ticks: u64,
    before: HashMap<u32, Before>,
}

impl ProcessReader {
    pub(super) fn new(proc_root: PathBuf, units: Units) -> Self {
        let began_ticks = clock_ns(libc::CLOCK_BOOTTIME) / units.tick_ns;
        Self { proc_root, units, began_ticks, before: HashMap::new() }
    }

    /// Notes where the counters of new processes stand, so that their first sample is not lost.
    pub(super) fn meet(&mut self, pids: &[u32]) {
        for &pid in pids {
            if !self.before.contains_key(&pid)
                && let Some((at_ns, stat)) = self.stat(pid)
            {
                let counters = self.counters(pid, &stat);
                let before = self.first_sight(at_ns, &stat, counters);
                self.before.insert(pid, before);
            }
        }
    }

    /// One sample for each process that is still there. Numbers come sorted.
    pub(super) fn read(&mut self, pids: &[u32]) -> Vec<ProcessSample> {
        self.before.retain(|pid, _| pids.binary_search(pid).is_ok());
        pids.iter().filter_map(|pid| self.read_one(*pid)).collect()
    }

    fn read_one(&mut self, pid: u32) -> Option<ProcessSample> {
        let Some((at_ns, stat)) = self.stat(pid) else {
            self.before.remove(&pid);
            return None;
        };
        let now = self.counters(pid, &stat);
        // The same number with another start is another process.
        let known = self.before.get(&pid).filter(|before| before.start_ticks == stat.start_ticks).copied();
        let before = known.unwrap_or_else(|| self.first_sight(at_ns, &stat, now));
        self.before.insert(pid, Before { at_ns, start_ticks: stat.start_ticks, counters: now });
        let sample = self.sample(pid, at_ns, &stat, &now, &before);
        // A zombie is reported once more, for its last activity.
        let silent = sample.user_ns == 0 && sample.system_ns == 0 && sample.major_faults == 0;
        (!(stat.has_ended() && silent)).then_some(sample)
    }

    fn sample(&self, pid: u32, at_ns: u64, stat: &Stat, now: &Counters, before: &Before) -> ProcessSample {
        let status = text(&self.file(pid, "status")).unwrap_or_default();
        let bytes = |name| value_of(&status, name).map(|kb| kb.saturating_mul(1024));
        let base = &before.counters;
        ProcessSample {
            at_ns,
            span_ns: at_ns.saturating_sub(before.at_ns),
            pid,
            user_ns: now.user_ns.saturating_sub(base.user_ns),
            system_ns: now.system_ns.saturating_sub(base.system_ns),
            resident: bytes("VmRSS").unwrap_or(0),
            anonymous: bytes("RssAnon"),
            swapped: bytes("VmSwap"),
            threads: stat.threads,
            major_faults: now.major_faults.saturating_sub(base.major_faults),
            minor_faults: now.minor_faults.saturating_sub(base.minor_faults),
            read_bytes: gained(now.read_bytes, base.read_bytes),
            write_bytes: gained(now.write_bytes, base.write_bytes),
            page_allocations: None,
            page_bytes: None,
        }
    }

    /// The baseline of a new process: zero at its start if it started during the trace, otherwise its current figures,
    /// because earlier activity does not count.
    fn first_sight(&self, at_ns: u64, stat: &Stat, now: Counters) -> Before {
        if stat.start_ticks < self.began_ticks {
            return Before { at_ns, start_ticks: stat.start_ticks, counters: now };
        }
        let started_ns = monotonic_of_start(stat.start_ticks, self.units).min(at_ns);
        Before { at_ns: started_ns, start_ticks: stat.start_ticks, counters: Counters::NOTHING }
    }

    fn stat(&self, pid: u32) -> Option<(u64, Stat)> {
        let at_ns = now_ns();
        Some((at_ns, parse_stat(&text(&self.file(pid, "stat"))?)?))
    }

    fn counters(&self, pid: u32, stat: &Stat) -> Counters {
        // Refused for other users' processes, absent in some kernels.
        let io = text(&self.file(pid, "io"));
        let io = |name| io.as_deref().and_then(|text| value_of(text, name));
        Counters {
            user_ns: stat.user_ticks.saturating_mul(self.units.tick_ns),
            system_ns: stat.system_ticks.saturating_mul(self.units.tick_ns),
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
            read_bytes: io("read_bytes"),
            write_bytes: io("write_bytes"),
        }
    }

    fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.proc_root.join(format!("{pid}/{name}"))
    }
}

/// A start in ticks since boot as `CLOCK_MONOTONIC` nanoseconds, which does not count suspended time.
fn monotonic_of_start(start_ticks: u64, units: Units) -> u64 {
    let since_boot = i128::from(start_ticks) * i128::from(units.tick_ns);
    u64::try_from((since_boot - ahead_of_monotonic_ns(libc::CLOCK_BOOTTIME)).max(0)).unwrap_or(0)
}

/// When a process began, `CLOCK_MONOTONIC` ns (to a clock tick); `None` once it is gone.
pub(crate) fn started_ns(pid: u32) -> Option<u64> {
    let stat = parse_stat(&text(&PathBuf::from(format!("/proc/{pid}/stat")))?)?;
    Some(monotonic_of_start(stat.start_ticks, Units::read()))
}

/// The name in parentheses may contain anything, parentheses and newlines too: fields follow the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        minor_faults: number(7)?,
        major_faults: number(9)?,
        user_ticks: number(11)?,
        system_ticks: number(12)?,
        threads: u32::try_from(number(17)?).unwrap_or(u32::MAX),
        start_ticks: number(19)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn stat_line(comm: &str, user: u64, start: u64) -> String {
        format!("7 ({comm}) S 1 7 7 0 -1 4194304 119 8 3 9 {user} 20 70 80 20 0 5 0 {start} 3133440 379 0\n")
    }

    fn fake(proc_root: &Path, user: u64, start: u64) {
        let folder = proc_root.join("7");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stat"), stat_line("worker) R 1 (x\n9", user, start)).unwrap();
        fs::write(folder.join("status"), "Name:\tworker\nVmRSS:\t  10 kB\nRssAnon:\t 4 kB\nVmSwap:\t 2 kB\n").unwrap();
    }

    #[test]
    fn hostile_names_do_not_shift_fields() {
        for comm in ["cat", "a) R 1 (b", ")", "((((", "x\ny) Z 5", ""] {
            let stat = parse_stat(&stat_line(comm, 10, 99)).unwrap();
            assert_eq!((stat.state, stat.minor_faults, stat.major_faults), ('S', 119, 3), "{comm}");
            assert_eq!((stat.user_ticks, stat.system_ticks, stat.threads, stat.start_ticks), (10, 20, 5, 99));
        }
        for broken in ["", "7 (x", "7 (x) S 1", "7 (x) S a b c d e f g h i j k l m n o p q r s t"] {
            assert_eq!(parse_stat(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_past_of_an_old_process_is_not_counted_and_a_reused_number_starts_anew() {
        let root = std::env::temp_dir().join(format!("gpuwhy-sample-{}", std::process::id()));
        let units = Units { tick_ns: 10_000_000, page: 4096 };
        fake(&root, 500, 1);
        let mut reader = ProcessReader::new(root.clone(), units);
        let first = reader.read(&[7, 8]);
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!((first[0].user_ns, first[0].span_ns, first[0].read_bytes), (0, 0, None));
        assert_eq!((first[0].resident, first[0].anonymous, first[0].swapped), (10240, Some(4096), Some(2048)));
        fake(&root, 530, 1);
        assert_eq!(reader.read(&[7])[0].user_ns, 300_000_000);
        // Another old process under the same number: its CPU time before is not this second's.
        fake(&root, 900, 2);
        assert_eq!(reader.read(&[7])[0].user_ns, 0);
        // Started after the sampler: everything counts.
        let start = clock_ns(libc::CLOCK_BOOTTIME) / units.tick_ns;
        fake(&root, 3, start);
        let fresh = reader.read(&[7]).remove(0);
        assert_eq!((fresh.user_ns, fresh.minor_faults), (30_000_000, 119));
        assert!(fresh.span_ns < 1_000_000_000, "{}", fresh.span_ns);
        // Gone, then back as if new: the old baseline is not used.
        assert!(reader.read(&[]).is_empty());
        assert!(reader.before.is_empty());
        fs::remove_dir_all(&root).unwrap();
        assert!(reader.read(&[7]).is_empty());
    }
}
