// SPDX-License-Identifier: Apache-2.0
//! Who had the CPU while a thread waited for it: the views against a simulated scheduler that keeps its own account.

use crate::support::*;
use gpuwhy_model::{CpuRun, MovedWait, OffCpu, Reason, WokenBy};
use gpuwhy_store::Reader;
use std::collections::BTreeMap;

const THREADS: usize = 6;
const CPUS: usize = 2;

#[derive(Clone, Copy, PartialEq)]
enum State {
    On(usize),
    Blocked,
    Ready(usize),
}

/// Six threads on two CPUs; one thing happens at a time.
struct Machine {
    dice: Dice,
    now: u64,
    states: [State; THREADS],
    /// When each left its CPU, became ready, and began to wait for the CPU it waits for.
    left: [u64; THREADS],
    ready: [u64; THREADS],
    waits_since: [u64; THREADS],
    left_cpu: [u16; THREADS],
    running: [Option<usize>; CPUS],
    ran_since: [u64; CPUS],
    off: Vec<OffCpu>,
    runs: Vec<CpuRun>,
    moved: Vec<MovedWait>,
    /// Time by waiting thread, CPU and who had it: counted directly, step by step.
    truth: BTreeMap<(u32, usize, u32), u64>,
}

fn tid(thread: usize) -> u32 {
    1_001 + thread as u32
}

impl Machine {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice(seed),
            now: ORIGIN + 10,
            states: [State::Blocked; THREADS],
            // No two in the same nanosecond: one of them would be moved, and with it what is compared.
            left: std::array::from_fn(|thread| ORIGIN + thread as u64),
            ready: [0; THREADS],
            waits_since: [0; THREADS],
            left_cpu: [0; THREADS],
            running: [None; CPUS],
            ran_since: [ORIGIN; CPUS],
            off: Vec::new(),
            runs: Vec::new(),
            moved: Vec::new(),
            truth: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        let passed = 1 + self.dice.below(5_000);
        for thread in 0..THREADS {
            if let State::Ready(cpu) = self.states[thread] {
                let holder = self.running[cpu].map_or(0, tid);
                *self.truth.entry((tid(thread), cpu, holder)).or_default() += passed;
            }
        }
        self.now += passed;
        let thread = self.dice.below(THREADS as u64) as usize;
        let cpu = self.dice.below(CPUS as u64) as usize;
        match (self.dice.below(4), self.states[thread]) {
            (0, State::Blocked) => self.wake(thread, cpu),
            (1, State::Ready(old)) if old != cpu => self.migrate(thread, old, cpu),
            (2, State::Ready(wanted)) => self.switch(wanted, Some(thread), true),
            (3, State::On(cpu)) => self.switch(cpu, None, false),
            _ => {}
        }
    }

    fn wake(&mut self, thread: usize, cpu: usize) {
        self.states[thread] = State::Ready(cpu);
        self.ready[thread] = self.now;
        self.waits_since[thread] = self.now;
    }

    fn migrate(&mut self, thread: usize, old: usize, new: usize) {
        let since = std::mem::replace(&mut self.waits_since[thread], self.now);
        self.moved.push(MovedWait {
            start_ns: since,
            duration_ns: self.now - since,
            pid: 1_000,
            tid: tid(thread),
            cpu: old as u16,
        });
        self.states[thread] = State::Ready(new);
    }

    /// Gives the CPU to another; who had it is preempted, or waits.
    fn switch(&mut self, cpu: usize, next: Option<usize>, preempt: bool) {
        self.note_run(cpu);
        if let Some(previous) = self.running[cpu] {
            self.left[previous] = self.now;
            self.left_cpu[previous] = cpu as u16;
            self.states[previous] = State::Blocked;
            if preempt {
                self.wake(previous, cpu);
            }
        }
        if let Some(thread) = next {
            self.note_off(thread, cpu, false);
            self.states[thread] = State::On(cpu);
        }
        self.running[cpu] = next;
    }

    fn note_run(&mut self, cpu: usize) {
        let since = std::mem::replace(&mut self.ran_since[cpu], self.now);
        let (pid, tid, name) = match self.running[cpu] {
            Some(thread) => (1_000, tid(thread), *b"worker\0\0\0\0\0\0\0\0\0\0"),
            None => (0, 0, *b"swapper/0\0\0\0\0\0\0\0"),
        };
        self.runs.push(CpuRun { start_ns: since, duration_ns: self.now - since, pid, tid, cpu: cpu as u16, name });
    }

    fn note_off(&mut self, thread: usize, cpu: usize, unfinished: bool) {
        let waited = self.ready[thread] > self.left[thread];
        let ready_ns = if matches!(self.states[thread], State::Ready(_)) { self.now - self.ready[thread] } else { 0 };
        self.off.push(OffCpu {
            start_ns: self.left[thread],
            duration_ns: self.now - self.left[thread],
            ready_ns,
            tid: tid(thread),
            pid: 1_000,
            reason: if waited { Reason::Asleep } else { Reason::Preempted },
            woken_by: if waited { WokenBy::Thread } else { WokenBy::Nobody },
            left_cpu: self.left_cpu[thread],
            cpu: cpu as u16,
            unfinished,
            weight: 1,
            stack: None,
            ..off_cpu(0, 0, 0)
        });
    }

    fn stop(&mut self) {
        (0..CPUS).for_each(|cpu| self.note_run(cpu));
        for thread in 0..THREADS {
            match self.states[thread] {
                State::Ready(cpu) => self.note_off(thread, cpu, true),
                State::Blocked => self.note_off(thread, 0, true),
                State::On(_) => {}
            }
        }
    }
}

