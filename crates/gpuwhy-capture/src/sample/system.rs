// SPDX-License-Identifier: Apache-2.0
//! The machine: CPU time, load, memory, swap and pressure, from `/proc`.

use super::files::{Kept, Units, gained, value_of};
use crate::capture::now_ns;
use gpuwhy_model::sample::SystemSample;
use std::path::Path;

/// Everything the kernel counts since boot; times in nanoseconds, swap in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    user: u64,
    system: u64,
    iowait: u64,
    idle: u64,
    steal: u64,
    swap_in: Option<u64>,
    swap_out: Option<u64>,
    pressure_cpu: Pressure,
    pressure_memory: Pressure,
    pressure_io: Pressure,
}

/// Stalled time, nanoseconds: some task waited, all tasks waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pressure {
    some: Option<u64>,
    full: Option<u64>,
}

/// Reads the machine and remembers the counters of the time before.
#[derive(Debug)]
pub(super) struct SystemReader {
    units: Units,
    stat: Kept,
    load: Kept,
    memory: Kept,
    vm: Kept,
    pressure: [Kept; 3],
    before: Option<(u64, Counters)>,
}

impl SystemReader {
    pub(super) fn new(proc_root: &Path, units: Units) -> Self {
        let open = |name: &str| Kept::open(&proc_root.join(name));
        Self {
            units,
            stat: open("stat"),
            load: open("loadavg"),
            memory: open("meminfo"),
            vm: open("vmstat"),
            pressure: [open("pressure/cpu"), open("pressure/memory"), open("pressure/io")],
            before: None,
        }
    }

    /// The increase since the previous sample; the first call only sets the baseline.
    pub(super) fn read(&mut self) -> Option<SystemSample> {
        let at_ns = now_ns();
        let (mut now, cores) = cpu_times(self.stat.read()?, self.units.tick_ns)?;
        if let Some(text) = self.vm.read() {
            now.swap_in = value_of(text, "pswpin").map(|pages| pages.saturating_mul(self.units.page));
            now.swap_out = value_of(text, "pswpout").map(|pages| pages.saturating_mul(self.units.page));
        }
        let [cpu, memory, io] = self.pressure.each_mut().map(|file| file.read().map(pressure).unwrap_or_default());
        (now.pressure_cpu, now.pressure_memory, now.pressure_io) = (cpu, memory, io);
        let (before_ns, before) = self.before.replace((at_ns, now))?;
        let mut sample = added(&now, &before);
        (sample.at_ns, sample.span_ns, sample.cores) = (at_ns, at_ns.saturating_sub(before_ns), cores);
        self.levels(&mut sample);
        Some(sample)
    }

    /// Gauges, not counters.
    fn levels(&mut self, sample: &mut SystemSample) {
        if let Some(text) = self.load.read() {
            (sample.load1, sample.runnable) = load(text);
        }
        if let Some(text) = self.memory.read() {
            let bytes = |name| value_of(text, name).map(|kb| kb.saturating_mul(1024));
            sample.memory_total = bytes("MemTotal");
            sample.memory_available = bytes("MemAvailable");
            sample.swap_used = gained(bytes("SwapTotal"), bytes("SwapFree"));
        }
    }
}

fn added(now: &Counters, before: &Counters) -> SystemSample {
    SystemSample {
        user_ns: now.user.saturating_sub(before.user),
        system_ns: now.system.saturating_sub(before.system),
        iowait_ns: now.iowait.saturating_sub(before.iowait),
        idle_ns: now.idle.saturating_sub(before.idle),
        steal_ns: now.steal.saturating_sub(before.steal),
        swap_in: gained(now.swap_in, before.swap_in),
        swap_out: gained(now.swap_out, before.swap_out),
        pressure_cpu_ns: gained(now.pressure_cpu.some, before.pressure_cpu.some),
        pressure_memory_some_ns: gained(now.pressure_memory.some, before.pressure_memory.some),
        pressure_memory_full_ns: gained(now.pressure_memory.full, before.pressure_memory.full),
        pressure_io_some_ns: gained(now.pressure_io.some, before.pressure_io.some),
        pressure_io_full_ns: gained(now.pressure_io.full, before.pressure_io.full),
        ..Default::default()
    }
}

