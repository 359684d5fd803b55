// SPDX-License-Identifier: Apache-2.0
//! Which lines keep what they allocate.
//!
//! Two views of one line must agree before it is called a leak:
//! - **What stays.** Of everything live at the last look, when was it allocated? A leak has pieces from every step since
//!   its onset, so their bytes, summed by age, are a straight line; noise that is freed again is not in it at all. A bounded
//!   cache, a warm-up, a sawtooth or a one-off has pieces of a part of the time only.
//! - **What is live.** Bytes at the same place of every step must have grown as much, in both halves of that time: a cache
//!   whose pieces are renewed has young pieces, and no growth.
//!
//! The slope is the median over all pairs of looks, so that a few odd steps, or what the last steps still use, do not bend
//! it.

use crate::grid::Grid;
use crate::report::GrowthKind;
use crate::robust::{median, theil_sen};

/// Fewer looks than this since the onset tell nothing; nor does a smaller part of all looks.
const FEWEST_LOOKS: usize = 8;
const LEAST_PART: f64 = 0.12;
/// The first looks are warm-up: growth that is only there is none.
const WARM_UP: f64 = 0.1;
/// Pieces must have stayed in so many looks.
const FEWEST_KEEPING: usize = 5;
/// Each quarter of the time must have kept this part of its share.
const QUARTER: f64 = 0.3;
/// Live bytes must have grown by this part of what stayed, and in each half by this.
const GROWN: f64 = 0.5;
const GROWN_HALF: f64 = 0.25;
/// Growth of less is not told: bytes, and the part of the peak.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_OF_PEAK: f64 = 0.01;

/// One line's memory over the looks.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineSeries {
    /// Live bytes at every look.
    pub(crate) live: Vec<u64>,
    /// At the last look: when each piece was allocated, and its size; oldest first.
    pub(crate) kept: Vec<(u64, u64)>,
}

/// A leak, in looks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeakFit {
    pub(crate) onset_ns: u64,
    /// Bytes from one look to the next.
    pub(crate) per_look: f64,
    /// Bytes a second.
    pub(crate) per_second: f64,
    pub(crate) pieces_per_look: f64,
    pub(crate) piece_bytes: u64,
    pub(crate) grown_bytes: u64,
    pub(crate) looks: usize,
    pub(crate) keeping: usize,
    /// Every quarter kept nearly the same.
    pub(crate) even: bool,
}

/// What a line does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing to tell.
    Fine,
    /// It leaks.
    Leak(LeakFit),
    /// It holds much more than at first, and does not leak. From which look on it grew no more, where it settled.
    Grew(GrowthKind, Option<usize>),
}

/// What stayed from one look counts for no more than so many times the usual: one large piece is not growth.
const MOST_OF_USUAL: f64 = 8.0;
/// The last looks also see what is still in use and freed later: this part of all, and at least so many.
const STILL_USED: usize = 16;
const FEWEST_STILL_USED: usize = 4;

/// Bytes and pieces that stayed, by the look they were first seen at.
struct Kept {
    /// As they are, but for the last looks, where no more than usual is taken for kept.
    bytes: Vec<u64>,
    /// Nowhere more than usual.
    usual: Vec<u64>,
    pieces: Vec<u64>,
    /// When the oldest of each look was allocated.
    since: Vec<u64>,
}

