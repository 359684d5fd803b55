// SPDX-License-Identifier: Apache-2.0
//! Counts memory in use, around the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count. As a program's global allocator, it shows how much memory an input used.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes unchanged to the system's allocator; counting only touches two atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Resets the peak and returns the bytes in use now.
pub(crate) fn begin() -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    live
}

/// By how many bytes the peak since [`begin`] exceeds `before`.
pub(crate) fn peak_above(before: usize) -> usize {
    PEAK.load(Ordering::Relaxed).saturating_sub(before)
}
