// SPDX-License-Identifier: Apache-2.0
//! Statistics that a few outliers do not change.

/// The median; 0 without values.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    let (below, at, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let at = *at;
    if below.len() < middle || !values.len().is_multiple_of(2) {
        return at;
    }
    let lower = values[..middle].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    f64::midpoint(lower, at)
}

/// The Theil–Sen slope: the median of the slopes of all pairs. `None` without two different x.
///
/// Callers limit the number of points: the number of pairs grows with its square.
pub(crate) fn theil_sen(points: &[(f64, f64)]) -> Option<f64> {
    let mut slopes = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
    for (i, (x0, y0)) in points.iter().enumerate() {
        for (x1, y1) in &points[i + 1..] {
            if x1 > x0 {
                slopes.push((y1 - y0) / (x1 - x0));
            }
        }
    }
    if slopes.is_empty() { None } else { Some(median(&mut slopes)) }
}

/// At most `most` of the values, evenly spread, the last one included.
pub(crate) fn spread<T: Copy>(values: &[T], most: usize) -> Vec<T> {
    let stride = values.len().div_ceil(most.max(1)).max(1);
    let offset = values.len().saturating_sub(1) % stride;
    values.iter().copied().skip(offset).step_by(stride).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0]), 3.0);
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 100.0]), 3.0);
    }

    #[test]
    fn a_slope_survives_outliers() {
        let points: Vec<(f64, f64)> =
            (0..60).map(|i| (f64::from(i), if i % 4 == 0 { 1e6 } else { 7.0 * f64::from(i) + 3.0 })).collect();
        let slope = theil_sen(&points).unwrap();
        assert!((slope - 7.0).abs() < 1e-9, "{slope}");
        assert_eq!(theil_sen(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn spreading_keeps_the_last() {
        let values: Vec<u32> = (0..10).collect();
        assert_eq!(spread(&values, 4), [0, 3, 6, 9]);
        assert_eq!(spread(&values, 100), values);
        assert_eq!(spread::<u32>(&[], 4), []);
    }
}
