// SPDX-License-Identifier: Apache-2.0
//! Live memory by site in each slice of a timeline, at the slice's peak.
//!
//! As with the overall peak, only sites that changed since the last maximum are copied, and a slice keeps only sites whose
//! bytes differ from the previous slice. So all slices together cost no more than the events.

use crate::lines::{LineKey, Lines};
use crate::report::{LiveLine, LivePoint, LiveTimeline, TimelinePoint};
use crate::space::Site;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Lines listed at each point; the others are summed up.
const MOST_LINES: usize = 8;

#[derive(Debug, Clone, Default)]
struct SiteSlices {
    now: u64,
    at_peak: u64,
    /// Slices at which the bytes changed, and the bytes.
    changes: Vec<(u32, u64)>,
    moved: bool,
    differs: bool,
}

/// Live bytes of every site in every slice.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveSlices {
    sites: Vec<SiteSlices>,
    slice: u32,
    /// The peak of this slice so far.
    most: u64,
    moved: Vec<u32>,
    differ: Vec<u32>,
}

impl LiveSlices {
    /// Sets the bytes a site holds from now on.
    pub(crate) fn moved(&mut self, site: u32, bytes: u64) {
        if self.sites.len() <= site as usize {
            self.sites.resize(site as usize + 1, SiteSlices::default());
        }
        let Some(one) = self.sites.get_mut(site as usize) else { return };
        one.now = bytes;
        if !std::mem::replace(&mut one.moved, true) {
            self.moved.push(site);
        }
    }

    /// Starts the time range with the memory live now.
    pub(crate) fn begin(&mut self, allocated: u64) {
        self.most = allocated;
        self.capture();
    }

    /// Call it before a change in this slice. Memory live now is so in every slice since the last change.
    pub(crate) fn enter(&mut self, slice: usize, allocated: u64) {
        let slice = u32::try_from(slice).unwrap_or(u32::MAX);
        if slice <= self.slice {
            return;
        }
        self.note(self.slice);
        self.most = allocated;
        self.capture();
        if slice > self.slice + 1 {
            self.note(self.slice + 1);
        }
        self.slice = slice;
    }

    /// Call it after a change, with the new total.
    pub(crate) fn total(&mut self, allocated: u64) {
        if allocated > self.most {
            self.most = allocated;
            self.capture();
        }
    }

    /// Call it after the last change. Memory live then is so in all later slices.
    pub(crate) fn finish(&mut self) {
        self.note(self.slice);
        self.capture();
        self.note(self.slice + 1);
    }

    fn capture(&mut self) {
        for site in std::mem::take(&mut self.moved) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.moved = false;
            if one.at_peak != one.now {
                one.at_peak = one.now;
                if !std::mem::replace(&mut one.differs, true) {
                    self.differ.push(site);
                }
            }
        }
    }

    fn note(&mut self, slice: u32) {
        for site in std::mem::take(&mut self.differ) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.differs = false;
            if one.changes.last().map_or(0, |last| last.1) != one.at_peak {
                one.changes.push((slice, one.at_peak));
            }
        }
    }

    /// Live memory by line at the points of a timeline; `slices` are the points' slices. Works line by line, so that no
    /// table of all lines and slices is needed.
    pub(crate) fn timeline(
        &self,
        sites: &[Site],
        lines: &Lines,
        points: &[TimelinePoint],
        slices: &[usize],
    ) -> LiveTimeline {
        let mut by_line: BTreeMap<LineKey, Vec<usize>> = BTreeMap::new();
        for (place, site) in sites.iter().enumerate().take(self.sites.len()) {
            by_line.entry(lines.key(site.stack)).or_default().push(place);
        }
        let mut tops = vec![Top::default(); points.len()];
        let mut heads = Vec::new();
        for (number, places) in by_line.values().enumerate() {
            let mut series = vec![0_u64; points.len()];
            places.iter().for_each(|place| self.add(*place, slices, &mut series));
            tops.iter_mut().zip(series).for_each(|(top, bytes)| top.take(number, bytes));
            let most = |place: &&usize| self.sites.get(**place).and_then(|one| one.changes.iter().map(|c| c.1).max());
            heads.push(places.iter().max_by_key(most).and_then(|place| sites.get(*place)?.stack));
        }
        finish_timeline(&heads, lines, points, &tops)
    }

    fn add(&self, place: usize, slices: &[usize], series: &mut [u64]) {
        let Some(one) = self.sites.get(place) else { return };
        let mut changes = one.changes.iter().peekable();
        let mut now = 0;
        for (sum, slice) in series.iter_mut().zip(slices) {
            while let Some((_, bytes)) = changes.next_if(|(at, _)| *at as usize <= *slice) {
                now = *bytes;
            }
            *sum = sum.saturating_add(now);
        }
    }
}

