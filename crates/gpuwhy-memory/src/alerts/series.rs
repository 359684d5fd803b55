// SPDX-License-Identifier: Apache-2.0
//! A figure over time, in constant memory: how fast it grows now, and whether its floor keeps rising.

use crate::robust::theil_sen;

/// Growth is measured over this time, ns.
const WINDOW_NS: u64 = 5_000_000_000;
/// A shorter span is too short to judge growth, ns.
const LEAST_SPAN_NS: u64 = 4_000_000_000;
/// Values kept: four a second, and a few more.
const POINTS: usize = 24;
const LEAST_POINTS: usize = 4;

/// The newest values of a figure.
#[derive(Debug, Clone)]
pub(super) struct Window {
    points: [(u64, u64); POINTS],
    next: usize,
    len: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { points: [(0, 0); POINTS], next: 0, len: 0 }
    }
}

impl Window {
    pub(super) fn push(&mut self, at_ns: u64, value: u64) {
        self.points[self.next] = (at_ns, value);
        self.next = (self.next + 1) % POINTS;
        self.len = (self.len + 1).min(POINTS);
    }

    /// Growth in the window, bytes a second; `None` while there are too few values. It is the smallest of the median slope of
    /// all pairs and the slopes of the floor from each third of the window to the next, so that neither a jump nor memory
    /// that is freed again counts as growth.
    pub(super) fn slope(&self) -> Option<f64> {
        let newest = self.points[(self.next + POINTS - 1) % POINTS].0;
        let oldest_first = (0..self.len).map(|i| self.points[(self.next + POINTS - self.len + i) % POINTS]);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let points: Vec<(f64, f64)> = oldest_first
            .filter(|(at, _)| newest.saturating_sub(*at) <= WINDOW_NS)
            .map(|(at, value)| (-seconds(newest.saturating_sub(at)), value as f64))
            .collect();
        let span = -points.first()?.0;
        if points.len() < LEAST_POINTS || span < seconds(LEAST_SPAN_NS) {
            return None;
        }
        let floor = |from: f64, to: f64| {
            let part = points.iter().filter(|(x, _)| *x >= from && *x < to);
            part.copied().reduce(|least, point| if point.1 < least.1 { point } else { least })
        };
        let third = span / 3.0;
        let (early, middle, late) = (floor(-span, -2.0 * third)?, floor(-2.0 * third, -third)?, floor(-third, 1.0)?);
        let between = |from: (f64, f64), to: (f64, f64)| (to.1 - from.1) / (to.0 - from.0);
        let of_floor = between(early, middle).min(between(middle, late));
        theil_sen(&points).map(|slope| slope.min(of_floor))
    }
}

/// Values of one scale.
const SLOTS: usize = 8;
/// Scales, each twice as coarse as the previous one: from seconds to most of a day.
const SCALES: usize = 16;
/// Of the seven steps from slot to slot, at least this many must rise.
const LEAST_RISES: usize = 6;
/// The least growth over a scale that counts, bytes.
const LEAST_GROWN: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, Default)]
struct Scale {
    floors: [u64; SLOTS],
    len: usize,
    /// The first half of the next scale's slot.
    half: Option<u64>,
}

/// The minimum of a figure in slots of time, at every scale from seconds to hours.
///
/// A leak keeps raising the floor at some scale; a slow leak in noise does so at a coarse scale. A full cache does not. A
/// cache that is still filling does, too: only an examination can tell it from a leak.
#[derive(Debug, Clone, Default)]
pub(super) struct Floors {
    scales: [Scale; SCALES],
    slot_ns: u64,
}

impl Floors {
    /// `slot_ns` is the length of a slot at the finest scale.
    pub(super) fn new(slot_ns: u64) -> Self {
        Self { slot_ns, ..Self::default() }
    }

    /// Adds the minimum of the next slot.
    pub(super) fn push(&mut self, floor: u64) {
        let mut floor = floor;
        for scale in &mut self.scales {
            if scale.len == SLOTS {
                scale.floors.rotate_left(1);
                scale.floors[SLOTS - 1] = floor;
            } else {
                scale.floors[scale.len] = floor;
                scale.len += 1;
            }
            match scale.half.take() {
                Some(half) => floor = floor.min(half),
                None => {
                    scale.half = Some(floor);
                    return;
                }
            }
        }
    }

