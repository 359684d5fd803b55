// SPDX-License-Identifier: Apache-2.0
//! Every string of a snapshot once, and the names the format itself uses under fixed ids.

use super::hash::{Ids, Seed};
use std::borrow::Cow;

/// A string's place in [`Strings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StrId(pub(super) u32);

macro_rules! known {
    ($($id:ident = $text:literal),* $(,)?) => {
        /// The format's own names, in the order they are interned.
        const KNOWN: &[&str] = &[$($text),*];
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Order { $($id),* }
        /// Ids of the format's own names.
        pub(super) mod key {
            $(pub(in crate::snapshot) const $id: u32 = super::Order::$id as u32;)*
        }
    };
}

known! {
    EMPTY = "", ACTION = "action", ADDR = "addr", DEVICE_FREE = "device_free", SIZE = "size", TIME_US = "time_us",
    FRAMES = "frames", NAME = "name", FILENAME = "filename", LINE = "line", STATE = "state", ADDRESS = "address",
    REQUESTED_SIZE = "requested_size", BLOCKS = "blocks", DEVICE = "device", TOTAL_SIZE = "total_size",
    ALLOCATED_SIZE = "allocated_size",
    SEGMENT_TYPE = "segment_type", SEGMENT_POOL_ID = "segment_pool_id", IS_EXPANDABLE = "is_expandable",
    STAGE = "stage", REAL_SIZE = "real_size", HISTORY = "history", SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces", ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations", HOST_SEGMENTS = "host_segments",
    ALLOC = "alloc", FREE_REQUESTED = "free_requested", FREE_COMPLETED = "free_completed",
    SEGMENT_ALLOC = "segment_alloc", SEGMENT_FREE = "segment_free", SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap", OOM = "oom",
    ACTIVE_ALLOCATED = "active_allocated", ACTIVE_PENDING_FREE = "active_pending_free",
    SMALL = "small", START = "START",
    EXPANDABLE_SEGMENTS = "expandable_segments", MAX_SPLIT_SIZE = "max_split_size",
    ROUNDUP = "roundup_power2_divisions", CONF = "PYTORCH_CUDA_ALLOC_CONF",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
}

/// The interned strings.
#[derive(Debug)]
pub(super) struct Strings {
    text: Vec<u8>,
    /// Where each string ends in `text`; it starts where the one before ends.
    ends: Vec<usize>,
    ids: Ids,
    seed: Seed,
    /// Short strings seen last, by their bytes: millions of entries each bring the same one or two.
    recent: [(u64, u32); 64],
}

/// What no string of up to seven bytes packs to.
const NO_STRING: u64 = u64::MAX;

impl Default for Strings {
    fn default() -> Self {
        let mut strings = Self {
            text: Vec::new(),
            ends: Vec::new(),
            ids: Ids::default(),
            seed: Seed::default(),
            recent: [(NO_STRING, 0); 64],
        };
        for known in KNOWN {
            strings.intern(known.as_bytes());
        }
        strings
    }
}

impl Strings {
    /// The id of these bytes.
    #[inline]
    pub(super) fn intern(&mut self, bytes: &[u8]) -> u32 {
        if bytes.len() > 7 {
            return self.intern_slowly(bytes);
        }
        let mut packed = [0; 8];
        packed[..bytes.len()].copy_from_slice(bytes);
        packed[7] = bytes.len() as u8;
        let packed = u64::from_le_bytes(packed);
        let place = (packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        if self.recent[place].0 == packed {
            return self.recent[place].1;
        }
        let id = self.intern_slowly(bytes);
        self.recent[place] = (packed, id);
        id
    }

    fn intern_slowly(&mut self, bytes: &[u8]) -> u32 {
        let Self { text, ends, ids, seed, .. } = self;
        let hash = seed.bytes(bytes);
        if let Some(id) = ids.find(hash, |id| slice(text, ends, id) == bytes) {
            return id;
        }
        let id = ends.len() as u32;
        text.extend_from_slice(bytes);
        ends.push(text.len());
        ids.insert(hash, id, |old| seed.bytes(slice(text, ends, old)));
        id
    }

    /// The text; what is no UTF-8 in it is replaced.
    pub(super) fn get(&self, id: StrId) -> Cow<'_, str> {
        String::from_utf8_lossy(slice(&self.text, &self.ends, id.0))
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>() + self.ids.memory()
    }
}

fn slice<'a>(text: &'a [u8], ends: &[usize], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends.get(id - 1).copied().unwrap_or(0) };
    let end = ends.get(id).copied().unwrap_or(start);
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_string_once_and_the_known_ones_where_expected() {
        let mut strings = Strings::default();
        assert_eq!(strings.intern(b"alloc"), key::ALLOC);
        assert_eq!(strings.intern(b""), key::EMPTY);
        let first = strings.intern(b"train.py");
        let many: Vec<u32> = (0..1000).map(|i| strings.intern(format!("s{i}").as_bytes())).collect();
        assert_eq!(strings.intern(b"train.py"), first);
        assert_eq!(strings.intern(b"s999"), many[999]);
        assert_eq!(strings.get(StrId(many[500])), "s500");
        assert_eq!(strings.len(), KNOWN.len() + 1001);
    }
}
