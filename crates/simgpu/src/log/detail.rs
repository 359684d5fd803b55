// SPDX-License-Identifier: Apache-2.0
//! What a call was about beyond its sizes and handles; `c/simgpu.h` has the same list.

use super::{u32_at, u64_at};

/// A memory report of libc10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Total bytes allocated.
    pub total_allocated: u64,
    /// Total bytes reserved.
    pub total_reserved: u64,
    /// Bytes of the report: negative for a free.
    pub size: i64,
    /// Type of the device; 1 is CUDA.
    pub device_type: i32,
    /// Index of the device.
    pub device_index: i32,
}

/// A communicator of NCCL's that a call made, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator {
    /// The communicator made (of `ncclCommInitAll`: the first one) or ended; 0 where the call made none.
    pub handle: u64,
    /// `ncclCommSplit`: the communicator that was split; else 0.
    pub parent: u64,
    /// First bytes of the unique id; zeros for calls that take none.
    pub id: [u8; 16],
    /// Ranks in it.
    pub ranks: i32,
    /// This one's rank.
    pub rank: i32,
    /// `ncclCommSplit`: the color; else 0.
    pub color: i32,
    /// `ncclCommSplit`: the key; else 0.
    pub key: i32,
}

/// A collective, a send, or a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collective {
    /// The communicator.
    pub communicator: u64,
    /// How many were issued on the communicator before.
    pub sequence: u64,
    /// Elements.
    pub count: u64,
    /// Ranks of the communicator.
    pub ranks: i32,
    /// This process's rank in it.
    pub rank: i32,
    /// NCCL's number of the type.
    pub data_type: i32,
    /// The peer or the root; -1 without one.
    pub peer: i32,
}

/// A graph: handles that the call does not have are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Graph {
    /// The graph.
    pub graph: u64,
    /// The executable graph.
    pub exec: u64,
    /// Pieces of work in it; only the driver's calls say so, where they succeeded.
    pub pieces: i32,
}

/// A function that was looked up; the call's text is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// The handle found (`CUfunction` or `CUkernel`), 0 if none was.
    pub handle: u64,
    /// Where it was looked up: module, library, or, for `cuKernelGetFunction`, kernel.
    pub owner: u64,
}

/// A module or library that was loaded; the call's text is the path, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// The handle made, 0 if none was.
    pub handle: u64,
    /// Address of the image, or of the path.
    pub image: u64,
}

/// What a call was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Memory was reported.
    Report(Report),
    /// A communicator was made or ended.
    Communicator(Communicator),
    /// Ranks talked.
    Collective(Collective),
    /// Something was done with a graph.
    Graph(Graph),
    /// A function was looked up.
    Function(Function),
    /// Code was loaded.
    Module(Module),
}

impl Detail {
    /// From a record of the log; `None` for kinds that are not known.
    pub(super) fn decode(raw: &[u8]) -> Option<Detail> {
        let value = |n: usize| u64_at(raw, 8 * n);
        let number = |n: usize| u32_at(raw, 48 + 4 * n).cast_signed();
        Some(match raw[47] {
            1 => Detail::Report(Report {
                total_allocated: value(0),
                total_reserved: value(1),
                size: value(2).cast_signed(),
                device_type: number(0),
                device_index: number(1),
            }),
            2 => {
                let mut id = [0; 16];
                id.copy_from_slice(&raw[16..32]);
                let (handle, parent) = (value(0), value(1));
                let (ranks, rank, color, key) = (number(0), number(1), number(2), number(3));
                Detail::Communicator(Communicator { handle, parent, id, ranks, rank, color, key })
            }
            3 => Detail::Collective(Collective {
                communicator: value(0),
                sequence: value(1),
                count: value(2),
                ranks: number(0),
                rank: number(1),
                data_type: number(2),
                peer: number(3),
            }),
            4 => Detail::Graph(Graph { graph: value(0), exec: value(1), pieces: number(0) }),
            5 => Detail::Function(Function { handle: value(0), owner: value(1) }),
            6 => Detail::Module(Module { handle: value(0), image: value(1) }),
            _ => return None,
        })
    }
}