/// The lines that held most at a point, most first, by number; and the sum of all lines.
#[derive(Debug, Clone, Default)]
struct Top {
    held: Vec<(u64, usize)>,
    sum: u64,
}

impl Top {
    fn take(&mut self, number: usize, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(bytes);
        let place = self.held.partition_point(|(held, _)| *held >= bytes);
        if place < MOST_LINES {
            self.held.insert(place, (bytes, number));
            self.held.truncate(MOST_LINES);
        }
    }
}

/// Names the listed lines, those that held most first. `heads` are the stacks that held most of each line.
fn finish_timeline(heads: &[Option<u64>], lines: &Lines, points: &[TimelinePoint], tops: &[Top]) -> LiveTimeline {
    let mut most: BTreeMap<usize, u64> = BTreeMap::new();
    for (bytes, number) in tops.iter().flat_map(|top| &top.held) {
        let known = most.entry(*number).or_default();
        *known = (*known).max(*bytes);
    }
    let ranked: BTreeSet<(Reverse<u64>, usize)> =
        most.iter().map(|(number, bytes)| (Reverse(*bytes), *number)).collect();
    let place_of: BTreeMap<usize, u32> = ranked.iter().zip(0..).map(|((_, number), place)| (*number, place)).collect();
    let named = |(_, number): &(Reverse<u64>, usize)| {
        let stack = heads.get(*number).copied().flatten();
        let function = lines.fact(stack).and_then(|fact| fact.function.clone());
        LiveLine { line: lines.line(stack), function, stack_id: stack.map(u64::cast_signed) }
    };
    let point = |(point, top): (&TimelinePoint, &Top)| {
        let shown: u64 = top.held.iter().map(|(bytes, _)| bytes).sum();
        let lines = top.held.iter().filter_map(|(bytes, number)| Some((*place_of.get(number)?, *bytes))).collect();
        LivePoint { lines, others: top.sum.saturating_sub(shown), unseen: point.allocated.saturating_sub(top.sum) }
    };
    LiveTimeline {
        device_total: None,
        lines: ranked.iter().map(named).collect(),
        points: points.iter().zip(tops).map(point).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(slices: &LiveSlices, site: usize, upto: usize) -> Vec<u64> {
        let mut all = vec![0; upto];
        slices.add(site, &(0..upto).collect::<Vec<_>>(), &mut all);
        all
    }

    #[test]
    fn a_slice_has_the_memory_at_its_peak_and_quiet_slices_what_was_left() {
        let mut slices = LiveSlices::default();
        slices.begin(0);
        let change = |slices: &mut LiveSlices, slice, before, site, bytes, after| {
            slices.enter(slice, before);
            slices.moved(site, bytes);
            slices.total(after);
        };
        change(&mut slices, 1, 0, 0, 10, 10);
        change(&mut slices, 1, 10, 1, 30, 40);
        change(&mut slices, 1, 40, 1, 0, 10);
        change(&mut slices, 1, 10, 2, 5, 15);
        // Nothing happens in slices 2 and 3. The peak of slice 4 is before its first change.
        change(&mut slices, 4, 15, 0, 0, 5);
        slices.finish();
        assert_eq!(series(&slices, 0, 7), [0, 10, 10, 10, 10, 0, 0]);
        assert_eq!(series(&slices, 1, 7), [0, 30, 0, 0, 0, 0, 0]);
        assert_eq!(series(&slices, 2, 7), [0, 0, 5, 5, 5, 5, 5]);
    }

    #[test]
    fn the_lines_of_a_point_are_bounded() {
        let mut top = Top::default();
        (0..20).for_each(|number| top.take(number, 100 - (number as u64 * 37) % 50));
        assert_eq!(top.held.len(), MOST_LINES);
        assert!(top.held.is_sorted_by_key(|(bytes, _)| Reverse(*bytes)));
    }
}
