// SPDX-License-Identifier: Apache-2.0
//! How a traced function's arguments are read, packed into the 64-bit cookie of its probe.
//!
//! One BPF program serves all functions; the differences are in the cookie, so that the hot path needs no table lookup. `bpf/cookie.h` in gpuwhy-capture is the other half of this contract.
//!
//! Argument positions are logical slots, counted from 1: slot 9 of `cuLaunchKernel` is on the stack on
//! x86-64 and would be on aarch64, too; the BPF side knows where the architecture keeps a slot. A small
//! struct passed by value (`dim3`) fills as many slots as it takes registers.

/// Which way a copy goes. The values are CUDA's own (`cudaMemcpyKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// Host to host.
    HtoH = 0,
    /// Host to device.
    HtoD = 1,
    /// Device to host.
    DtoH = 2,
    /// Device to device, peers included.
    DtoD = 3,
    /// The driver decides from the pointers (`cudaMemcpyDefault`); the call itself does not say.
    Default = 4,
}

/// How a communicator is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NewCommunicator {
    /// `(comm *out, int ranks, ncclUniqueId id, int rank, …)`: the id is passed by value, 128 bytes.
    InitRank = 0,
    /// `(comm *out, int ranks, int rank, int ids, ncclUniqueId *id, …)`.
    Scalable = 1,
    /// `(comm, int color, int key, comm *out, …)`.
    Split = 2,
    /// `(comm *out, int devices, …)`: one for each device, all in this process.
    All = 3,
}

/// What to read from a call: where its size, handle, pointer, direction and stream are.
///
/// Numbers are argument slots (see the module's head) unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decode {
    /// Nothing but the time, the thread and the return code.
    Plain,
    /// `bytes` requested; the new pointer or handle is written to `*out` by the time the call returns.
    Alloc {
        /// Slot of the size.
        bytes: u8,
        /// Slot of the pointer to the result.
        out: u8,
    },
    /// Memory that exists already and is registered: pointer and size are both arguments.
    AllocAt {
        /// Slot of the size.
        bytes: u8,
        /// Slot of the pointer.
        ptr: u8,
    },
    /// `(out, &pitch, width, height)`: the size is the pitch the call chose, times the height.
    AllocPitch,
    /// `(cudaPitchedPtr *out, cudaExtent extent)`: pitch times height times depth.
    Alloc3D,
    /// A new object whose size the call does not contain (arrays).
    AllocOpaque {
        /// Slot of the pointer to the result.
        out: u8,
    },
    /// As `Alloc`, but the result is a handle of its own kind, not an address (`cuMemCreate`).
    AllocHandle {
        /// Slot of the size.
        bytes: u8,
        /// Slot of the pointer to the result.
        out: u8,
    },
    /// Frees memory; the size is that of the pointer's allocation.
    Free {
        /// Slot of the pointer.
        ptr: u8,
    },
    /// As `Free`, for objects of [`Decode::AllocHandle`] or [`Decode::AllocOpaque`].
    FreeHandle {
        /// Slot of the handle.
        handle: u8,
    },
    /// A range of addresses: pointer and size are both arguments; nothing is stored for later calls.
    Range {
        /// Slot of the pointer.
        ptr: u8,
        /// Slot of the size.
        bytes: u8,
    },
    /// Copies `bytes` in the direction that the function's name implies.
    Copy {
        /// Slot of the size.
        bytes: u8,
        /// The direction.
        direction: Direction,
    },
    /// Copies `bytes` in the direction given by an argument of type `cudaMemcpyKind`.
    CopyKind {
        /// Slot of the size.
        bytes: u8,
        /// Slot of the direction.
        kind: u8,
    },
    /// Copies `width × height` bytes (neighbouring slots) in the direction given by an argument.
    Copy2D {
        /// Slot of the width in bytes; the height follows it.
        width: u8,
        /// Slot of the direction.
        kind: u8,
    },
    /// `cudaMemcpy3DParms *`, or `cudaMemcpy3DPeerParms *`, in slot 1.
    Copy3DRuntime {
        /// Whether it is the struct for peers.
        peer: bool,
    },
    /// `CUDA_MEMCPY2D *` in slot 1.
    Copy2DDriver,
    /// `CUDA_MEMCPY3D *` or `CUDA_MEMCPY3D_PEER *` in slot 1 (they agree up to the extent).
    Copy3DDriver,
    /// Fills `count` elements of `2^shift` bytes with a value.
    Fill {
        /// Slot of the number of elements.
        count: u8,
        /// Slot of the value.
        value: u8,
        /// log2 of the element's size in bytes.
        shift: u8,
    },
    /// Fills `width × height` elements (neighbouring slots).
    Fill2D {
        /// Slot of the width in elements; the height follows it.
        width: u8,
        /// Slot of the value.
        value: u8,
        /// log2 of the element's size in bytes.
        shift: u8,
    },
    /// `(cudaPitchedPtr, int value, cudaExtent)`, structs by value.
    Fill3D,
    /// `(f, gx, gy, gz, …)`: the driver's launches.
    Launch,
    /// `(func, dim3 grid, …)`: the runtime's launches, dim3 by value.
    LaunchDim3,
    /// `(const config *, f, …)`: grid and stream are in the struct.
    LaunchConfig,
    /// A call about one handle (an event, a graph, a context), kept as arg0.
    Handle {
        /// Slot of the handle.
        handle: u8,
    },
    /// A call about two handles: the first is created or updated from the second.
    Handles {
        /// Slot of the handle.
        handle: u8,
        /// Slot of the one it is made from.
        from: u8,
    },
    /// A new handle, written to `*out`, made from another.
    NewHandle {
        /// Slot of the pointer to the result.
        out: u8,
        /// Slot of the one it is made from.
        from: u8,
    },
    /// As `NewHandle`, looked up by a name, which is also stored.
    Named {
        /// Slot of the pointer to the result.
        out: u8,
        /// Slot of the one it is in.
        from: u8,
        /// Slot of the name, a C string; 0 if the name is that of the source handle.
        name: u8,
    },
    /// Sends or reduces `count` elements; their type is in the slot after the count.
    Transfer {
        /// Slot of the number of elements.
        count: u8,
        /// Slot of the other rank, or of the root; 0 without one.
        peer: u8,
        /// Slot of the communicator.
        communicator: u8,
    },
    /// A new communicator.
    Communicator(NewCommunicator),
    /// Ends a communicator, in slot 1.
    EndCommunicator,
    /// Makes a device current for the calling thread (`cudaSetDevice`).
    SetDevice {
        /// Slot of the device ordinal.
        device: u8,
    },
    /// `(CUcontext *out, CUdevice dev)` and similar: shows which device a context belongs to.
    NewContext {
        /// Slot of the pointer to the new context.
        out: u8,
        /// Slot of the device ordinal.
        device: u8,
        /// Whether the new context becomes current (cuCtxCreate) or not (cuDevicePrimaryCtxRetain).
        current: bool,
    },
    /// Makes a context current (`cuCtxSetCurrent`, `cuCtxPushCurrent`).
    SetContext {
        /// Whether the context before it comes back with the next pop.
        push: bool,
    },
    /// `cuCtxPopCurrent`.
    PopContext,
    /// `cuCtxDestroy`: the context that is current afterwards is unknown.
    DropContext,
    /// A kernel event or a library's report, not a call: the meaning of `arg0` and `arg1`.
    Report {
        /// Meaning of `arg0`; `bytes` means a size.
        arg0: &'static str,
        /// Meaning of `arg1`.
        arg1: &'static str,
    },
}

