// SPDX-License-Identifier: Apache-2.0
//! Memory over time, in a fixed number of parts of the span. Of each part the most and the least: a peak between two
//! looks of NVML is in it.

use crate::report::TimelinePoint;

/// Parts of the span; and where it is drawn in detail.
pub(crate) const PARTS: usize = 120;
pub(crate) const DETAILED_PARTS: usize = 600;

#[derive(Debug, Clone, Copy)]
struct Part {
    allocated: (u64, u64),
    reserved: u64,
}

/// One process's memory on one device, over the span.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    from_ns: u64,
    width_ns: u64,
    parts: Vec<Option<Part>>,
    /// What is true until the next change, from the part it was said in.
    now: Option<(usize, u64, u64)>,
}

impl Timeline {
    pub(crate) fn new(from_ns: u64, to_ns: u64, parts: usize) -> Self {
        let parts = parts.max(1);
        let width_ns = (to_ns.saturating_sub(from_ns) / parts as u64).max(1);
        Self { from_ns, width_ns, parts: vec![None; parts], now: None }
    }

    /// The part a moment is in.
    pub(crate) fn part_at(&self, at_ns: u64) -> usize {
        let part = at_ns.saturating_sub(self.from_ns) / self.width_ns;
        usize::try_from(part).unwrap_or(usize::MAX).min(self.parts.len() - 1)
    }

    /// From this moment on.
    pub(crate) fn set(&mut self, at_ns: u64, allocated: u64, reserved: u64) {
        let part = self.part_at(at_ns);
        self.carry_to(part);
        self.note(part, allocated, reserved);
        self.now = Some((part, allocated, reserved));
    }

    /// What was true before is true in every part until then.
    fn carry_to(&mut self, part: usize) {
        if let Some((since, allocated, reserved)) = self.now {
            for between in since..=part {
                self.note(between, allocated, reserved);
            }
        }
    }

    fn note(&mut self, part: usize, allocated: u64, reserved: u64) {
        let Some(slot) = self.parts.get_mut(part) else { return };
        let known = slot.get_or_insert(Part { allocated: (allocated, allocated), reserved });
        known.allocated = (known.allocated.0.min(allocated), known.allocated.1.max(allocated));
        known.reserved = known.reserved.max(reserved);
    }

    /// The parts, up to a moment. Those before the first report are missing.
    pub(crate) fn points(mut self, until_ns: u64) -> Vec<TimelinePoint> {
        let end = self.part_at(until_ns);
        self.carry_to(end);
        let point = |(i, part): (usize, &Option<Part>)| {
            let part = (*part)?;
            Some(TimelinePoint {
                at_ns: self.from_ns + i as u64 * self.width_ns,
                allocated: part.allocated.1,
                allocated_least: part.allocated.0,
                reserved: part.reserved,
                device_used: None,
            })
        };
        self.parts.iter().enumerate().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_true_stays_true_and_peaks_are_not_missed() {
        let mut timeline = Timeline::new(0, 1_200, PARTS);
        timeline.set(100, 5, 10);
        timeline.set(101, 50, 60);
        timeline.set(102, 5, 60);
        timeline.set(500, 7, 60);
        let points = timeline.points(1_200);
        let at = |ns: u64| points.iter().find(|point| point.at_ns == ns).unwrap();
        assert_eq!((at(100).allocated, at(100).allocated_least, at(100).reserved), (50, 5, 60));
        assert_eq!((at(110).allocated, at(490).allocated), (5, 5));
        assert_eq!((at(500).allocated, at(500).allocated_least, at(1_190).allocated), (7, 5, 7));
        assert_eq!(points[0].at_ns, 100);
    }
}
