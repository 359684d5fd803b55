// SPDX-License-Identifier: Apache-2.0
//! Why a memory snapshot could not be read.

use gpuwhy_model::units;

/// What went wrong; offsets are bytes of the unpacked pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pickle asks for code to be run or an object to be loaded. gpuwhy does neither.
    #[error(
        "refused the pickle opcode {opcode} at byte {offset}: a memory snapshot holds only plain data, but this file \
         would run code or load objects; do not open it with Python's pickle"
    )]
    Refused {
        /// The opcode's name as Python's `pickletools` prints it.
        opcode: &'static str,
        /// Its offset.
        offset: u64,
    },
    /// Plain data of a kind that no snapshot has.
    #[error("not a PyTorch memory snapshot: PyTorch never writes the pickle opcode {opcode} (at byte {offset}) in one")]
    Unexpected {
        /// The opcode's name as Python's `pickletools` prints it.
        opcode: &'static str,
        /// Its offset.
        offset: u64,
    },
    /// The file ends before the pickle does.
    #[error("the snapshot is cut off: it ends at byte {offset}, in the middle of the pickle")]
    Truncated {
        /// How many bytes there were.
        offset: u64,
    },
    /// The bytes are not a valid pickle.
    #[error("the pickle is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where.
        offset: u64,
        /// What was found there.
        what: String,
    },
    /// Reading on would take more memory than allowed, or more objects than can be numbered.
    #[error(
        "the snapshot is too large: up to byte {offset} it needs more than the limit of {} of memory, or has more \
         objects than gpuwhy can count",
        units::bytes(*limit)
    )]
    TooLarge {
        /// How far it was read.
        offset: u64,
        /// The limit on memory, bytes.
        limit: u64,
    },
    /// A valid pickle of something else.
    #[error("not a PyTorch memory snapshot: {what}")]
    NotASnapshot {
        /// What it is instead.
        what: String,
    },
    /// The bytes could not be read.
    #[error("cannot read the snapshot at byte {offset}: {source}")]
    Read {
        /// How far it was read.
        offset: u64,
        /// The failure.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the data read so far may be used: the file is cut off or damaged, but not hostile.
    pub(super) fn leaves_something(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Damaged { .. } | Self::Read { .. })
    }
}
