// SPDX-License-Identifier: Apache-2.0
//! Mutates seeds. The same number always gives the same input, so failures can be reproduced.

/// Bytes with a meaning in many formats: terminators, signs, quotes, brackets, limits of numbers.
const MARKS: [u8; 24] = *b"\0\x01\x7f\x80\xff\n\r\t \"'\\/=:,;@{}[]-+";
/// Numbers near which parsers tend to fail.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x1_0000_0000, u64::MAX >> 1, 1 << 63, u64::MAX];
/// The longest piece that is repeated, moved or removed, bytes.
const PIECE: usize = 64;
/// The largest input, bytes.
const LARGEST: usize = 4 << 20;

/// A random number generator (SplitMix64) and its mutations.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// The generator that starts from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.draw() % end as u64) as usize }
    }

    /// One of the seeds with a few mutations; sometimes only random bytes.
    pub fn input(&mut self, seeds: &[Vec<u8>], words: &[&[u8]]) -> Vec<u8> {
        let mut data = match seeds.get(self.below(seeds.len())) {
            Some(seed) if self.below(50) > 0 => seed.clone(),
            _ => {
                let length = self.below(200);
                (0..length).map(|_| self.draw() as u8).collect()
            }
        };
        // Mostly few changes: heavily mutated input is refused at its first byte.
        for _ in 0..=self.below(4) * self.below(4) {
            self.spoil(&mut data, seeds, words);
        }
        data.truncate(LARGEST);
        data
    }

    fn spoil(&mut self, data: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&[u8]]) {
        let at = self.below(data.len());
        match self.below(11) {
            0 => self.change(data, |byte, chance| byte ^ 1 << (chance % 8)),
            1 => self.change(data, |_, chance| MARKS[chance as usize % MARKS.len()]),
            2 => self.change(data, |byte, chance| byte.wrapping_add((chance % 32) as u8).wrapping_sub(16)),
            3 => self.number(data),
            4 => drop(data.drain(at..(at + 1 + self.below(PIECE)).min(data.len()))),
            5 => data.truncate(at),
            6 => {
                let piece = data[at..(at + 1 + self.below(PIECE)).min(data.len())].to_vec();
                for _ in 0..=self.below(20) {
                    data.splice(at..at, piece.iter().copied());
                }
            }
            7 => {
                let piece = data[at..(at + 1 + self.below(PIECE)).min(data.len())].to_vec();
                let to = self.below(data.len());
                data.splice(to..to, piece);
            }
            8 => {
                // The start of this one and the end of another.
                if let Some(other) = seeds.get(self.below(seeds.len())) {
                    data.truncate(at);
                    data.extend(&other[self.below(other.len())..]);
                }
            }
            9 => {
                let length = 1 + self.below(8);
                let piece: Vec<u8> = (0..length).map(|_| self.draw() as u8).collect();
                data.splice(at..at, piece);
            }
            _ => {
                if let Some(word) = words.get(self.below(words.len())) {
                    data.splice(at..at, word.iter().copied());
                }
            }
        }
    }

    fn change(&mut self, data: &mut [u8], to: impl Fn(u8, u64) -> u8) {
        let (at, chance) = (self.below(data.len()), self.draw());
        if let Some(byte) = data.get_mut(at) {
            *byte = to(*byte, chance);
        }
    }

    /// Overwrites bytes with a number of random width and byte order.
    fn number(&mut self, data: &mut [u8]) {
        let number = NUMBERS[self.below(NUMBERS.len())];
        let width = 1 << self.below(4);
        let bytes =
            if self.below(2) == 0 { number.to_le_bytes() } else { number.rotate_right(8 * width as u32).to_be_bytes() };
        let at = self.below(data.len());
        for (place, byte) in data[at..].iter_mut().zip(&bytes[..width]) {
            *place = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_gives_the_same_input_and_others_give_others() {
        let seeds = [b"one example".to_vec(), b"{\"another\": 1}".to_vec(), Vec::new()];
        let words: [&[u8]; 1] = [b"token"];
        let input = |seed| Mutator::new(seed).input(&seeds, &words);
        let inputs: Vec<Vec<u8>> = (0..2_000).map(input).collect();
        assert!((0..2_000).all(|seed| inputs[seed as usize] == input(seed)));
        let different: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(different.len() > 1_000, "{}", different.len());
        assert!(inputs.iter().any(|input| input.windows(5).any(|piece| piece == b"token")));
    }
}
