// SPDX-License-Identifier: Apache-2.0
//! When to examine a run that is still recorded: seldom enough that all examinations together take about a hundredth of
//! the time.

/// The first, after the run began, ns.
const FIRST_NS: u64 = 5_000_000_000;
/// Examinations may take one part in so many of the time.
const PART: u64 = 100;
/// However early: what opening a run file takes, ns.
const LEAST_NS: u64 = 50_000_000;

/// Says when, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    next_ns: u64,
    spent_ns: u64,
    cut_short: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { next_ns: FIRST_NS, spent_ns: 0, cut_short: false }
    }
}

impl Schedule {
    /// The CPU time that an examination may take, ns, if one may begin so long after the run did.
    pub fn due(&self, elapsed_ns: u64) -> Option<u64> {
        let allowance = (elapsed_ns / PART).saturating_sub(self.spent_ns);
        let enough = if self.spent_ns == 0 { allowance.max(LEAST_NS) } else { allowance };
        (elapsed_ns >= self.next_ns && enough >= LEAST_NS).then_some(enough)
    }

    /// One has taken so much CPU time. What was cut short would be again soon: the run only grows.
    pub fn done(&mut self, elapsed_ns: u64, cpu_ns: u64, finished: bool) {
        self.spent_ns = self.spent_ns.saturating_add(cpu_ns);
        self.cut_short = !finished;
        let factor = if finished { 3 } else { 8 };
        self.next_ns = elapsed_ns.saturating_mul(factor) / 2;
    }

    /// Whether the last one would have taken longer than it may.
    pub fn is_unaffordable(&self) -> bool {
        self.cut_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A run of so many seconds whose examination takes this part of its length; the times of those that finished, s,
    /// and the CPU time of all, ns.
    fn play(seconds: u64, part: f64) -> (Vec<u64>, u64) {
        let (mut schedule, mut spent, mut finished) = (Schedule::default(), 0, Vec::new());
        for second in 0..seconds {
            let elapsed = second * SECOND;
            let Some(allowance) = schedule.due(elapsed) else { continue };
            let needed = (elapsed as f64 * part) as u64;
            spent += needed.min(allowance);
            schedule.done(elapsed, needed.min(allowance), needed <= allowance);
            if needed <= allowance {
                finished.push(second);
            }
        }
        (finished, spent)
    }

    #[test]
    fn examinations_become_rarer_and_stay_cheap() {
        let (finished, spent) = play(36_000, 0.001);
        assert!(finished.len() > 10 && finished[1] <= 15, "{finished:?}");
        assert!(spent <= 360 * SECOND, "{spent}");
        for part in [0.003, 0.008, 0.05, 3.0] {
            let (_, spent) = play(36_000, part);
            assert!(spent <= 361 * SECOND, "{part}: {spent}");
        }
        assert_eq!(play(36_000, 3.0).0, [0; 0]);
    }
}
