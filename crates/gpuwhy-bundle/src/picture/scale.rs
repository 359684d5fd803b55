// SPDX-License-Identifier: Apache-2.0
//! Round numbers along an axis.

/// About `about` ticks between two numbers, at 1, 2 or 5 times a power of ten.
pub(super) fn ticks(from: u64, to: u64, about: u64) -> Vec<u64> {
    let span = to.saturating_sub(from);
    let rough = (span / about.max(1)).max(1);
    let power = 10_u64.pow(rough.ilog10());
    let steps = [power, power.saturating_mul(2), power.saturating_mul(5), power.saturating_mul(10)];
    let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let first = from.div_ceil(step).saturating_mul(step);
    std::iter::successors(Some(first), |tick| tick.checked_add(step)).take_while(|tick| *tick <= to).take(64).collect()
}

/// The position of a number between two others, from 0 to 1.
pub(super) fn part(value: u64, from: u64, to: u64) -> f32 {
    let span = to.saturating_sub(from).max(1);
    (value.clamp(from, to.max(from)).saturating_sub(from) as f64 / span as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0, 100, 5), [0, 20, 40, 60, 80, 100]);
        assert_eq!(ticks(130, 950, 4), [500]);
        assert_eq!(ticks(0, 0, 5), [0]);
        assert_eq!(ticks(7, 9, 5), [7, 8, 9]);
        assert!(ticks(0, u64::MAX, 8).len() < 20);
        assert!(ticks(u64::MAX - 1, u64::MAX, 8).len() <= 2);
    }

    #[test]
    fn parts_stay_between_the_ends() {
        assert_eq!((part(5, 0, 10), part(0, 5, 10), part(20, 5, 10), part(3, 3, 3)), (0.5, 0.0, 1.0, 0.0));
    }
}
