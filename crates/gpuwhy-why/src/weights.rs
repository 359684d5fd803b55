// SPDX-License-Identifier: Apache-2.0
//! Rows that stand for others like them. Those took about as long as the row, and lie before it, after the thread's row
//! before: there is never more of them than fits there.

use gpuwhy_model::OffCpu;

/// How long the others took together, ns. `since` is when the thread's row before ended.
pub(crate) fn before_ns(start_ns: u64, duration_ns: u64, weight: u64, since: u64) -> u64 {
    duration_ns.saturating_mul(weight.saturating_sub(1)).min(start_ns.saturating_sub(since))
}

/// A time off the CPU with the others before it, as one: blocked first, then ready, each as much as they were together.
pub(crate) fn stretched(off: &OffCpu, since: u64) -> OffCpu {
    let more = before_ns(off.start_ns, off.duration_ns, off.times(), since);
    if more == 0 {
        return *off;
    }
    let duration_ns = off.duration_ns.saturating_add(more);
    let ready = u128::from(off.ready_ns) * u128::from(duration_ns) / u128::from(off.duration_ns.max(1));
    let ready_ns = u64::try_from(ready).unwrap_or(u64::MAX).min(duration_ns);
    OffCpu { start_ns: off.start_ns - more, duration_ns, ready_ns, ..*off }
}
