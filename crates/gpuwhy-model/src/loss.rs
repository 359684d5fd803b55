// SPDX-License-Identifier: Apache-2.0
//! Causes why an event, or a detail of one, was lost. Counted where it happens, shown with the answer.

use serde::Serialize;

/// A cause of loss. The numbers are the indices of the BPF program's counters (`bpf/state.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum LossCause {
    /// The ring buffer between kernel and gpuwhy was full: gpuwhy could not keep up.
    RingFull = 0,
    /// The kernel had no memory for the thread's state, so the call could not be followed.
    MapFull = 1,
    /// More traced calls nested in one another than gpuwhy keeps (16).
    TooDeep = 2,
    /// The kernel refused to run the probe because another was running on that CPU.
    Recursion = 3,
    /// The run file could not be written (disk full, I/O error).
    WriteFailed = 4,
    /// A call's return was never seen though its thread went on (a jump out of the library).
    NoReturn = 5,
    /// Detail only: too many live allocations to remember; the frees of some carry no size.
    LiveMapFull = 6,
    /// Detail only: an argument in the program's memory could not be read.
    ArgUnreadable = 7,
    /// Detail only: it is unknown whether the runtime library made a driver call; it is recorded under the driver's name.
    CallerUnknown = 8,
    /// Detail only: which task had a CPU, or a thread's sums, were dropped; the ring buffer was full.
    EvidenceLost = 9,
    /// Detail only: a Python stack could be read only in part; a page was not in memory.
    StackUnreadable = 10,
    /// Detail only: a Python stack had more frames than are kept (128); the outermost are missing.
    StackTruncated = 11,
    /// Detail only: a process whose Python gpuwhy cannot read.
    UnknownPython = 12,
    /// The run file had reached its maximum size (`--max-size`): the event is only in the sums.
    SizeCap = 13,
    /// Detail only: a process whose libraries could not be read in time, and which is not watched.
    ProcessUnread = 14,
}

impl LossCause {
    /// Every cause, in numeric order.
    pub const ALL: [Self; 15] = [
        Self::RingFull,
        Self::MapFull,
        Self::TooDeep,
        Self::Recursion,
        Self::WriteFailed,
        Self::NoReturn,
        Self::LiveMapFull,
        Self::ArgUnreadable,
        Self::CallerUnknown,
        Self::EvidenceLost,
        Self::StackUnreadable,
        Self::StackTruncated,
        Self::UnknownPython,
        Self::SizeCap,
        Self::ProcessUnread,
    ];

    /// The name in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::MapFull => "map_full",
            Self::TooDeep => "too_deep",
            Self::Recursion => "recursion",
            Self::WriteFailed => "write_failed",
            Self::NoReturn => "no_return",
            Self::LiveMapFull => "live_map_full",
            Self::ArgUnreadable => "arg_unreadable",
            Self::CallerUnknown => "caller_unknown",
            Self::EvidenceLost => "evidence_lost",
            Self::StackUnreadable => "stack_unreadable",
            Self::StackTruncated => "stack_truncated",
            Self::UnknownPython => "unknown_python",
            Self::SizeCap => "size_cap",
            Self::ProcessUnread => "process_unread",
        }
    }

    /// Whether a whole event is gone (true) or only a detail of one (false).
    pub fn loses_event(self) -> bool {
        self as u8 <= Self::NoReturn as u8 || self == Self::SizeCap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (i, cause) in LossCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, i);
        }
    }
}
