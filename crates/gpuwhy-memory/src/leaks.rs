// SPDX-License-Identifier: Apache-2.0
//! Decides which lines leak.
//!
//! A line must pass two tests to be called a leak:
//! - **What stays.** When was the memory that is live at the last check allocated? A leak has allocations from every step
//!   since its onset, so their bytes, summed by age, form a straight line; noise that is freed again does not appear. A
//!   bounded cache, a warm-up, a sawtooth or a one-off has allocations from a part of the time only.
//! - **What is live.** Bytes at the same place of every step must have grown as much, in both halves of that time. A cache
//!   that replaces its entries has young allocations but does not grow.
//!
//! The slope is the median over all pairs of checks, so that a few odd steps, or memory the last steps still use, do not
//! bend it.

use crate::grid::Grid;
use crate::report::GrowthKind;
use crate::robust::{median, theil_sen};

/// A leak needs at least this many checks since its onset, and this share of all checks.
const FEWEST_CHECKS: usize = 8;
const LEAST_PART: f64 = 0.12;
/// This share of the checks, at the start, is warm-up: growth only there is not a leak.
const WARM_UP: f64 = 0.1;
/// At least this many checks must have kept something.
const FEWEST_KEEPING: usize = 5;
/// Each quarter of the time must have kept this much of its share.
const QUARTER: f64 = 0.3;
/// Live bytes must have grown by this share of what stayed; in each half, by the second.
const GROWN: f64 = 0.5;
const GROWN_HALF: f64 = 0.25;
/// Less growth is ignored: bytes, and share of the peak.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_OF_PEAK: f64 = 0.01;

/// One line's memory at every check.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineSeries {
    /// Live bytes at every check.
    pub(crate) live: Vec<u64>,
    /// Allocations live at the last check: time and size, oldest first.
    pub(crate) kept: Vec<(u64, u64)>,
}

/// A leak, measured in checks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeakFit {
    pub(crate) onset_ns: u64,
    /// Bytes from one check to the next.
    pub(crate) per_check: f64,
    /// Bytes a second.
    pub(crate) per_second: f64,
    pub(crate) pieces_per_check: f64,
    pub(crate) piece_bytes: u64,
    pub(crate) grown_bytes: u64,
    pub(crate) checks: usize,
    pub(crate) keeping: usize,
    /// Every quarter kept nearly the same amount.
    pub(crate) even: bool,
}

/// The verdict on a line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It does not grow.
    Fine,
    /// It leaks.
    Leak(LeakFit),
    /// It holds much more than at first but does not leak. With the check from which on it stopped growing, if it settled.
    Grew(GrowthKind, Option<usize>),
}

/// What stayed from one check counts for at most this many times the usual: one large allocation is not growth.
const MOST_OF_USUAL: f64 = 8.0;
/// The last checks include memory that is still in use and freed later: one in this many checks, and at least this many.
const STILL_USED: usize = 16;
const FEWEST_STILL_USED: usize = 4;

/// Bytes and allocations that stayed, by the check that first saw them.
struct Kept {
    /// Actual bytes; at the last checks, at most [`MOST_OF_USUAL`] times the usual.
    bytes: Vec<u64>,
    /// At every check, at most [`MOST_OF_USUAL`] times the usual.
    usual: Vec<u64>,
    pieces: Vec<u64>,
    /// The time of the oldest allocation of each check.
    since: Vec<u64>,
}

impl Kept {
    fn new(series: &LineSeries, grid: &Grid) -> Self {
        let checks = grid.at.len();
        let none = || vec![0; checks];
        let mut all = Self { bytes: none(), usual: none(), pieces: none(), since: none() };
        for (since, bytes) in series.kept.iter().rev() {
            let check = grid.check_at(*since);
            if check < checks {
                all.bytes[check] += bytes;
                all.pieces[check] += 1;
                all.since[check] = *since;
            }
        }
        let mut sizes: Vec<f64> = all.bytes.iter().filter(|bytes| **bytes > 0).map(|bytes| *bytes as f64).collect();
        let most = (MOST_OF_USUAL * median(&mut sizes)) as u64;
        all.usual = all.bytes.iter().map(|bytes| *bytes.min(&most)).collect();
        let last = checks.saturating_sub((checks / STILL_USED).max(FEWEST_STILL_USED));
        all.bytes[last..].copy_from_slice(&all.usual[last..]);
        all
    }