/// The first line of `/proc/stat` (all CPUs together), and how many CPUs have a line of their own.
fn cpu_times(text: &str, tick_ns: u64) -> Option<(Counters, u32)> {
    let mut lines = text.lines();
    let all = lines.next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = all.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest and guest_nice follow and are inside user and nice.
    let ns = |index: usize| fields.get(index).copied().unwrap_or(0).saturating_mul(tick_ns);
    if fields.len() < 4 {
        return None;
    }
    let counters = Counters {
        user: ns(0).saturating_add(ns(1)),
        system: ns(2).saturating_add(ns(5)).saturating_add(ns(6)),
        idle: ns(3),
        iowait: ns(4),
        steal: ns(7),
        ..Default::default()
    };
    let cores = lines.take_while(|line| line.starts_with("cpu")).count();
    Some((counters, u32::try_from(cores.max(1)).unwrap_or(u32::MAX)))
}

/// `0.10 0.41 1.81 1/86 20465`: the load over a minute, and the tasks that run or could.
fn load(text: &str) -> (Option<f64>, Option<u64>) {
    let mut words = text.split_ascii_whitespace();
    let load1 = words.next().and_then(|word| word.parse().ok());
    let runnable = words.nth(2).and_then(|word| word.split_once('/')?.0.parse().ok());
    (load1, runnable)
}

/// A file of `/proc/pressure`; its `total=` is in microseconds.
fn pressure(text: &str) -> Pressure {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
        word.parse::<u64>().ok()?.checked_mul(1000)
    };
    Pressure { some: total("some "), full: total("full ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 10_000_000;

    #[test]
    fn cpu_time_is_counted_once_and_in_nanoseconds() {
        let text = "cpu  100 20 30 400 5 6 7 8 90 10\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nintr 5 0\ncpuish 1\n";
        let (times, cores) = cpu_times(text, TICK).unwrap();
        assert_eq!(cores, 2);
        // Guest time (90 and 10) is inside user and nice and is not added again.
        assert_eq!((times.user, times.system), (120 * TICK, 43 * TICK));
        assert_eq!((times.idle, times.iowait, times.steal), (400 * TICK, 5 * TICK, 8 * TICK));
        assert_eq!(cpu_times("intr 1\n", TICK), None);
        assert_eq!(cpu_times("cpu  1 2\n", TICK), None);
        assert_eq!(cpu_times("", TICK), None);
    }

    #[test]
    fn load_and_pressure_are_read() {
        assert_eq!(load("0.10 0.41 1.81 3/86 20465\n"), (Some(0.10), Some(3)));
        assert_eq!(load("x\n"), (None, None));
        let text = "some avg10=0.00 avg60=0.29 avg300=0.65 total=1357840782\nfull avg10=0.00 total=7\n";
        assert_eq!(pressure(text), Pressure { some: Some(1_357_840_782_000), full: Some(7000) });
        assert_eq!(pressure("some avg10=0.00 total=1\n"), Pressure { some: Some(1000), full: None });
        assert_eq!(pressure("nonsense"), Pressure::default());
    }

    #[test]
    fn counters_that_go_back_add_nothing() {
        let before = Counters { idle: 10, iowait: 10, swap_in: Some(5), ..Default::default() };
        let now = Counters { idle: 15, iowait: 9, swap_in: Some(4), ..Default::default() };
        let sample = added(&now, &before);
        assert_eq!((sample.idle_ns, sample.iowait_ns, sample.swap_in, sample.swap_out), (5, 0, Some(0), None));
    }

    #[test]
    fn a_machine_without_proc_has_no_sample() {
        let mut reader = SystemReader::new(Path::new("/nowhere"), Units::read());
        assert_eq!((reader.read(), reader.read()), (None, None));
    }
}
