// SPDX-License-Identifier: Apache-2.0
//! A log-linear histogram of durations: exact counts, bounded error, cheap to update, mergeable.
//!
//! Own code rather than a crate because the layout is part of the run file's format: 16 buckets per
//! power of two, so a value read back is within 1/32 of the true one, and 976 buckets cover all of `u64`.

/// Buckets per power of two.
const SUB: u64 = 16;
/// log2 of [`SUB`].
const SUB_BITS: u32 = 4;
/// Number of buckets.
pub const BUCKETS: usize = ((64 - SUB_BITS as usize) << SUB_BITS) + SUB as usize;

/// Counts of values by magnitude.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

/// The bucket a value belongs to.
#[inline]
pub fn bucket_of(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let sub = (value >> (exponent - SUB_BITS)) & (SUB - 1);
    (((exponent - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize
}

/// Smallest and largest value of a bucket.
pub fn bounds_of(bucket: usize) -> (u64, u64) {
    if bucket < SUB as usize {
        return (bucket as u64, bucket as u64);
    }
    let shift = (bucket >> SUB_BITS) as u32 - 1;
    let low = (SUB + (bucket as u64 & (SUB - 1))) << shift;
    (low, low + ((1u64 << shift) - 1))
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts a value several times.
    #[inline]
    pub fn record_many(&mut self, value: u64, times: u64) {
        let count = &mut self.counts[bucket_of(value)];
        *count = count.saturating_add(times);
        self.total = self.total.saturating_add(times);
    }

    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Adds another's counts to this one's.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.counts.iter_mut().zip(other.counts.iter()) {
            *a = a.saturating_add(*b);
        }
        self.total = self.total.saturating_add(other.total);
    }

    /// Clears all counts, keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// The value below which a share `q` (0 to 1) of the values lie: the middle of that value's bucket,
    /// so at most 1/32 off. `None` when nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.total == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, count) in self.buckets() {
            below += count;
            if below >= rank {
                let (low, high) = bounds_of(bucket);
                return Some(low + (high - low) / 2);
            }
        }
        None
    }

    /// The non-empty buckets, in order of value.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (i, *n))
    }

    /// The stored form: for each non-empty bucket, its distance from the previous one and its count,
    /// both LEB128.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        let mut previous = 0;
        for (bucket, count) in self.buckets() {
            put_varint(&mut out, (bucket - previous) as u64);
            put_varint(&mut out, count);
            previous = bucket;
        }
        out
    }

    /// Decodes the output of [`Histogram::encode`]; `None` for anything else.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut histogram = Self::default();
        let mut bucket = 0usize;
        while !bytes.is_empty() {
            bucket = bucket.checked_add(usize::try_from(take_varint(&mut bytes)?).ok()?)?;
            let count = take_varint(&mut bytes)?;
            let slot = histogram.counts.get_mut(bucket)?;
            *slot = slot.checked_add(count)?;
            histogram.total = histogram.total.checked_add(count)?;
        }
        Some(histogram)
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator of spread-out values, so that every magnitude is tried.
    fn values() -> impl Iterator<Item = u64> {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        (0..20_000).map(move |i| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> (i % 64)
        })
    }

    #[test]
    fn every_value_is_inside_its_bucket() {
        for v in values().chain([0, 1, 15, 16, 17, 31, 32, u64::MAX - 1, u64::MAX]) {
            let bucket = bucket_of(v);
            let (low, high) = bounds_of(bucket);
            assert!(low <= v && v <= high, "{v} is outside bucket {bucket}: {low}..={high}");
            assert!(bucket < BUCKETS);
        }
        for bucket in 1..BUCKETS {
            assert_eq!(bounds_of(bucket - 1).1 + 1, bounds_of(bucket).0, "gap before bucket {bucket}");
        }
    }

    #[test]
    fn quantiles_are_within_a_thirty_second_of_the_sorted_truth() {
        let mut sorted: Vec<u64> = values().collect();
        let mut h = Histogram::default();
        sorted.iter().for_each(|v| h.record(*v));
        sorted.sort_unstable();
        for q in [0.0, 0.01, 0.5, 0.95, 0.99, 1.0] {
            let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
            let truth = sorted[rank - 1] as f64;
            let got = h.quantile(q).unwrap() as f64;
            assert!((got - truth).abs() <= truth / 32.0 + 0.5, "q{q}: {got} instead of {truth}");
        }
    }

    #[test]
    fn merging_equals_counting_together_and_survives_storage() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for (i, v) in values().enumerate() {
            if i % 3 == 0 {
                a.record(v)
            } else {
                b.record(v)
            }
            both.record(v);
        }
        let mut merged = Histogram::decode(&a.encode()).unwrap();
        merged.merge(&Histogram::decode(&b.encode()).unwrap());
        assert_eq!(merged, both);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Histogram::decode(&[0x80]).is_none());
        assert!(Histogram::decode(&[0xff, 0xff, 0x7f, 1]).is_none());
        assert!(Histogram::decode(&[0xff; 40]).is_none());
        assert_eq!(Histogram::decode(&[]).unwrap().total(), 0);
    }
}