    fn sum(&self, from: usize, to: usize) -> u64 {
        self.bytes[from..to].iter().sum()
    }

    fn keeping(&self, from: usize) -> usize {
        self.bytes[from..].iter().filter(|bytes| **bytes > 0).count()
    }
}

/// Judges a line. `peak` is that of the whole space.
pub(crate) fn judge(series: &LineSeries, grid: &Grid, peak: u64) -> Verdict {
    let checks = grid.at.len();
    if checks < FEWEST_CHECKS || series.live.len() != checks {
        return Verdict::Fine;
    }
    let kept = Kept::new(series, grid);
    let least = (LEAST_BYTES).min((peak as f64 * LEAST_OF_PEAK) as u64).max(1);
    let warm = ((checks as f64 * WARM_UP) as usize).max(2);
    if let Some(onset) = onset(&kept, checks, warm)
        && kept.sum(onset, checks) >= least
        && let Some(fit) = fit(series, &kept, grid, onset)
        && grew_as_much(series, onset, fit.per_check)
        && !was_there_before(series, onset, warm)
    {
        return Verdict::Leak(fit);
    }
    grew(series, &kept, warm, least)
}

/// The check from which on something stayed from every quarter of the time, if any.
fn onset(kept: &Kept, checks: usize, warm: usize) -> Option<usize> {
    let shortest = FEWEST_CHECKS.max((checks as f64 * LEAST_PART) as usize);
    let keeping: Vec<usize> = (0..checks).filter(|check| kept.bytes[*check] > 0).collect();
    let mut gaps: Vec<f64> = keeping.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let far = (3.0 * median(&mut gaps)).max(2.0) as usize;
    let first = keeping.iter().position(|check| {
        *check >= warm
            && checks - check >= shortest
            && kept.keeping(*check) >= FEWEST_KEEPING
            && lasts(kept, *check, checks)
    })?;
    // An allocation that stayed long before the others is not the onset.
    let mut first = (first..keeping.len() - 1).find(|place| keeping[place + 1] - keeping[*place] <= far)?;
    // The onset may be in the warm-up, if the growth there is alike.
    let mut sizes: Vec<f64> = keeping[first..].iter().map(|check| kept.bytes[*check] as f64).collect();
    let usual = median(&mut sizes);
    while first > 0
        && keeping[first] - keeping[first - 1] <= far
        && kept.bytes[keeping[first - 1]] as f64 <= 3.0 * usual
    {
        first -= 1;
    }
    let onset = keeping[first];
    (checks - onset >= shortest && lasts(kept, onset, checks)).then_some(onset)
}

/// Whether every quarter of the time since the onset kept its share.
fn lasts(kept: &Kept, onset: usize, checks: usize) -> bool {
    quarters(kept, onset, checks).iter().all(|share| *share >= QUARTER)
}

/// What each quarter kept, relative to the average of a quarter.
fn quarters(kept: &Kept, onset: usize, checks: usize) -> [f64; 4] {
    let length = checks - onset;
    let sum = |from: usize, to: usize| kept.usual[from..to].iter().sum::<u64>() as f64;
    let rate = sum(onset, checks) / length as f64;
    [0, 1, 2, 3].map(|quarter| {
        let (from, to) = (onset + length * quarter / 4, onset + length * (quarter + 1) / 4);
        sum(from, to) / ((to - from) as f64 * rate).max(f64::MIN_POSITIVE)
    })
}

