// SPDX-License-Identifier: Apache-2.0
//! Memory over time, in a fixed number of slices. Each has its maximum and minimum, so a peak between two samples of NVML
//! is not missed.

use crate::report::TimelinePoint;

/// Slices of the time range, and those of a detailed report.
pub(crate) const SLICES: usize = 120;
pub(crate) const DETAILED_SLICES: usize = 600;

#[derive(Debug, Clone, Copy)]
struct Slice {
    allocated: (u64, u64),
    reserved: u64,
}

/// The timeline of a space.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    from_ns: u64,
    width_ns: u64,
    slices: Vec<Option<Slice>>,
    /// The values until the next change, and the slice they were set in.
    now: Option<(usize, u64, u64)>,
}

impl Timeline {
    pub(crate) fn new(from_ns: u64, to_ns: u64, slices: usize) -> Self {
        let slices = slices.max(1);
        let width_ns = (to_ns.saturating_sub(from_ns) / slices as u64).max(1);
        Self { from_ns, width_ns, slices: vec![None; slices], now: None }
    }

    /// The slice of a time.
    pub(crate) fn slice_at(&self, at_ns: u64) -> usize {
        let slice = at_ns.saturating_sub(self.from_ns) / self.width_ns;
        usize::try_from(slice).unwrap_or(usize::MAX).min(self.slices.len() - 1)
    }

    /// Sets the values from this time on.
    pub(crate) fn set(&mut self, at_ns: u64, allocated: u64, reserved: u64) {
        let slice = self.slice_at(at_ns);
        self.carry_to(slice);
        self.note(slice, allocated, reserved);
        self.now = Some((slice, allocated, reserved));
    }

    /// The old values hold in every slice until then.
    fn carry_to(&mut self, slice: usize) {
        if let Some((since, allocated, reserved)) = self.now {
            for between in since..=slice {
                self.note(between, allocated, reserved);
            }
        }
    }

    fn note(&mut self, slice: usize, allocated: u64, reserved: u64) {
        let Some(slot) = self.slices.get_mut(slice) else { return };
        let known = slot.get_or_insert(Slice { allocated: (allocated, allocated), reserved });
        known.allocated = (known.allocated.0.min(allocated), known.allocated.1.max(allocated));
        known.reserved = known.reserved.max(reserved);
    }

    /// The slices up to a time. Those before the first report are left out.
    pub(crate) fn points(mut self, until_ns: u64) -> Vec<TimelinePoint> {
        let end = self.slice_at(until_ns);
        self.carry_to(end);
        let point = |(i, slice): (usize, &Option<Slice>)| {
            let slice = (*slice)?;
            Some(TimelinePoint {
                at_ns: self.from_ns + i as u64 * self.width_ns,
                allocated: slice.allocated.1,
                allocated_least: slice.allocated.0,
                reserved: slice.reserved,
                device_used: None,
            })
        };
        self.slices.iter().enumerate().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_hold_until_they_change_and_peaks_are_not_missed() {
        let mut timeline = Timeline::new(0, 1_200, SLICES);
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
