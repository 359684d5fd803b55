// SPDX-License-Identifier: Apache-2.0
//! What was live in each part of a timeline, by site: at the moment in which most was in use in that part.
//!
//! As with the peak, nothing is copied at a new maximum but sites that changed since the one before; and of a part only
//! the sites are kept whose bytes differ from the part before. So all parts together cost no more than the events did.

use crate::lines::{LineKey, Lines};
use crate::report::{LiveLine, LivePoint, LiveTimeline, TimelinePoint};
use crate::space::Site;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Lines told of at each point; the others are one sum.
const MOST_LINES: usize = 8;

#[derive(Debug, Clone, Default)]
struct One {
    now: u64,
    at_most: u64,
    /// Bytes from a part on, where they differ from the part before.
    changes: Vec<(u32, u64)>,
    moved: bool,
    differs: bool,
}

/// Live bytes of every site in every part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    sites: Vec<One>,
    part: u32,
    /// The most that was in use in this part so far.
    most: u64,
    moved: Vec<u32>,
    differ: Vec<u32>,
}

impl Parts {
    /// A site holds so much from now on.
    pub(crate) fn moved(&mut self, site: u32, bytes: u64) {
        if self.sites.len() <= site as usize {
            self.sites.resize(site as usize + 1, One::default());
        }
        let Some(one) = self.sites.get_mut(site as usize) else { return };
        one.now = bytes;
        if !std::mem::replace(&mut one.moved, true) {
            self.moved.push(site);
        }
    }

    /// The span begins with what is live now.
    pub(crate) fn begin(&mut self, allocated: u64) {
        self.most = allocated;
        self.capture();
    }

    /// Something is about to change in this part. What is live now is so in every part since the last change.
    pub(crate) fn enter(&mut self, part: usize, allocated: u64) {
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        if part <= self.part {
            return;
        }
        self.note(self.part);
        self.most = allocated;
        self.capture();
        if part > self.part + 1 {
            self.note(self.part + 1);
        }
        self.part = part;
    }

    /// It has changed.
    pub(crate) fn total(&mut self, allocated: u64) {
        if allocated > self.most {
            self.most = allocated;
            self.capture();
        }
    }

    /// No more will. What is live then is so in the parts that follow.
    pub(crate) fn finish(&mut self) {
        self.note(self.part);
        self.capture();
        self.note(self.part + 1);
    }

    fn capture(&mut self) {
        for site in std::mem::take(&mut self.moved) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.moved = false;
            if one.at_most != one.now {
                one.at_most = one.now;
                if !std::mem::replace(&mut one.differs, true) {
                    self.differ.push(site);
                }
            }
        }
    }

    fn note(&mut self, part: u32) {
        for site in std::mem::take(&mut self.differ) {
            let Some(one) = self.sites.get_mut(site as usize) else { continue };
            one.differs = false;
            if one.changes.last().map_or(0, |last| last.1) != one.at_most {
                one.changes.push((part, one.at_most));
            }
        }
    }

    /// By line, at the points of a timeline; `parts` says which part each is. One line after the other, so that no table
    /// of all lines and parts is made.
    pub(crate) fn told(
        &self,
        sites: &[Site],
        lines: &Lines,
        points: &[TimelinePoint],
        parts: &[usize],
    ) -> LiveTimeline {
        let mut by_line: BTreeMap<LineKey, Vec<usize>> = BTreeMap::new();
        for (place, site) in sites.iter().enumerate().take(self.sites.len()) {
            by_line.entry(lines.key(site.stack)).or_default().push(place);
        }
        let mut tops = vec![Top::default(); points.len()];
        let mut heads = Vec::new();
        for (number, places) in by_line.values().enumerate() {
            let mut series = vec![0_u64; points.len()];
            places.iter().for_each(|place| self.add(*place, parts, &mut series));
            tops.iter_mut().zip(series).for_each(|(top, bytes)| top.take(number, bytes));
            let most = |place: &&usize| self.sites.get(**place).and_then(|one| one.changes.iter().map(|c| c.1).max());
            heads.push(places.iter().max_by_key(most).and_then(|place| sites.get(*place)?.stack));
        }
        finish_told(&heads, lines, points, &tops)
    }

    fn add(&self, place: usize, parts: &[usize], series: &mut [u64]) {
        let Some(one) = self.sites.get(place) else { return };
        let mut changes = one.changes.iter().peekable();
        let mut now = 0;
        for (sum, part) in series.iter_mut().zip(parts) {
            while let Some((_, bytes)) = changes.next_if(|(at, _)| *at as usize <= *part) {
                now = *bytes;
            }
            *sum = sum.saturating_add(now);
        }
    }
}

/// The lines that held most at a point, most first, by their numbers; and what all lines held.
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

/// Names the lines that are told of, those that held most first. `heads` are the stacks that held most of each line.
fn finish_told(heads: &[Option<u64>], lines: &Lines, points: &[TimelinePoint], tops: &[Top]) -> LiveTimeline {
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

    fn series(parts: &Parts, site: usize, upto: usize) -> Vec<u64> {
        let mut all = vec![0; upto];
        parts.add(site, &(0..upto).collect::<Vec<_>>(), &mut all);
        all
    }

    #[test]
    fn a_part_has_what_was_live_when_most_was_and_quiet_parts_what_was_left() {
        let mut parts = Parts::default();
        parts.begin(0);
        let change = |parts: &mut Parts, part, before, site, bytes, after| {
            parts.enter(part, before);
            parts.moved(site, bytes);
            parts.total(after);
        };
        change(&mut parts, 1, 0, 0, 10, 10);
        change(&mut parts, 1, 10, 1, 30, 40);
        change(&mut parts, 1, 40, 1, 0, 10);
        change(&mut parts, 1, 10, 2, 5, 15);
        // Nothing in parts 2 and 3. In part 4 most was in use before anything changed.
        change(&mut parts, 4, 15, 0, 0, 5);
        parts.finish();
        assert_eq!(series(&parts, 0, 7), [0, 10, 10, 10, 10, 0, 0]);
        assert_eq!(series(&parts, 1, 7), [0, 30, 0, 0, 0, 0, 0]);
        assert_eq!(series(&parts, 2, 7), [0, 0, 5, 5, 5, 5, 5]);
    }

    #[test]
    fn only_so_many_lines_are_kept_of_a_point() {
        let mut top = Top::default();
        (0..20).for_each(|number| top.take(number, 100 - (number as u64 * 37) % 50));
        assert_eq!(top.held.len(), MOST_LINES);
        assert!(top.held.is_sorted_by_key(|(bytes, _)| Reverse(*bytes)));
    }
}