fn fit(series: &LineSeries, kept: &Kept, grid: &Grid, onset: usize) -> Option<LeakFit> {
    let checks = grid.at.len();
    let mut sum = 0;
    let by_check: Vec<(f64, f64)> = (onset..checks)
        .map(|check| {
            sum += kept.bytes[check];
            (check as f64, sum as f64)
        })
        .collect();
    let by_time: Vec<(f64, f64)> =
        by_check.iter().zip(&grid.at[onset..]).map(|(point, at)| (*at as f64 / 1e9, point.1)).collect();
    let (per_check, per_second) = (theil_sen(&by_check)?, theil_sen(&by_time)?);
    if per_check <= 0.0 {
        return None;
    }
    let mut pieces = 0;
    let counted: Vec<(f64, f64)> = (onset..checks)
        .map(|check| {
            pieces += kept.pieces[check];
            (check as f64, pieces as f64)
        })
        .collect();
    let onset_ns = kept.since[onset];
    let mut sizes: Vec<f64> =
        series.kept.iter().filter(|(since, _)| *since >= onset_ns).map(|piece| piece.1 as f64).collect();
    let even = quarters(kept, onset, checks).iter().all(|share| (0.7..=1.4).contains(share));
    Some(LeakFit {
        onset_ns,
        per_check,
        per_second,
        pieces_per_check: theil_sen(&counted).unwrap_or(0.0),
        piece_bytes: median(&mut sizes) as u64,
        grown_bytes: kept.sum(onset, checks),
        checks: checks - onset,
        keeping: kept.keeping(onset),
        even,
    })
}

/// Whether live bytes grew about as much as what stayed, throughout.
fn grew_as_much(series: &LineSeries, onset: usize, per_check: f64) -> bool {
    let points: Vec<(f64, f64)> =
        series.live.iter().enumerate().skip(onset).map(|(check, bytes)| (check as f64, *bytes as f64)).collect();
    let middle = points.len() / 2;
    let at_least = |points: &[(f64, f64)], part: f64| theil_sen(points).is_some_and(|slope| slope >= part * per_check);
    at_least(&points, GROWN) && at_least(&points[..middle], GROWN_HALF) && at_least(&points[middle..], GROWN_HALF)
}

/// Whether the line held as much before and freed it: then it may do so again. Only for lines that have not been growing
/// for most of the time.
fn was_there_before(series: &LineSeries, onset: usize, warm: usize) -> bool {
    let checks = series.live.len();
    if checks - onset > checks / 2 || onset <= warm {
        return false;
    }
    let before = series.live[warm..onset].iter().copied().max().unwrap_or(0) as f64;
    let (begin, end) = (series.live[onset] as f64, series.live[checks - 1] as f64);
    before >= begin + 0.8 * (end - begin)
}

/// Classifies growth that is not a leak.
fn grew(series: &LineSeries, kept: &Kept, warm: usize, least: u64) -> Verdict {
    let (checks, live) = (series.live.len(), &series.live);
    let most = live.iter().copied().max().unwrap_or(0);
    let begin = live[0].min(live[warm.min(checks - 1)]);
    if most.saturating_sub(begin) < least {
        return Verdict::Fine;
    }
    let half = (most - live.iter().copied().min().unwrap_or(0)) / 2;
    let drops = live.windows(2).filter(|pair| pair[0].saturating_sub(pair[1]) > half.max(1)).count();
    if drops >= 2 {
        return Verdict::Grew(GrowthKind::Sawtooth, None);
    }
    let end = live[checks - 1];
    if end.saturating_sub(begin) < least {
        return Verdict::Fine;
    }
    // From here on it held nearly what it holds at the end.
    let near = |bytes: u64| bytes.abs_diff(end) as f64 <= 0.05 * (end - begin) as f64;
    let settled = checks - live.iter().rev().take_while(|bytes| near(**bytes)).count();
    if settled + checks / 4 > checks {
        return Verdict::Fine;
    }
    // Most of it was allocated later: it was replaced.
    let young = kept.sum((settled + 1).min(checks), checks) as f64 >= 0.5 * (end - begin) as f64;
    let once = settled > 0 && live[settled - 1].saturating_sub(begin) as f64 <= 0.2 * (end - begin) as f64;
    let kind = match (young, once) {
        (true, _) => GrowthKind::Renewed,
        (false, true) => GrowthKind::OneOff,
        (false, false) => GrowthKind::Settled,
    };
    Verdict::Grew(kind, Some(settled))
}

#[cfg(test)]
#[path = "leaks_tests.rs"]
mod tests;
