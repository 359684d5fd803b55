// SPDX-License-Identifier: Apache-2.0
//! When live bytes are looked at: at the same place of every step, or, without steps, at even times.

use crate::steps::{Certainty, ProcessSteps};

/// At most so many looks: more steps are looked at in groups.
pub(crate) const MOST_LOOKS: usize = 512;
/// Looks where there are no steps, and the least time between two, ns.
const TIME_LOOKS: u64 = 128;
const LEAST_NS: u64 = 10_000_000;

/// The looks of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Grid {
    /// When, ns; in order.
    pub(crate) at: Vec<u64>,
    /// Steps from one look to the next; 0 where there are no steps.
    pub(crate) stride: usize,
}

impl Grid {
    /// Looks between the two times.
    pub(crate) fn new(steps: &ProcessSteps, from_ns: u64, to_ns: u64) -> Self {
        if steps.certainty == Certainty::None {
            return Self::by_time(steps.active_ns.0.max(from_ns), steps.active_ns.1.min(to_ns));
        }
        let marks: Vec<u64> = steps.marks.iter().copied().filter(|at| (from_ns..=to_ns).contains(at)).collect();
        let stride = marks.len().div_ceil(MOST_LOOKS).max(1);
        // Whole groups, counted from the end: the last look is the newest.
        let offset = marks.len().saturating_sub(1) % stride;
        Self { at: marks.into_iter().skip(offset).step_by(stride).collect(), stride }
    }

    fn by_time(from: u64, to: u64) -> Self {
        let span = to.saturating_sub(from);
        let every = (span / TIME_LOOKS).max(LEAST_NS);
        let looks = span / every;
        Self { at: (1..=looks).map(|i| from + i * every).collect(), stride: 0 }
    }

    /// Which look comes at or after a moment: what was allocated then is first seen there.
    pub(crate) fn look_at(&self, at_ns: u64) -> usize {
        self.at.partition_point(|look| *look < at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_are_looked_at_in_groups_that_end_with_the_last() {
        let marks: Vec<u64> = (0..1300).map(|i| i * 10).collect();
        let steps = ProcessSteps { certainty: Certainty::High, marks, ..ProcessSteps::default() };
        let grid = Grid::new(&steps, 0, u64::MAX);
        assert_eq!((grid.stride, grid.at.last(), grid.at.len()), (3, Some(&12_990), 434));
        assert_eq!(grid.look_at(grid.at[5]), 5);
        assert_eq!(grid.look_at(grid.at[5] + 1), 6);
    }

    #[test]
    fn without_steps_there_is_time() {
        let steps = ProcessSteps { active_ns: (1_000_000_000, 3_000_000_000), ..ProcessSteps::default() };
        let grid = Grid::new(&steps, 0, 2_000_000_000);
        assert_eq!((grid.stride, grid.at.len()), (0, 100));
        assert_eq!(Grid::new(&steps, 5_000_000_000, 6_000_000_000), Grid::default());
    }
}
