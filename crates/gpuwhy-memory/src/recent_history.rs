// SPDX-License-Identifier: Apache-2.0
//! The last two minutes of a space, kept for when something goes wrong: fine-grained for the first seconds, coarser as it
//! gets longer.

use crate::report::TimelinePoint;
use std::collections::VecDeque;

/// Its length, ns.
const BEFORE_NS: u64 = 120_000_000_000;
/// The width of a point at first, ns: a second, halved seven times.
const FINEST_NS: u64 = 7_812_500;
/// With more points, their width is doubled. At half a second, two minutes have this many.
const MOST_POINTS: usize = 241;

/// The recent past. Points without a change are left out.
#[derive(Debug)]
pub(crate) struct RecentHistory {
    width_ns: u64,
    points: VecDeque<TimelinePoint>,
}

impl Default for RecentHistory {
    fn default() -> Self {
        Self { width_ns: FINEST_NS, points: VecDeque::new() }
    }
}

impl RecentHistory {
    /// Sets the values from this time on.
    pub(crate) fn note(&mut self, at: u64, allocated: u64, reserved: u64) {
        self.put(TimelinePoint { at_ns: at, allocated, allocated_least: allocated, reserved, device_used: None });
        while self.points.front().is_some_and(|point| point.at_ns.saturating_add(BEFORE_NS) < at) {
            self.points.pop_front();
        }
        if self.points.len() > MOST_POINTS {
            self.width_ns *= 2;
            std::mem::take(&mut self.points).into_iter().for_each(|point| self.put(point));
        }
    }

    /// The points, oldest first.
    pub(crate) fn points(&self) -> Vec<TimelinePoint> {
        self.points.iter().copied().collect()
    }

    fn put(&mut self, new: TimelinePoint) {
        let begins = new.at_ns - new.at_ns % self.width_ns;
        match self.points.back_mut().filter(|point| point.at_ns == begins) {
            Some(point) => {
                point.allocated = point.allocated.max(new.allocated);
                point.allocated_least = point.allocated_least.min(new.allocated_least);
                point.reserved = point.reserved.max(new.reserved);
            }
            None => self.points.push_back(TimelinePoint { at_ns: begins, ..new }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn noted(every_ns: u64, until_ns: u64) -> Vec<TimelinePoint> {
        let mut recent = RecentHistory::default();
        (0..until_ns / every_ns).for_each(|n| recent.note(n * every_ns, 1_000 + n, 5_000));
        recent.points()
    }

    #[test]
    fn a_short_job_is_fine_grained_and_a_long_one_covers_two_minutes() {
        let short = noted(20_000_000, SECOND);
        assert_eq!(short.len(), 50, "each change is seen");
        let long = noted(10_000_000, 1_000 * SECOND);
        assert!((120..=MOST_POINTS).contains(&long.len()), "{}", long.len());
        let (first, last) = (long[0], long[long.len() - 1]);
        assert!((119 * SECOND..=121 * SECOND).contains(&(last.at_ns - first.at_ns)));
        assert_eq!(last.allocated, 1_000 + 99_999, "the last one is included");
    }

    #[test]
    fn peaks_survive_when_points_are_merged() {
        let mut recent = RecentHistory::default();
        recent.note(0, 9_000, 9_000);
        (1..10_000).for_each(|n| recent.note(n * 8_000_000, 10, 20));
        let first = recent.points()[0];
        assert_eq!((first.allocated, first.allocated_least, first.reserved), (9_000, 10, 9_000));
    }
}
