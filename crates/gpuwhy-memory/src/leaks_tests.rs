// SPDX-License-Identifier: Apache-2.0
//! Tests: lines with known behaviour, played as allocations and frees.

use super::*;

const MB: u64 = 1 << 20;

/// A small generator: the same numbers every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Plays steps of 100 ns. Each allocation has a step, in whose middle it is made, bytes, and steps to live (0: forever).
fn play(steps: u64, pieces: impl IntoIterator<Item = (u64, u64, u64)>) -> (LineSeries, Grid) {
    let grid = Grid { at: (1..=steps).map(|step| step * 100).collect(), stride: 1 };
    let mut series = LineSeries { live: vec![0; steps as usize], kept: Vec::new() };
    for (step, bytes, lives) in pieces {
        let until = if lives == 0 { steps } else { (step + lives).min(steps) };
        for check in step..until {
            series.live[check as usize] += bytes;
        }
        if lives == 0 || step + lives >= steps {
            series.kept.push((step * 100 + 50, bytes));
        }
    }
    series.kept.sort_unstable();
    (series, grid)
}

fn verdict(steps: u64, pieces: impl IntoIterator<Item = (u64, u64, u64)>) -> Verdict {
    let (series, grid) = play(steps, pieces);
    judge(&series, &grid, 100 * MB)
}

fn leak(verdict: Verdict) -> LeakFit {
    let Verdict::Leak(fit) = verdict else { panic!("not a leak: {verdict:?}") };
    fit
}

#[test]
fn one_tensor_a_step_is_a_leak_with_its_exact_slope() {
    let fit = leak(verdict(120, (0..120).map(|step| (step, MB, 0))));
    assert_eq!((fit.per_check, fit.onset_ns, fit.piece_bytes, fit.keeping), (MB as f64, 50, MB, 120));
    assert!(fit.even);
}

#[test]
fn a_leak_that_begins_later_says_when() {
    for onset in [10, 33, 60, 100] {
        let fit = leak(verdict(120, (onset..120).map(|step| (step, MB, 0))));
        assert_eq!((fit.per_check, fit.onset_ns), (MB as f64, onset * 100 + 50), "{onset}");
    }
}

#[test]
fn a_leak_every_tenth_step_is_a_leak() {
    let fit = leak(verdict(200, (0..20).map(|i| (i * 10 + 3, 10 * MB, 0))));
    let off = (fit.per_check / MB as f64 - 1.0).abs();
    assert!(off < 0.1, "{fit:?}");
}

/// Noise around a slow leak at the same line.
#[test]
fn a_slow_leak_in_noise_has_the_right_slope() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let mut pieces: Vec<(u64, u64, u64)> = (0..300).map(|step| (step, 100 << 10, 0)).collect();
        pieces
            .extend((0..300).flat_map(|step| [(step, 60 * MB, 1), (step, dice.below(20) * MB / 2, 1 + dice.below(5))]));
        let fit = leak(verdict(300, pieces));
        let off = (fit.per_check / f64::from(100 << 10) - 1.0).abs();
        assert!(off < 0.02, "seed {seed}: {fit:?}");
        assert_eq!(fit.onset_ns, 50, "seed {seed}");
    }
}

#[test]
fn bounded_growth_is_not_a_leak() {
    // A cache that fills in a third of the time.
    let settled = verdict(120, (0..40).map(|step| (step, MB, 0)));
    assert!(matches!(settled, Verdict::Grew(GrowthKind::Settled, Some(37..=40))), "{settled:?}");
    // A cache that drops the oldest of thirty entries.
    let renewed = verdict(120, (0..120).map(|step| (step, MB, 30)));
    assert!(matches!(renewed, Verdict::Grew(GrowthKind::Renewed, Some(_))), "{renewed:?}");
    // A large one: it takes more than half of the time to fill.
    let large = verdict(120, (0..120).map(|step| (step, MB, 70)));
    assert!(!matches!(large, Verdict::Leak(_)), "{large:?}");
    // Buffers of the first steps.
    let warm = verdict(120, (0..6).map(|step| (step, 4 * MB, 0)));
    assert!(!matches!(warm, Verdict::Leak(_)), "{warm:?}");
    let once = verdict(120, [(50, 30 * MB, 0)]);
    assert!(matches!(once, Verdict::Grew(GrowthKind::OneOff, Some(50))), "{once:?}");
}

#[test]
fn growth_that_is_freed_again_is_a_sawtooth_wherever_it_is_cut() {
    for steps in 100..130 {
        let pieces = (0..steps).map(|step: u64| (step, MB, 20 - step % 20));
        let found = verdict(steps, pieces);
        assert!(matches!(found, Verdict::Grew(GrowthKind::Sawtooth, None)), "{steps}: {found:?}");
    }
}

#[test]
fn temporary_tensors_are_fine() {
    let mut dice = Dice(5);
    let pieces: Vec<_> = (0..150).map(|step| (step, (1 + dice.below(40)) * MB, 1 + dice.below(4))).collect();
    let found = verdict(150, pieces);
    assert!(!matches!(found, Verdict::Leak(_)), "{found:?}");
    assert_eq!(verdict(150, (0..150).map(|step| (step, 9 * MB, 1))), Verdict::Fine);
}

#[test]
fn few_checks_are_not_enough() {
    assert_eq!(verdict(7, (0..7).map(|step| (step, MB, 0))), Verdict::Fine);
    assert_eq!(judge(&LineSeries::default(), &Grid::default(), 0), Verdict::Fine);
}

#[test]
fn growth_too_small_to_matter_is_ignored() {
    assert_eq!(verdict(120, (0..120).map(|step| (step, 512, 0))), Verdict::Fine);
}