impl Kept {
    fn new(series: &LineSeries, grid: &Grid) -> Self {
        let looks = grid.at.len();
        let none = || vec![0; looks];
        let mut all = Self { bytes: none(), usual: none(), pieces: none(), since: none() };
        for (since, bytes) in series.kept.iter().rev() {
            let look = grid.look_at(*since);
            if look < looks {
                all.bytes[look] += bytes;
                all.pieces[look] += 1;
                all.since[look] = *since;
            }
        }
        let mut sizes: Vec<f64> = all.bytes.iter().filter(|bytes| **bytes > 0).map(|bytes| *bytes as f64).collect();
        let most = (MOST_OF_USUAL * median(&mut sizes)) as u64;
        all.usual = all.bytes.iter().map(|bytes| *bytes.min(&most)).collect();
        let last = looks.saturating_sub((looks / STILL_USED).max(FEWEST_STILL_USED));
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

/// Judges a line. `peak`: the most that was in use, by all lines.
pub(crate) fn judge(series: &LineSeries, grid: &Grid, peak: u64) -> Verdict {
    let looks = grid.at.len();
    if looks < FEWEST_LOOKS || series.live.len() != looks {
        return Verdict::Fine;
    }
    let kept = Kept::new(series, grid);
    let least = (LEAST_BYTES).min((peak as f64 * LEAST_OF_PEAK) as u64).max(1);
    let warm = ((looks as f64 * WARM_UP) as usize).max(2);
    if let Some(onset) = onset(&kept, looks, warm)
        && kept.sum(onset, looks) >= least
        && let Some(fit) = fit(series, &kept, grid, onset)
        && grew_as_much(series, onset, fit.per_look)
        && !was_there_before(series, onset, warm)
    {
        return Verdict::Leak(fit);
    }
    grew(series, &kept, warm, least)
}

/// The look from which on something stayed from every part of the time; `None` where nothing did.
fn onset(kept: &Kept, looks: usize, warm: usize) -> Option<usize> {
    let shortest = FEWEST_LOOKS.max((looks as f64 * LEAST_PART) as usize);
    let keeping: Vec<usize> = (0..looks).filter(|look| kept.bytes[*look] > 0).collect();
    let mut gaps: Vec<f64> = keeping.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    let far = (3.0 * median(&mut gaps)).max(2.0) as usize;
    let first = keeping.iter().position(|look| {
        *look >= warm && looks - look >= shortest && kept.keeping(*look) >= FEWEST_KEEPING && lasts(kept, *look, looks)
    })?;
    // One that stayed long before the others is not their beginning.
    let mut first = (first..keeping.len() - 1).find(|place| keeping[place + 1] - keeping[*place] <= far)?;
    // It may have begun in the warm-up, if it looked the same then.
    let mut sizes: Vec<f64> = keeping[first..].iter().map(|look| kept.bytes[*look] as f64).collect();
    let usual = median(&mut sizes);
    while first > 0
        && keeping[first] - keeping[first - 1] <= far
        && kept.bytes[keeping[first - 1]] as f64 <= 3.0 * usual
    {
        first -= 1;
    }
    let onset = keeping[first];
    (looks - onset >= shortest && lasts(kept, onset, looks)).then_some(onset)
}

/// Whether every quarter of the time since then kept its share.
fn lasts(kept: &Kept, onset: usize, looks: usize) -> bool {
    quarters(kept, onset, looks).iter().all(|share| *share >= QUARTER)
}

/// What each quarter kept, as a part of what a quarter would on average.
fn quarters(kept: &Kept, onset: usize, looks: usize) -> [f64; 4] {
    let length = looks - onset;
    let sum = |from: usize, to: usize| kept.usual[from..to].iter().sum::<u64>() as f64;
    let rate = sum(onset, looks) / length as f64;
    [0, 1, 2, 3].map(|quarter| {
        let (from, to) = (onset + length * quarter / 4, onset + length * (quarter + 1) / 4);
        sum(from, to) / ((to - from) as f64 * rate).max(f64::MIN_POSITIVE)
    })
}

fn fit(series: &LineSeries, kept: &Kept, grid: &Grid, onset: usize) -> Option<LeakFit> {
    let looks = grid.at.len();
    let mut sum = 0;
    let by_look: Vec<(f64, f64)> = (onset..looks)
        .map(|look| {
            sum += kept.bytes[look];
            (look as f64, sum as f64)
        })
        .collect();
    let by_time: Vec<(f64, f64)> =
        by_look.iter().zip(&grid.at[onset..]).map(|(point, at)| (*at as f64 / 1e9, point.1)).collect();
    let (per_look, per_second) = (theil_sen(&by_look)?, theil_sen(&by_time)?);
    if per_look <= 0.0 {
        return None;
    }
    let mut pieces = 0;
    let counted: Vec<(f64, f64)> = (onset..looks)
        .map(|look| {
            pieces += kept.pieces[look];
            (look as f64, pieces as f64)
        })
        .collect();
    let onset_ns = kept.since[onset];
    let mut sizes: Vec<f64> =
        series.kept.iter().filter(|(since, _)| *since >= onset_ns).map(|piece| piece.1 as f64).collect();
    let even = quarters(kept, onset, looks).iter().all(|share| (0.7..=1.4).contains(share));
    Some(LeakFit {
        onset_ns,
        per_look,
        per_second,
        pieces_per_look: theil_sen(&counted).unwrap_or(0.0),
        piece_bytes: median(&mut sizes) as u64,
        grown_bytes: kept.sum(onset, looks),
        looks: looks - onset,
        keeping: kept.keeping(onset),
        even,
    })
}

/// Whether live bytes grew about as much as what stayed, all the time.
fn grew_as_much(series: &LineSeries, onset: usize, per_look: f64) -> bool {
    let points: Vec<(f64, f64)> =
        series.live.iter().enumerate().skip(onset).map(|(look, bytes)| (look as f64, *bytes as f64)).collect();
    let middle = points.len() / 2;
    let at_least = |points: &[(f64, f64)], part: f64| theil_sen(points).is_some_and(|slope| slope >= part * per_look);
    at_least(&points, GROWN) && at_least(&points[..middle], GROWN_HALF) && at_least(&points[middle..], GROWN_HALF)
}

/// Whether the line held as much before, and gave it back: then it may again. Only asked where it has not been growing
/// for most of the time.
fn was_there_before(series: &LineSeries, onset: usize, warm: usize) -> bool {
    let looks = series.live.len();
    if looks - onset > looks / 2 || onset <= warm {
        return false;
    }
    let before = series.live[warm..onset].iter().copied().max().unwrap_or(0) as f64;
    let (begin, end) = (series.live[onset] as f64, series.live[looks - 1] as f64);
    before >= begin + 0.8 * (end - begin)
}

/// Growth that is no leak: what it is instead.
fn grew(series: &LineSeries, kept: &Kept, warm: usize, least: u64) -> Verdict {
    let (looks, live) = (series.live.len(), &series.live);
    let most = live.iter().copied().max().unwrap_or(0);
    let begin = live[0].min(live[warm.min(looks - 1)]);
    if most.saturating_sub(begin) < least {
        return Verdict::Fine;
    }
    let half = (most - live.iter().copied().min().unwrap_or(0)) / 2;
    let drops = live.windows(2).filter(|pair| pair[0].saturating_sub(pair[1]) > half.max(1)).count();
    if drops >= 2 {
        return Verdict::Grew(GrowthKind::Sawtooth, None);
    }
    let end = live[looks - 1];
    if end.saturating_sub(begin) < least {
        return Verdict::Fine;
    }
    // From here on it never held less than nearly what it holds in the end, nor much more.
    let near = |bytes: u64| bytes.abs_diff(end) as f64 <= 0.05 * (end - begin) as f64;
    let settled = looks - live.iter().rev().take_while(|bytes| near(**bytes)).count();
    if settled + looks / 4 > looks {
        return Verdict::Fine;
    }
    // What came after that is what replaced what was there.
    let young = kept.sum((settled + 1).min(looks), looks) as f64 >= 0.5 * (end - begin) as f64;
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
