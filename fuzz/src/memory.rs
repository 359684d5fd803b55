// SPDX-License-Identifier: Apache-2.0
//! How much memory is in use: the system's allocator with a count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted. A program that has it as its global allocator can ask what an input took.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call is handed on to the system's allocator as it came; counting touches nothing but two numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Forgets earlier peaks; what is in use now, bytes.
pub(crate) fn begin() -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    live
}

/// The most there was since, bytes.
pub(crate) fn peak_above(before: usize) -> usize {
    PEAK.load(Ordering::Relaxed).saturating_sub(before)
}
