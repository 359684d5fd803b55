// SPDX-License-Identifier: Apache-2.0
//! The part of the op table that is NCCL's: collectives and what one rank sends another. Their first argument of note is
//! the communicator.

use super::{Class, Row};
use crate::decode::Decode::Handle;

/// A function with its communicator and its stream in the given slots. NCCL has no variants by default stream.
const fn n(symbol: &'static str, communicator: u8, stream: u8) -> Row {
    Row { symbol, decode: Handle { handle: communicator }, stream: Some(stream), ptsz: false }
}

/// The rows, after CUDA's own.
pub(super) const ROWS: &[(Class, &[Row])] = &[(
    Class::Collective,
    &[
        n("ncclAllReduce", 6, 7),
        n("ncclBroadcast", 6, 7),
        n("ncclBcast", 5, 6),
        n("ncclReduce", 7, 8),
        n("ncclAllGather", 5, 6),
        n("ncclReduceScatter", 6, 7),
        n("ncclSend", 5, 6),
        n("ncclRecv", 5, 6),
    ],
)];
