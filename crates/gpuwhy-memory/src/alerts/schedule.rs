// SPDX-License-Identifier: Apache-2.0
//! When to examine a run that is still recorded, and how much of it: all examinations together take about a hundredth of
//! the time. Where the whole run would take longer, as in jobs of very many calls, its beginning must do.

/// The first, after the run began, ns.
const FIRST_NS: u64 = 5_000_000_000;
/// Examinations may take one part in so many of the time.
const PART: u64 = 100;
/// However early: what opening a run file takes, ns.
const LEAST_NS: u64 = 50_000_000;
/// A run of which only a smaller part can be examined is none that can be.
const LEAST_PART: f64 = 1.0 / 1024.0;

/// An examination that may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The CPU time it may take, ns.
    pub cpu_ns: u64,
    /// Up to where the run is examined, ns since it began.
    pub to_ns: u64,
}

/// Says when, how much and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    next_ns: u64,
    spent_ns: u64,
    /// The part of the run that is examined, from its beginning on.
    part: f64,
    allowed_ns: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { next_ns: FIRST_NS, spent_ns: 0, part: 1.0, allowed_ns: 0 }
    }
}

impl Schedule {
    /// The examination that may begin so long after the run did.
    pub fn due(&mut self, elapsed_ns: u64) -> Option<Look> {
        let left = (elapsed_ns / PART).saturating_sub(self.spent_ns);
        self.allowed_ns = if self.spent_ns == 0 { left.max(LEAST_NS) } else { left };
        let is_due = elapsed_ns >= self.next_ns && self.allowed_ns >= LEAST_NS;
        is_due.then_some(Look { cpu_ns: self.allowed_ns, to_ns: (elapsed_ns as f64 * self.part) as u64 })
    }

    /// It has taken so much CPU time. After one that was cut short, less of the run is examined; while there is time, more.
    pub fn done(&mut self, elapsed_ns: u64, cpu_ns: u64, finished: bool) {
        self.spent_ns = self.spent_ns.saturating_add(cpu_ns);
        if !finished {
            self.part = (self.part / 4.0).max(LEAST_PART);
        } else if cpu_ns.saturating_mul(3) < self.allowed_ns {
            self.part = (self.part * 2.0).min(1.0);
        }
        self.next_ns = elapsed_ns.saturating_mul(3) / 2;
    }

    /// Whether the whole run would take longer than it may.
    pub fn is_partial(&self) -> bool {
        self.part < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A run of so many seconds whose examination takes this part of its length: of those that finished when they were and
    /// how far they went, s; and the CPU time of all, ns.
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
    fn of_a_run_that_is_dear_to_examine_the_beginning_is() {
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