fn shuffle<T>(rows: &mut [T], dice: &mut Dice) {
    for i in (1..rows.len()).rev() {
        rows.swap(i, dice.below(i as u64 + 1) as usize);
    }
}

#[test]
fn every_wait_is_charged_to_who_had_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 31..34 {
        let path = folder.path().join("run.db");
        let mut machine = Machine::new(seed);
        (0..40_000).for_each(|_| machine.step());
        machine.stop();
        let Machine { mut dice, mut off, mut runs, mut moved, truth, .. } = machine;
        assert!(moved.len() > 500 && off.len() > 2_000);
        shuffle(&mut off, &mut dice);
        shuffle(&mut runs, &mut dice);
        shuffle(&mut moved, &mut dice);
        let mut writer = create(&path);
        off.chunks_mut(333).for_each(|batch| writer.write_off_cpu(batch).unwrap());
        runs.chunks(100).for_each(|batch| writer.write_cpu_runs(batch).unwrap());
        writer.commit().unwrap();
        writer.write_moved_waits(&moved).unwrap();
        writer.finish(&end());

        let reader = Reader::open(&path).unwrap();
        let expected: Vec<String> =
            truth.iter().map(|((tid, cpu, holder), ns)| format!("{tid}|{cpu}|{holder}|{ns}")).collect();
        let held = "SELECT tid, cpu, holder_tid, SUM(duration_ns) FROM cpu_held GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
        assert_eq!(ask(&reader, held).unwrap(), expected);
        let total: u64 = truth.values().sum();
        assert_eq!(number(&reader, "SELECT SUM(duration_ns) FROM cpu_waits"), total as i64);
        assert_eq!(number(&reader, "SELECT SUM(duration_ns) FROM cpu_held"), total as i64);
        let length = reader.session().unwrap().duration_ns;
        let mut parts: Vec<(u64, u64)> = (0..8).map(|i| (length / 9 * i, length / 9 * i + length / 5)).collect();
        parts.push((0, u64::MAX >> 1));
        for (from, to) in parts {
            // What the view says of the part, against what is read of the part alone.
            let clipped = format!(
                "SELECT holder_pid, holder_name, SUM(MIN(timestamp + duration_ns, {to}) - MAX(timestamp, {from})) FROM cpu_held
                 WHERE timestamp < {to} AND timestamp + duration_ns > {from} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
            );
            let found = reader.cpu_holders((from, to), &[]).unwrap();
            let found: Vec<String> = found.iter().map(|h| format!("{}|{}|{}", h.pid, h.name, h.held_ns)).collect();
            assert_eq!(found, ask(&reader, &clipped).unwrap(), "{from} to {to}");
        }
        let idle = "SELECT DISTINCT holder_name FROM cpu_held WHERE holder_pid = 0";
        assert_eq!(ask(&reader, idle).unwrap(), ["idle"]);
        assert_eq!(number(&reader, "SELECT COUNT(*) FROM cpu_runs"), runs.len() as i64);
        assert_eq!(number(&reader, "SELECT events_seen FROM sessions"), off.len() as i64);
        assert_eq!(number(&reader, "SELECT MIN(duration_ns) > 0 FROM cpu_held"), 1);
    }
}

#[test]
fn waits_are_pieces_and_throttled_time_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    let piece = |at: u64, duration_ns| MovedWait { start_ns: ORIGIN + at, duration_ns, pid: 200, tid: 201, cpu: 7 };
    // Ready from 1,400 on: moved at 1,450 and 1,460, and two rows that tie with it.
    let mut rows = [
        off_cpu(1_000, 500, 100),
        OffCpu { tid: 202, ..off_cpu(1_000, 30, 0) },
        OffCpu { tid: 203, reason: Reason::Throttled, ..off_cpu(1_000, 800, 800) },
        off_cpu(2_000, 50, 50),
    ];
    writer.write_moved_waits(&[piece(1_400, 50), piece(1_450, 10), piece(2_000, 50)]).unwrap();
    writer.write_off_cpu(&mut rows).unwrap();
    let run = |at: u64, duration_ns, pid| CpuRun {
        start_ns: (ORIGIN + at).saturating_sub(5_000),
        duration_ns,
        pid,
        tid: pid + 1,
        cpu: 7,
        name: *b"0123456789abcdef",
    };
    // One from before the run, one told twice, one that was over when the run began.
    writer.write_cpu_runs(&[run(0, 6_420, 50), run(6_420, 10, 60), run(6_420, 700, 60), run(10, 20, 70)]).unwrap();
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    assert_eq!(
        ask(&reader, "SELECT timestamp, duration_ns, pid, tid, cpu FROM cpu_waits ORDER BY 1").unwrap(),
        ["1400|50|200|201|7", "1450|10|200|201|7", "1460|40|200|201|1", "2000|50|200|201|7"]
    );
    assert_eq!(
        ask(&reader, "SELECT timestamp, duration_ns, cpu, pid, tid, name FROM cpu_runs ORDER BY 1").unwrap(),
        ["0|1420|7|50|51|0123456789abcdef", "1420|700|7|60|61|0123456789abcdef"]
    );
    assert_eq!(
        ask(&reader, "SELECT timestamp, duration_ns, tid, cpu, holder_pid, holder_tid FROM cpu_held ORDER BY 1")
            .unwrap(),
        ["1400|20|201|7|50|51", "1420|30|201|7|60|61", "1450|10|201|7|60|61", "2000|50|201|7|60|61"]
    );
}
