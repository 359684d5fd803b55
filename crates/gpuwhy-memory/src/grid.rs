// SPDX-License-Identifier: Apache-2.0
//! When live bytes are checked: at the same place of every step or, without steps, at regular times.

use crate::steps::{Certainty, ProcessSteps};

/// The most checks: with more steps, a check covers several.
pub(crate) const MOST_CHECKS: usize = 512;
/// Checks without steps, and the least time between two, ns.
const TIME_CHECKS: u64 = 128;
const LEAST_NS: u64 = 10_000_000;

/// The times at which a process is checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grid {
    /// When, ns; in order.
    pub(crate) at: Vec<u64>,
    /// Steps from one check to the next; 0 where there are no steps.
    pub(crate) stride: usize,
}

impl Grid {
    /// The checks in a time range.
    pub(crate) fn new(steps: &ProcessSteps, from_ns: u64, to_ns: u64) -> Self {
        if steps.certainty == Certainty::None {
            return Self::by_time(steps.active_ns.0.max(from_ns), steps.active_ns.1.min(to_ns));
        }
        let marks: Vec<u64> = steps.marks.iter().copied().filter(|at| (from_ns..=to_ns).contains(at)).collect();
        let stride = marks.len().div_ceil(MOST_CHECKS).max(1);
        // Whole groups, counted from the end, so that the last check is at the last step.
        let offset = marks.len().saturating_sub(1) % stride;
        Self { at: marks.into_iter().skip(offset).step_by(stride).collect(), stride }
    }

    fn by_time(from: u64, to: u64) -> Self {
        let span = to.saturating_sub(from);
        let every = (span / TIME_CHECKS).max(LEAST_NS);
        let checks = span / every;
        Self { at: (1..=checks).map(|i| from + i * every).collect(), stride: 0 }
    }

    /// The first check at or after a time: it is the first to see an allocation made then.
    pub(crate) fn check_at(&self, at_ns: u64) -> usize {
        self.at.partition_point(|check| *check < at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_are_checked_in_groups_that_end_with_the_last() {
        let marks: Vec<u64> = (0..1300).map(|i| i * 10).collect();
        let steps = ProcessSteps { certainty: Certainty::High, marks, ..ProcessSteps::default() };
        let grid = Grid::new(&steps, 0, u64::MAX);
        assert_eq!((grid.stride, grid.at.last(), grid.at.len()), (3, Some(&12_990), 434));
        assert_eq!(grid.check_at(grid.at[5]), 5);
        assert_eq!(grid.check_at(grid.at[5] + 1), 6);
    }

    #[test]
    fn without_steps_checks_are_regular() {
        let steps = ProcessSteps { active_ns: (1_000_000_000, 3_000_000_000), ..ProcessSteps::default() };
        let grid = Grid::new(&steps, 0, 2_000_000_000);
        assert_eq!((grid.stride, grid.at.len()), (0, 100));
        assert_eq!(Grid::new(&steps, 5_000_000_000, 6_000_000_000), Grid::default());
    }
}
