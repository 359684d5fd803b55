// SPDX-License-Identifier: Apache-2.0
//! Counts per second in bounded memory, and how far the rate fell from its peak.

/// Most slots kept; when there would be more, two neighbours become one.
const SLOTS: usize = 1024;
/// With fewer slots there is no [`Course`].
const ENOUGH: usize = 4;
/// With fewer, what it shows may be chance.
const SURE: usize = 8;

/// Counts per second, or per several seconds in a long run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// Seconds of a slot.
    width: u64,
    /// From second 0 on.
    slots: Vec<u64>,
}

/// A rate's peak, early and last values, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Course {
    /// The highest.
    pub peak: f64,
    /// The median of the last quarter.
    pub last: f64,
    /// The median of the first half.
    pub early: f64,
    /// Whether it was long enough to tell a fall from chance.
    pub sure: bool,
}

impl Course {
    /// How far the rate fell from its peak: 0 to 1.
    pub fn drop(&self) -> f64 {
        if self.peak > 0.0 { 1.0 - self.last / self.peak } else { 0.0 }
    }
}

impl Default for Rates {
    fn default() -> Self {
        Self { width: 1, slots: Vec::new() }
    }
}

impl Rates {
    /// Counts so many in a second.
    pub fn add(&mut self, second: u64, count: u64) {
        while second / self.width >= SLOTS as u64 {
            self.widen();
        }
        let slot = usize::try_from(second / self.width).unwrap_or(SLOTS - 1);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, 0);
        }
        self.slots[slot] = self.slots[slot].saturating_add(count);
    }

    /// Adds those of the same seconds.
    pub fn merge(&mut self, other: &Self) {
        while self.width < other.width {
            self.widen();
        }
        for (slot, count) in other.slots.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add(slot as u64 * other.width, *count);
        }
    }

    /// Taken between the first and the last used slot, without those two, which are incomplete. `None` if that is too short.
    pub fn course(&self) -> Option<Course> {
        let first = self.slots.iter().position(|count| *count > 0)?;
        let last = self.slots.iter().rposition(|count| *count > 0)?;
        let inside = self.slots.get(first + 1..last).filter(|inside| inside.len() >= ENOUGH)?;
        let a_second = |count: u64| count as f64 / self.width as f64;
        Some(Course {
            peak: a_second(inside.iter().copied().max().unwrap_or(0)),
            last: a_second(median(&inside[inside.len() - inside.len() / 4..])),
            early: a_second(median(&inside[..inside.len() / 2])),
            sure: inside.len() >= SURE,
        })
    }

    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        self.slots = self
            .slots
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |sum: u64, count| sum.saturating_add(*count)))
            .collect();
    }
}

/// The median; of an even count the lower of both.
fn median(counts: &[u64]) -> u64 {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(counts: impl IntoIterator<Item = u64>) -> Rates {
        let mut rates = Rates::default();
        (0..).zip(counts).for_each(|(second, count)| rates.add(second, count));
        rates
    }

    #[test]
    fn a_drop_is_what_the_last_quarter_lacks_of_the_peak() {
        let half = [0, 0, 7].into_iter().chain([100; 8]).chain([120]).chain([100; 3]).chain([30; 4]).chain([2, 0]);
        let course = rates(half).course().unwrap();
        assert_eq!((course.peak, course.early, course.last), (120.0, 100.0, 30.0));
        assert_eq!(course.drop(), 0.75);
        let even = rates([50; 20]).course().unwrap();
        assert_eq!(even.drop(), 0.0);
        // One slow second, or one pause, is no drop.
        let paused = rates((0..20).map(|second| if second == 17 { 0 } else { 50 })).course().unwrap();
        assert_eq!(paused.drop(), 0.0);
        assert_eq!(rates([50; 5]).course(), None, "too short");
        assert_eq!(rates([]).course(), None);
    }

    #[test]
    fn a_run_of_six_seconds_has_a_course_that_may_be_chance() {
        let course = rates([0, 20, 100, 110, 100, 55, 20]).course().unwrap();
        assert_eq!((course.peak, course.last, course.drop(), course.sure), (110.0, 55.0, 0.5, false));
        assert!(rates([50; 10]).course().unwrap().sure && !rates([50; 9]).course().unwrap().sure);
    }

    #[test]
    fn a_long_run_takes_no_more_room() {
        let mut long = rates((0..100_000).map(|second| if second < 50_000 { 10 } else { 5 }));
        assert!(long.slots.len() <= SLOTS);
        let course = long.course().unwrap();
        assert_eq!((course.peak, course.last), (10.0, 5.0));
        long.merge(&rates([1; 100]));
        assert_eq!(long.slots.iter().sum::<u64>(), 750_100);
        let mut short = rates([1; 4]);
        short.merge(&long);
        assert_eq!(short.slots.iter().sum::<u64>(), 750_104);
        short.add(u64::MAX, 1);
        assert!(short.slots.len() <= SLOTS, "a damaged file may claim any second");
    }
}
