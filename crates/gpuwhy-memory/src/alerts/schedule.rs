// SPDX-License-Identifier: Apache-2.0
//! When to examine a run that is still being recorded, and how much of it. All examinations together take about 1 % of the
//! time. If the whole run would take longer, as in jobs with very many calls, only its beginning is examined.

/// Time from the start of the run to the first examination, ns.
const FIRST_NS: u64 = 5_000_000_000;
/// Examinations may take one part in this many of the time.
const PART: u64 = 100;
/// An examination may always take this long: opening a run file takes as much, ns.
const LEAST_NS: u64 = 50_000_000;
/// The smallest share of a run that is worth an examination.
const LEAST_PART: f64 = 1.0 / 1024.0;

/// An examination that may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examination {
    /// The CPU time it may take, ns.
    pub cpu_ns: u64,
    /// The run is examined up to here, ns since it began.
    pub to_ns: u64,
}

/// Schedules examinations.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    next_ns: u64,
    spent_ns: u64,
    /// The share of the run that is examined, from its beginning on.
    part: f64,
    allowed_ns: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { next_ns: FIRST_NS, spent_ns: 0, part: 1.0, allowed_ns: 0 }
    }
}

impl Schedule {
    /// The examination that is due, if any; `elapsed_ns` is the time since the run began.
    pub fn due(&mut self, elapsed_ns: u64) -> Option<Examination> {
        let left = (elapsed_ns / PART).saturating_sub(self.spent_ns);
        self.allowed_ns = if self.spent_ns == 0 { left.max(LEAST_NS) } else { left };
        let is_due = elapsed_ns >= self.next_ns && self.allowed_ns >= LEAST_NS;
        is_due.then_some(Examination { cpu_ns: self.allowed_ns, to_ns: (elapsed_ns as f64 * self.part) as u64 })
    }

    /// Records the CPU time an examination took. After one that was cut short, the next covers less of the run; if there
    /// was time to spare, more.
    pub fn done(&mut self, elapsed_ns: u64, cpu_ns: u64, finished: bool) {
        self.spent_ns = self.spent_ns.saturating_add(cpu_ns);
        if !finished {
            self.part = (self.part / 4.0).max(LEAST_PART);
        } else if cpu_ns.saturating_mul(3) < self.allowed_ns {
            self.part = (self.part * 2.0).min(1.0);
        }
        self.next_ns = elapsed_ns.saturating_mul(3) / 2;
    }

    /// Whether examining the whole run would take too long.
    pub fn is_partial(&self) -> bool {
        self.part < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Plays a run of this many seconds whose examination takes `cost` of its length. Returns when the finished
    /// examinations were and how far they went, s, and the CPU time of all, ns.
    fn play(seconds: u64, cost: f64) -> (Vec<(u64, u64)>, u64) {
        let (mut schedule, mut spent, mut finished) = (Schedule::default(), 0, Vec::new());
        for second in 0..seconds {
            let elapsed = second * SECOND;
            let Some(look) = schedule.due(elapsed) else { continue };
            let needed = (look.to_ns as f64 * cost) as u64;
            spent += needed.min(look.cpu_ns);
            schedule.done(elapsed, needed.min(look.cpu_ns), needed <= look.cpu_ns);
            if needed <= look.cpu_ns {
                finished.push((second, look.to_ns / SECOND));
            }
        }
        (finished, spent)
    }

    #[test]
    fn examinations_become_rarer_and_stay_cheap() {
        let (finished, spent) = play(36_000, 0.001);
        assert!(finished.len() > 10 && finished[1].0 <= 15, "{finished:?}");
        assert!(finished.iter().all(|(at, to)| at == to), "of the whole run: {finished:?}");
        assert!(spent <= 360 * SECOND, "{spent}");
    }

    #[test]
    fn only_the_beginning_is_examined_of_a_run_that_is_expensive_to_examine() {
        for cost in [0.003, 0.008, 0.02, 0.1, 0.5, 3.0] {
            let (finished, spent) = play(36_000, cost);
            assert!(spent <= 361 * SECOND, "{cost}: {spent}");
            let (at, to) = finished.last().copied().unwrap();
            // A third of what a hundredth of the time allows, or more.
            assert!(to as f64 * cost >= at as f64 / 100.0 / 24.0, "{cost}: {to} of {at} s");
        }
        let (finished, _) = play(120, 0.02);
        assert!(finished.len() >= 2 && finished[1].0 < 60, "{finished:?}");
    }
}
