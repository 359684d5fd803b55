// SPDX-License-Identifier: Apache-2.0
//! Start and end of the steady state, inferred from the launch rate.

use crate::blame::Slice;

/// The steady state begins around this share of all launches.
const FIRST_SHARE: f64 = 0.02;
/// Fewer launches than this show no pattern.
const ENOUGH: u64 = 50;
/// During startup the launch rate is at most this share of the steady rate.
const RARER: f64 = 0.3;

/// First and last slice of the steady state. For a job without launches, copies count instead.
pub(crate) fn steady(slices: &[Slice]) -> Option<(usize, usize)> {
    let launches = slices.iter().any(|slice| slice.launches > 0);
    let work = |slice: &Slice| if launches { slice.launches } else { slice.copies };
    let first = slices.iter().position(|slice| work(slice) > 0)?;
    let last = slices.iter().rposition(|slice| work(slice) > 0)?;
    let total: u64 = slices.iter().map(work).sum();
    if total < ENOUGH || last == first {
        return Some((first, last));
    }
    let wanted = (total as f64 * FIRST_SHARE).ceil() as u64;
    let mut seen = 0;
    let reached = (first..=last).find(|i| {
        seen += work(&slices[*i]);
        seen >= wanted
    });
    let reached = reached.unwrap_or(first);
    // In a steady job these launches take this many slices; anything before is startup.
    let usual = FIRST_SHARE / (1.0 - FIRST_SHARE) * (last - reached + 1) as f64;
    let begin = reached.saturating_sub(usual.ceil() as usize).max(first);
    let before: u64 = slices[first..begin].iter().map(work).sum();
    let rate = |launches: u64, slices: usize| launches as f64 / slices.max(1) as f64;
    let early = rate(before, begin - first);
    let later = rate(total - before, last - begin + 1);
    Some((if begin > first && early < later * RARER { begin } else { first }, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(launches: &[u64]) -> Vec<Slice> {
        launches.iter().map(|n| Slice { launches: *n, ..Slice::default() }).collect()
    }

    #[test]
    fn an_even_job_is_steady_from_its_first_launch() {
        let even: Vec<u64> = std::iter::repeat_n(0, 10).chain(std::iter::repeat_n(100, 200)).collect();
        assert_eq!(steady(&slices(&even)), Some((10, 209)));
    }

    #[test]
    fn a_few_launches_while_loading_are_the_start() {
        let mut launches = vec![0; 300];
        launches[20] = 5;
        launches[60] = 3;
        launches[100..300].fill(50);
        let (begin, last) = steady(&slices(&launches)).unwrap();
        assert!((98..=104).contains(&begin), "{begin}");
        assert_eq!(last, 299);
    }

    #[test]
    fn without_launches_there_is_none() {
        assert_eq!(steady(&slices(&[0, 0])), None);
    }
}
