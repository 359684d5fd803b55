// SPDX-License-Identifier: Apache-2.0
//! Rows that represent similar events ([`gpuwhy_model::thin`]). Those took about as long as the row and lie before it, where
//! the thread has no other row: never more of them than fit there.

use gpuwhy_model::thin::LONGEST_NS;
use gpuwhy_model::{Call, OffCpu};

/// A thread's time between the rows of its calls that is not yet attributed to represented calls.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Between {
    /// When the thread's last call ended.
    until: u64,
    ns: u64,
}

/// The calls that a row represents.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Others {
    /// Their total duration, ns.
    pub(crate) ns: u64,
    /// The part that can lie directly before the row, ns.
    pub(crate) before_ns: u64,
    /// Earliest possible start of the first; the row's own start if there are none.
    pub(crate) first: u64,
}

impl Between {
    /// Takes the thread's next call.
    pub(crate) fn take(&mut self, call: &Call) -> Others {
        let gap = call.start_ns.saturating_sub(self.until);
        // Rows of several kinds follow each other at the end of a burst and share the time before.
        self.ns = self.ns.saturating_add(gap).min(LONGEST_NS.max(gap));
        let ns = call.duration_ns.saturating_mul(call.calls() - 1).min(self.ns);
        self.ns -= ns;
        let early = self.until.min(call.start_ns.saturating_sub(LONGEST_NS));
        self.until = self.until.max(call.start_ns.saturating_add(call.duration_ns));
        let first = if call.calls() > 1 { early } else { call.start_ns };
        Others { ns, before_ns: ns.min(gap), first }
    }
}

/// Merges a time off the CPU with the ones it represents: blocked first, then ready, each as long as all together.
/// `since`: end of the thread's previous time off the CPU.
pub(crate) fn stretched(off: &OffCpu, since: u64) -> OffCpu {
    let others = off.duration_ns.saturating_mul(off.times() - 1);
    let more = others.min(off.start_ns.saturating_sub(since));
    if more == 0 {
        return *off;
    }
    let duration_ns = off.duration_ns.saturating_add(more);
    let ready = u128::from(off.ready_ns) * u128::from(duration_ns) / u128::from(off.duration_ns.max(1));
    let ready_ns = u64::try_from(ready).unwrap_or(u64::MAX).min(duration_ns);
    OffCpu { start_ns: off.start_ns - more, duration_ns, ready_ns, ..*off }
}
