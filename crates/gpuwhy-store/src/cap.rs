// SPDX-License-Identifier: Apache-2.0
//! The size limit of the run file, and what it means for the next rows. Pure.
//!
//! Up to half of the size, everything is stored. From there on, bursts become few rows ([`gpuwhy_model::thin`]): the
//! less room is left, the longer the bursts that share a row. So a file that fills slowly is thinned little. The rest
//! is reserved for slow calls and for small data that is always stored: sums, loss, samples, the ledger, findings.

use gpuwhy_model::thin::Thinning;

/// Bursts grow by this factor each time the room halves, so that, while there are bursts, each half lasts twice as long
/// as the one before.
const GROWTH: u32 = 4;
/// How often bursts grow; by then they are longer than any burst is.
const MOST_STEPS: u32 = 8;
/// From this step on, a row may represent calls with different stacks, which is better than losing them.
const MIX_STEP: u32 = 3;
/// Reserved for the end of the run, bytes: at most this, unless 1/32 of the file is more.
const END_BYTES: u64 = 512 << 10;

/// How much room the next rows may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// All they need.
    Enough,
    /// Less than they need.
    Little(Thinning),
    /// Only what is slow is still stored.
    SlowOnly,
    /// None at all.
    Nothing,
}

/// The largest size of a file, bytes; `None` for any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SizeCap(pub(crate) Option<u64>);

impl SizeCap {
    /// The room left in a file of `size` bytes, including its -wal.
    pub(crate) fn room(self, size: u64) -> Room {
        let Some(max) = self.0.filter(|max| size >= max / 2) else { return Room::Enough };
        let full = max - END_BYTES.min(max / 8).max(max / 32);
        if size >= max {
            return Room::Nothing;
        }
        if size >= full {
            return Room::SlowOnly;
        }
        let halvings = ((full - max / 2) / (full - size)).max(1).ilog2();
        let step = (halvings + 1).min(MOST_STEPS);
        Room::Little(Thinning { longest: GROWTH.saturating_pow(step), mix_stacks: step >= MIX_STEP })
    }

    /// `usual` without a cap, a fraction of it for small caps, but at least `least`.
    pub(crate) fn part(self, one_in: u64, least: u64, usual: u64) -> u64 {
        self.0.map_or(usual, |max| (max / one_in).clamp(least, usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_file_the_longer_the_bursts() {
        const MAX: u64 = 2_000_000_000;
        let cap = SizeCap(Some(MAX));
        let steps: Vec<u32> = (0..=100)
            .map(|percent| match cap.room(MAX / 100 * percent) {
                Room::Enough => 1,
                Room::Little(how) => how.longest,
                Room::SlowOnly => u32::MAX - 1,
                Room::Nothing => u32::MAX,
            })
            .collect();
        assert!(steps.is_sorted(), "{steps:?}");
        assert_eq!((steps[49], steps[50], steps[73], steps[74], steps[96]), (1, 4, 4, 16, 4096));
        assert_eq!((steps[97], steps[99], steps[100]), (u32::MAX - 1, u32::MAX - 1, u32::MAX));
        assert_eq!(SizeCap(None).room(u64::MAX), Room::Enough);
    }

    #[test]
    fn small_files_keep_room_for_what_is_always_stored() {
        let cap = SizeCap(Some(1_000_000));
        assert_eq!(cap.room(880_000), Room::SlowOnly);
        assert!(matches!(cap.room(870_000), Room::Little(_)));
        assert_eq!((cap.part(2_048, 1_000, 200_000), SizeCap(None).part(2_048, 1_000, 200_000)), (1_000, 200_000));
    }
}
