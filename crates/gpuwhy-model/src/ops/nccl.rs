// SPDX-License-Identifier: Apache-2.0
//! NCCL's part of the op table: communicators, collectives, sends and receives.

use super::{Class, Row, f};
use crate::decode::Decode::{Communicator, EndCommunicator, Handle, Plain, Transfer};
use crate::decode::NewCommunicator;

/// A transfer of `count` elements of a type, in the slots given; the communicator and the stream follow each other.
const fn t(symbol: &'static str, count: u8, peer: u8, communicator: u8) -> Row {
    Row { symbol, decode: Transfer { count, peer, communicator }, stream: Some(communicator + 1), ptsz: false }
}

const fn new(symbol: &'static str, how: NewCommunicator) -> Row {
    f(symbol, Communicator(how))
}

/// The rows, after CUDA's own. The type of a transfer's elements is in the slot after their count.
pub(super) const ROWS: &[(Class, &[Row])] = &[
    (
        Class::Collective,
        &[
            t("ncclAllReduce", 3, 0, 6),
            t("ncclBroadcast", 3, 5, 6),
            t("ncclBcast", 2, 4, 5),
            t("ncclReduce", 3, 6, 7),
            t("ncclAllGather", 3, 0, 5),
            t("ncclReduceScatter", 3, 0, 6),
            t("ncclAlltoAll", 3, 0, 5),
            t("ncclSend", 2, 4, 5),
            t("ncclRecv", 2, 4, 5),
        ],
    ),
    (
        Class::Communicator,
        &[
            new("ncclCommInitRank", NewCommunicator::InitRank),
            new("ncclCommInitRankConfig", NewCommunicator::InitRank),
            new("ncclCommInitRankScalable", NewCommunicator::Scalable),
            new("ncclCommSplit", NewCommunicator::Split),
            new("ncclCommInitAll", NewCommunicator::All),
            f("ncclCommFinalize", Handle { handle: 1 }),
            f("ncclCommDestroy", EndCommunicator),
            f("ncclCommAbort", EndCommunicator),
            f("ncclGroupStart", Plain),
            f("ncclGroupEnd", Plain),
        ],
    ),
];