/// Slot number that says "the stream is in the launch configuration struct".
const STREAM_IN_CONFIG: u8 = 15;

impl Decode {
    /// Whether `arg0` is a number of bytes.
    pub fn arg0_is_bytes(self) -> bool {
        if let Self::Report { arg0, .. } = self {
            return arg0 == "bytes";
        }
        !matches!(
            self,
            Self::Plain
                | Self::AllocOpaque { .. }
                | Self::Launch
                | Self::LaunchDim3
                | Self::LaunchConfig
                | Self::Handle { .. }
                | Self::Handles { .. }
                | Self::NewHandle { .. }
                | Self::Named { .. }
                | Self::Communicator(_)
                | Self::EndCommunicator
                | Self::SetDevice { .. }
                | Self::NewContext { .. }
                | Self::SetContext { .. }
                | Self::PopContext
                | Self::DropContext
        )
    }

    /// What `arg0` and `arg1` mean for a function read this way; empty when unused (NULL).
    pub fn meaning(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain | Self::PopContext => ("", ""),
            Self::Alloc { .. } | Self::AllocHandle { .. } | Self::AllocPitch | Self::Alloc3D => {
                ("bytes", "new pointer or handle")
            }
            Self::AllocAt { .. } | Self::Range { .. } => ("bytes", "pointer"),
            Self::AllocOpaque { .. } => ("", "new handle"),
            Self::Free { .. } | Self::FreeHandle { .. } => {
                ("bytes freed (NULL: allocated before the trace, or an array)", "pointer or handle")
            }
            Self::Copy { .. }
            | Self::CopyKind { .. }
            | Self::Copy2D { .. }
            | Self::Copy3DRuntime { .. }
            | Self::Copy2DDriver
            | Self::Copy3DDriver => ("bytes", "direction (0 HtoH, 1 HtoD, 2 DtoH, 3 DtoD, 4 default)"),
            Self::Fill { .. } | Self::Fill2D { .. } | Self::Fill3D => ("bytes", "value"),
            Self::Launch | Self::LaunchDim3 | Self::LaunchConfig => {
                ("function (a launch seen at the driver: its handle there)", "blocks in the grid")
            }
            Self::Handle { .. } => ("handle", ""),
            Self::EndCommunicator => ("communicator", ""),
            Self::Handles { .. } => ("made from", "handle"),
            Self::NewHandle { .. } | Self::Named { .. } => ("made from", "new handle"),
            Self::Transfer { .. } => ("bytes", "communicator"),
            Self::Communicator(_) => ("", "new communicator (of several: NULL)"),
            Self::SetDevice { .. } => ("device", ""),
            Self::NewContext { .. } => ("device", "context"),
            Self::SetContext { .. } | Self::DropContext => ("context", ""),
            Self::Report { arg0, arg1 } => (arg0, arg1),
        }
    }

    /// The cookie: everything the BPF program must know about the function.
    ///
    /// `twin` is the op to report instead when the runtime library made the call (launches are seen at
    /// the driver only).
    pub fn cookie(self, op: u16, stream: Option<u8>, twin: Option<u16>, runtime: bool) -> u64 {
        let (shape, a, b, extra) = self.fields();
        let stream = match self {
            Self::LaunchConfig => STREAM_IN_CONFIG,
            _ => stream.unwrap_or(0),
        };
        u64::from(op & 0x3ff)
            | u64::from(shape & 0x3f) << 10
            | u64::from(a & 0xf) << 16
            | u64::from(b & 0xf) << 20
            | u64::from(stream & 0xf) << 24
            | u64::from(extra & 0xf) << 28
            | u64::from(twin.unwrap_or(0x3ff) & 0x3ff) << 32
            | u64::from(runtime) << 42
    }

    /// `(shape, a, b, extra)` as `bpf/cookie.h` numbers them.
    fn fields(self) -> (u8, u8, u8, u8) {
        match self {
            Self::Plain | Self::Report { .. } => (0, 0, 0, 0),
            Self::Alloc { bytes, out } => (1, bytes, out, 0),
            Self::AllocAt { bytes, ptr } => (2, bytes, ptr, 0),
            Self::AllocPitch => (3, 0, 0, 0),
            Self::Alloc3D => (4, 0, 0, 0),
            Self::AllocHandle { bytes, out } => (1, bytes, out, 1),
            Self::AllocOpaque { out } => (5, 0, out, 1),
            Self::Free { ptr } => (6, ptr, 0, 0),
            Self::FreeHandle { handle } => (6, handle, 0, 1),
            Self::Range { ptr, bytes } => (7, bytes, ptr, 0),
            Self::Copy { bytes, direction } => (8, bytes, 0, direction as u8),
            Self::CopyKind { bytes, kind } => (9, bytes, kind, 0),
            Self::Copy2D { width, kind } => (10, width, kind, 0),
            Self::Copy3DRuntime { peer } => (11, 0, 0, peer as u8),
            Self::Copy2DDriver => (12, 0, 0, 0),
            Self::Copy3DDriver => (13, 0, 0, 0),
            Self::Fill { count, value, shift } => (14, count, value, shift),
            Self::Fill2D { width, value, shift } => (15, width, value, shift),
            Self::Fill3D => (16, 0, 0, 0),
            Self::Launch => (17, 0, 0, 0),
            Self::LaunchDim3 => (18, 0, 0, 0),
            Self::LaunchConfig => (19, 0, 0, 0),
            Self::Handle { handle } => (20, handle, 0, 0),
            Self::SetDevice { device } => (21, device, 0, 0),
            Self::NewContext { out, device, current } => (22, device, out, current as u8),
            Self::SetContext { push } => (23, 1, 0, push as u8),
            Self::PopContext => (24, 0, 0, 0),
            Self::DropContext => (25, 1, 0, 0),
            Self::Handles { handle, from } => (26, from, handle, 0),
            Self::NewHandle { out, from } => (27, from, out, 0),
            Self::Named { out, from, name } => (28, from, out, name),
            Self::Transfer { count, peer, communicator } => (29, count, communicator, peer),
            Self::Communicator(how) => (30, 0, 0, how as u8),
            Self::EndCommunicator => (20, 1, 0, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_keeps_its_fields_apart() {
        let c = Decode::CopyKind { bytes: 3, kind: 4 }.cookie(0x155, Some(5), Some(0x2aa), true);
        assert_eq!(c & 0x3ff, 0x155);
        assert_eq!(c >> 10 & 0x3f, 9);
        assert_eq!(c >> 16 & 0xf, 3);
        assert_eq!(c >> 20 & 0xf, 4);
        assert_eq!(c >> 24 & 0xf, 5);
        assert_eq!(c >> 32 & 0x3ff, 0x2aa);
        assert_eq!(c >> 42, 1);
    }

    #[test]
    fn a_missing_twin_is_all_ones() {
        let c = Decode::Plain.cookie(1, None, None, false);
        assert_eq!(c >> 32 & 0x3ff, 0x3ff);
    }
}
