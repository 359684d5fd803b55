// SPDX-License-Identifier: Apache-2.0
//! Resources used by gpuwhy itself.

use crate::trace::budget::JobCost;
use serde::Serialize;

/// gpuwhy's own consumption so far.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct OwnCost {
    /// CPU time of gpuwhy's threads and its reader processes, ns.
    pub(crate) cpu_ns: u64,
    /// Peak memory, bytes.
    pub(crate) peak_memory_bytes: u64,
}

/// The cost of tracing, as stored in the run file.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Costs {
    #[serde(flatten)]
    pub(crate) own: OwnCost,
    pub(crate) job: JobCost,
}

impl OwnCost {
    /// Reads the kernel's figures. The ring of `ring_bytes` is mapped twice in a row so that records never wrap, and
    /// the kernel counts it twice: one is subtracted. `looking_ns` is the CPU time of gpuwhy's reader processes.
    pub(crate) fn so_far(ring_bytes: u32, looking_ns: u64) -> Self {
        // SAFETY: a struct of numbers, for which zeroes are valid, filled by the kernel.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is ours.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
        Self {
            cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime) + looking_ns,
            peak_memory_bytes: (usage.ru_maxrss.max(0) as u64 * 1024).saturating_sub(u64::from(ring_bytes)),
        }
    }
}
