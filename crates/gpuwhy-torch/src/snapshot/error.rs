// SPDX-License-Identifier: Apache-2.0
//! Why a memory snapshot could not be read.

use gpuwhy_model::units;

/// What went wrong, and at which byte of the (unpacked) pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pickle asks for something to be executed or looked up. Nothing was.
    #[error(
        "refused the pickle opcode {opcode} at byte {offset}: a memory snapshot holds plain data only, \
         this file would run code or load objects; do not open it with Python's pickle"
    )]
    Refused {
        /// The opcode's name as Python's `pickletools` prints it.
        opcode: &'static str,
        /// Where it stands.
        offset: u64,
    },
    /// Plain data, but of a kind that no snapshot has.
    #[error(
        "the pickle opcode {opcode} at byte {offset} is not something PyTorch writes in a snapshot: this file is \
         another pickle"
    )]
    Unexpected {
        /// The opcode's name as Python's `pickletools` prints it.
        opcode: &'static str,
        /// Where it stands.
        offset: u64,
    },
    /// The file ends before the pickle does.
    #[error("the snapshot ends at byte {offset}, before the pickle does: it was cut off")]
    Truncated {
        /// How many bytes there were.
        offset: u64,
    },
    /// The bytes make no sense as a pickle.
    #[error("the pickle is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where.
        offset: u64,
        /// What was found there.
        what: String,
    },
    /// Reading on would take more memory than allowed, or more objects than can be numbered.
    #[error(
        "not a snapshot gpuwhy can hold: what was read up to byte {offset} is more than the limit of {} of memory, or \
         of more parts than can be numbered",
        units::bytes(*limit)
    )]
    TooLarge {
        /// How far it was read.
        offset: u64,
        /// The limit on memory, bytes.
        limit: u64,
    },
    /// A pickle, but of something else.
    #[error("not a PyTorch memory snapshot: {what}")]
    NotASnapshot {
        /// What it is instead.
        what: String,
    },
    /// The source of the bytes failed.
    #[error("reading the snapshot failed at byte {offset}: {source}")]
    Read {
        /// How far it was read.
        offset: u64,
        /// The failure.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether what was read before may still be used: the file is cut off or damaged, but not hostile.
    pub(super) fn leaves_something(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Damaged { .. } | Self::Read { .. })
    }
}