    /// How long the floor has kept rising, ns, and by how many bytes, at the coarsest scale at which it does.
    pub(super) fn rising(&self) -> Option<(u64, u64)> {
        let rising = |scale: &Scale| {
            let (first, last) = (scale.floors[0], scale.floors[SLOTS - 1]);
            let grown = last.saturating_sub(first);
            let rises = scale.floors.windows(2).filter(|pair| pair[1] > pair[0]).count();
            let fallen = scale.floors.windows(2).map(|pair| pair[0].saturating_sub(pair[1])).max().unwrap_or(0);
            let lately = last > scale.floors[SLOTS - 3];
            let all = scale.len == SLOTS && grown >= LEAST_GROWN && rises >= LEAST_RISES;
            (all && lately && fallen <= grown / 10).then_some(grown)
        };
        // Skips the finest scale: a job's steps may be longer.
        let coarsest_first = self.scales.iter().enumerate().skip(1).rev();
        coarsest_first.filter_map(|(i, scale)| Some(((self.slot_ns * SLOTS as u64) << i, rising(scale)?))).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 250_000_000;
    const MB: u64 = 1_000_000;

    fn window(value: impl Fn(u64) -> u64, ticks: u64) -> Window {
        let mut window = Window::default();
        (0..ticks).for_each(|i| window.push(1_000_000_000_000 + i * TICK, value(i)));
        window
    }

    #[test]
    fn steady_growth_has_its_slope() {
        let slope = window(|i| 700 * MB + i * 5 * MB, 60).slope().unwrap();
        assert!((slope / 20e6 - 1.0).abs() < 1e-9, "{slope}");
        let falls = window(|i| 700 * MB - i * MB, 60).slope().unwrap();
        assert!(falls < 0.0, "{falls}");
        assert_eq!(window(|i| i * MB, 8).slope(), None, "two seconds are too few");
        assert_eq!(Window::default().slope(), None);
    }

    #[test]
    fn a_sawtooth_is_no_growth_whatever_its_period_and_phase() {
        for period in 2..=10 {
            for phase in 0..period {
                // Up by 100 MB a tick, 400 MB a second, and down again.
                let slope = window(|i| (i + phase) % period * 100 * MB, 60).slope().unwrap();
                assert!(slope < 100e6, "period {period}, phase {phase}: {slope}");
            }
        }
    }

    #[test]
    fn a_jump_is_no_growth() {
        let slope = window(|i| if i < 50 { 0 } else { 10_000 * MB }, 60).slope().unwrap();
        assert!(slope < 1e6, "{slope}");
    }

    fn floors(value: impl Fn(u64) -> u64, ticks: u64) -> Floors {
        let mut floors = Floors::new(TICK);
        (0..ticks).for_each(|i| floors.push(value(i)));
        floors
    }

    #[test]
    fn a_leak_is_suspected_soon_and_at_every_length() {
        let (for_ns, grown) = floors(|i| 100 * MB + i * MB, 20).rising().unwrap();
        assert_eq!((for_ns, grown), (4_000_000_000, 14 * MB));
        let (for_ns, _) = floors(|i| 100 * MB + i * MB / 100, 40_000).rising().unwrap();
        assert!(for_ns > 3_600_000_000_000, "{for_ns}");
    }

    #[test]
    fn a_slow_leak_is_suspected_below_its_noise() {
        // 20 kB a tick, below up to 50 MB that come and go.
        let noise = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 0x3F;
        let suspected = (1..2_000).any(|n| floors(|i| i * 20_000 + noise(i) * 800_000, n).rising().is_some());
        assert!(suspected);
    }

    #[test]
    fn bounded_memory_is_not_suspected() {
        assert_eq!(floors(|_| 500 * MB, 1_000).rising(), None, "steady");
        assert_eq!(floors(|i| i.min(40) * MB, 1_000).rising(), None, "a cache that is full");
        assert_eq!(floors(|i| 900 * MB - i.min(800) * MB, 1_000).rising(), None, "falling");
        assert_eq!(floors(|i| i * 100, 1_000).rising(), None, "too little to matter");
        for ticks in 1..500 {
            // Up for five seconds, then down.
            let rising = floors(|i| i % 20 * MB, ticks).rising();
            assert!(
                rising.is_none_or(|(for_ns, _)| for_ns < 20 * TICK),
                "a sawtooth, no longer than it rises: {rising:?}"
            );
        }
        // While a cache fills it looks like a leak, but only for a few slots of that scale.
        assert!(floors(|i| i.min(40) * MB, 38).rising().is_some());
    }
}
