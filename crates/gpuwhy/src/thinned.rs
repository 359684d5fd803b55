// SPDX-License-Identifier: Apache-2.0
//! A one-line note about a run file whose events were partly represented by others or dropped.

use gpuwhy_model::units;

/// Why a file has fewer rows than events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Thinned {
    /// Events in the file, by weight.
    pub(crate) stored: u64,
    /// Of these, events represented by the weight of a similar row.
    pub(crate) thinned: u64,
    /// Events dropped because the file was full.
    pub(crate) refused: u64,
    /// `--max-size`, bytes.
    pub(crate) max_size: Option<u64>,
}

impl Thinned {
    /// The note; `None` if every event has its own row.
    pub(crate) fn note(&self) -> Option<String> {
        let size = self
            .max_size
            .map(|max| format!(" to stay within --max-size {} or --budget", units::bytes(max)))
            .unwrap_or_default();
        let refused = format!("{} fast events were dropped", units::count(self.refused));
        match (self.thinned, self.refused) {
            (0, 0) => None,
            (0, _) => Some(format!("{refused}{size}: they are counted in `loss`; `seconds` is exact")),
            (thinned, refused_events) => {
                let more = if refused_events > 0 { format!(", {refused}") } else { String::new() };
                Some(format!(
                    "{} of {} events are represented by similar rows (see `weight`){more}{size}: count with SUM(weight); `seconds` is exact",
                    units::count(thinned),
                    units::count(self.stored)
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_happened_and_what_to_do() {
        assert_eq!(Thinned { stored: 10, ..Thinned::default() }.note(), None);
        let thinned = Thinned { stored: 3_400_000, thinned: 1_200_000, refused: 0, max_size: Some(2_000_000_000) };
        let says = "1,200,000 of 3,400,000 events are represented by similar rows (see `weight`) to stay within --max-size 2.00 GB or --budget: count \
                    with SUM(weight); `seconds` is exact";
        assert_eq!(thinned.note().as_deref(), Some(says));
        let both = Thinned { refused: 7, ..thinned }.note().unwrap();
        assert!(both.contains("(see `weight`), 7 fast events were dropped to stay within --max-size"), "{both}");
        let full = Thinned { thinned: 0, refused: 7, ..thinned }.note().unwrap();
        assert!(full.starts_with("7 fast events were dropped to stay within --max-size 2.00 GB or --budget"), "{full}");
    }
}
