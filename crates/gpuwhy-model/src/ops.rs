// SPDX-License-Identifier: Apache-2.0
//! The op table: one row for each traced function. It drives attaching, decoding, naming and the docs;
//! tracing another function is adding a row.
//!
//! A row names the exact symbol. The *op* is the short name people say: the symbol without `_v2`,
//! `_ptsz` and the like, and with `Synchronize` said as `Sync` (`cudaStreamSynchronize_ptsz` →
//! `cudaStreamSync`). Filters take either.
//!
//! Left out on purpose: `cudaGetDevice`, `cudaGetLastError`, `cudaEventQuery` and their kind. PyTorch
//! calls them hundreds of times a step, and each would pay for a trap without telling anything.

mod kernel;

pub use kernel::{KernelOp, kernel_op};

use crate::decode::{Decode, Direction};
use Decode::*;
use Direction::*;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Which library a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Library {
    /// The CUDA runtime, `libcudart.so*`: what programs and frameworks call.
    Runtime,
    /// The CUDA driver, `libcuda.so*`: what the runtime, cuBLAS, Triton and JAX call.
    Driver,
    /// No library: the Linux kernel itself tells.
    Kernel,
}

impl Library {
    /// The file name begins with this, up to `.so`.
    pub fn stem(self) -> &'static str {
        match self {
            Self::Runtime => "libcudart",
            Self::Driver => "libcuda",
            Self::Kernel => "vmlinux",
        }
    }

    /// `runtime`, `driver` or `kernel`, as in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Driver => "driver",
            Self::Kernel => "kernel",
        }
    }

    /// Which traced library a file is, judged by its name (`libcuda.so.580.159.04`).
    pub fn of_file(name: &str) -> Option<Self> {
        let (stem, rest) = name.split_once(".so")?;
        if !(rest.is_empty() || rest.starts_with('.')) {
            return None;
        }
        // Wheels rename vendored libraries: libcudart-d0da41ae.so.11.0.
        let stem = stem.split_once('-').map_or(stem, |(s, _)| s);
        [Self::Runtime, Self::Driver].into_iter().find(|lib| lib.stem() == stem)
    }
}

/// What kind of thing a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Takes memory.
    Alloc,
    /// Gives memory back.
    Free,
    /// Gives memory that exists an address, or takes the address away: no memory comes or goes.
    Map,
    /// Starts GPU work.
    Launch,
    /// Copies memory.
    Copy,
    /// Fills memory.
    Fill,
    /// Waits for the GPU.
    Sync,
    /// Orders streams without waiting on the CPU.
    Order,
    /// Chooses the device or context.
    Device,
    /// A thread off the CPU, or woken.
    Sched,
    /// A process that came, changed or went.
    Process,
    /// The machine's memory, not the GPU's.
    HostMemory,
    /// Disk or network.
    Io,
}

impl Class {
    /// The name in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Map => "map",
            Self::Launch => "launch",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Sync => "sync",
            Self::Order => "order",
            Self::Device => "device",
            Self::Sched => "sched",
            Self::Process => "process",
            Self::HostMemory => "host_memory",
            Self::Io => "io",
        }
    }
}

/// A function's position in [`table`]. Valid within one gpuwhy; the run file stores names beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u16);

impl OpId {
    /// The function's row. An id from a newer or foreign source that has no row gives `None`.
    pub fn get(self) -> Option<&'static Op> {
        table().get(usize::from(self.0))
    }

    /// Whether it is a CUDA function, not something the kernel tells.
    pub fn is_cuda(self) -> bool {
        self.0 < kernel_op(KernelOp::SchedSwitch).0
    }
}

/// One traced function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Its position.
    pub id: OpId,
    /// Its library.
    pub library: Library,
    /// The exact symbol.
    pub function: String,
    /// The short name.
    pub name: String,
    /// What it does.
    pub class: Class,
    /// How its arguments are read.
    pub decode: Decode,
    /// Slot of the stream argument.
    stream: Option<u8>,
    /// For a driver's launch: the runtime function a program called when libcudart made the call.
    pub runtime_twin: Option<OpId>,
    /// Runtime launches are seen at the driver; they get probes of their own only when every layer is wanted.
    pub seen_at_driver: bool,
}

impl Op {
    /// The cookie that tells the BPF program how to read this function.
    pub fn cookie(&self) -> u64 {
        let twin = self.runtime_twin.map(|t| t.0);
        self.decode.cookie(self.id.0, self.stream, twin, self.library == Library::Runtime)
    }

    /// Whether the function takes a stream.
    pub fn has_stream(&self) -> bool {
        self.stream.is_some() || self.decode == LaunchConfig
    }
}

/// One line of the tables below, before variants are spelled out.
struct Row {
    symbol: &'static str,
    decode: Decode,
    stream: Option<u8>,
    ptsz: bool,
}

/// A function without a stream.
const fn f(symbol: &'static str, decode: Decode) -> Row {
    Row { symbol, decode, stream: None, ptsz: false }
}

/// A function whose stream is in the given slot, and its `_ptsz` variant (per-thread default stream).
const fn s(symbol: &'static str, decode: Decode, stream: u8) -> Row {
    Row { symbol, decode, stream: Some(stream), ptsz: true }
}

/// A function without a stream argument that has a `_ptds` variant, because it uses the default stream.
const fn d(symbol: &'static str, decode: Decode) -> Row {
    Row { symbol, decode, stream: None, ptsz: true }
}

const fn copy(bytes: u8, direction: Direction) -> Decode {
    Copy { bytes, direction }
}

const fn kind(bytes: u8, kind: u8) -> Decode {
    CopyKind { bytes, kind }
}

const fn fill(count: u8, value: u8, shift: u8) -> Decode {
    Fill { count, value, shift }
}

const fn fill2d(width: u8, value: u8, shift: u8) -> Decode {
    Fill2D { width, value, shift }
}

const fn alloc(bytes: u8, out: u8) -> Decode {
    Alloc { bytes, out }
}

const RUNTIME: &[(Class, &[Row])] = &[
    (
        Class::Alloc,
        &[
            f("cudaMalloc", alloc(2, 1)),
            s("cudaMallocAsync", alloc(2, 1), 3),
            s("cudaMallocFromPoolAsync", alloc(2, 1), 4),
            f("cudaMallocManaged", alloc(2, 1)),
            f("cudaMallocPitch", AllocPitch),
            f("cudaMalloc3D", Alloc3D),
            f("cudaMallocArray", AllocOpaque { out: 1 }),
            f("cudaMalloc3DArray", AllocOpaque { out: 1 }),
            f("cudaMallocMipmappedArray", AllocOpaque { out: 1 }),
            f("cudaMallocHost", alloc(2, 1)),
            f("cudaHostAlloc", alloc(2, 1)),
            f("cudaHostRegister", AllocAt { bytes: 2, ptr: 1 }),
        ],
    ),
    (
        Class::Free,
        &[
            f("cudaFree", Free { ptr: 1 }),
            s("cudaFreeAsync", Free { ptr: 1 }, 2),
            f("cudaFreeHost", Free { ptr: 1 }),
            f("cudaHostUnregister", Free { ptr: 1 }),
            f("cudaFreeArray", FreeHandle { handle: 1 }),
            f("cudaFreeMipmappedArray", FreeHandle { handle: 1 }),
        ],
    ),
    (
        Class::Launch,
        &[
            s("cudaLaunchKernel", LaunchDim3, 8),
            s("cudaLaunchKernelExC", LaunchConfig, 0),
            s("cudaLaunchCooperativeKernel", LaunchDim3, 8),
            f("cudaLaunchCooperativeKernelMultiDevice", Plain),
            s("cudaGraphLaunch", Handle { handle: 1 }, 2),
        ],
    ),
    (
        Class::Copy,
        &[
            d("cudaMemcpy", kind(3, 4)),
            s("cudaMemcpyAsync", kind(3, 4), 5),
            d("cudaMemcpy2D", Copy2D { width: 5, kind: 7 }),
            s("cudaMemcpy2DAsync", Copy2D { width: 5, kind: 7 }, 8),
            d("cudaMemcpy2DToArray", Copy2D { width: 6, kind: 8 }),
            s("cudaMemcpy2DToArrayAsync", Copy2D { width: 6, kind: 8 }, 9),
            d("cudaMemcpy2DFromArray", Copy2D { width: 6, kind: 8 }),
            s("cudaMemcpy2DFromArrayAsync", Copy2D { width: 6, kind: 8 }, 9),
            d("cudaMemcpy3D", Copy3DRuntime { peer: false }),
            s("cudaMemcpy3DAsync", Copy3DRuntime { peer: false }, 2),
            f("cudaMemcpyPeer", copy(5, DtoD)),
            s("cudaMemcpyPeerAsync", copy(5, DtoD), 6),
            d("cudaMemcpy3DPeer", Copy3DRuntime { peer: true }),
            s("cudaMemcpy3DPeerAsync", Copy3DRuntime { peer: true }, 2),
            d("cudaMemcpyToSymbol", kind(3, 5)),
            s("cudaMemcpyToSymbolAsync", kind(3, 5), 6),
            d("cudaMemcpyFromSymbol", kind(3, 5)),
            s("cudaMemcpyFromSymbolAsync", kind(3, 5), 6),
            d("cudaMemcpyToArray", kind(5, 6)),
            s("cudaMemcpyToArrayAsync", kind(5, 6), 7),
            d("cudaMemcpyFromArray", kind(5, 6)),
            s("cudaMemcpyFromArrayAsync", kind(5, 6), 7),
            d("cudaMemcpyArrayToArray", kind(7, 8)),
            d("cudaMemcpy2DArrayToArray", Copy2D { width: 7, kind: 9 }),
            // Their sizes are arrays, and their signature changed with CUDA 13: only that they were called.
            f("cudaMemcpyBatchAsync", Plain),
            f("cudaMemcpyBatchAsync_ptsz", Plain),
            f("cudaMemcpy3DBatchAsync", Plain),
            f("cudaMemcpy3DBatchAsync_ptsz", Plain),
        ],
    ),
    (
        Class::Fill,
        &[
            d("cudaMemset", fill(3, 2, 0)),
            s("cudaMemsetAsync", fill(3, 2, 0), 4),
            d("cudaMemset2D", fill2d(4, 3, 0)),
            s("cudaMemset2DAsync", fill2d(4, 3, 0), 6),
            d("cudaMemset3D", Fill3D),
            s("cudaMemset3DAsync", Fill3D, 2),
        ],
    ),
    (
        Class::Sync,
        &[
            s("cudaStreamSynchronize", Handle { handle: 1 }, 1),
            f("cudaDeviceSynchronize", Plain),
            f("cudaThreadSynchronize", Plain),
            f("cudaEventSynchronize", Handle { handle: 1 }),
        ],
    ),
    (
        Class::Order,
        &[
            s("cudaStreamWaitEvent", Handle { handle: 2 }, 1),
            s("cudaEventRecord", Handle { handle: 1 }, 2),
            s("cudaEventRecordWithFlags", Handle { handle: 1 }, 2),
        ],
    ),
    (Class::Device, &[f("cudaSetDevice", SetDevice { device: 1 })]),
];

const DRIVER: &[(Class, &[Row])] = &[
    (
        Class::Alloc,
        &[
            f("cuMemAlloc_v2", alloc(2, 1)),
            f("cuMemAllocManaged", alloc(2, 1)),
            f("cuMemAllocPitch_v2", AllocPitch),
            s("cuMemAllocAsync", alloc(2, 1), 3),
            s("cuMemAllocFromPoolAsync", alloc(2, 1), 4),
            f("cuMemAllocHost_v2", alloc(2, 1)),
            f("cuMemHostAlloc", alloc(2, 1)),
            f("cuMemHostRegister_v2", AllocAt { bytes: 2, ptr: 1 }),
            f("cuArrayCreate_v2", AllocOpaque { out: 1 }),
            f("cuArray3DCreate_v2", AllocOpaque { out: 1 }),
            f("cuMipmappedArrayCreate", AllocOpaque { out: 1 }),
            f("cuMemCreate", AllocHandle { bytes: 2, out: 1 }),
        ],
    ),
    (
        Class::Free,
        &[
            f("cuMemFree_v2", Free { ptr: 1 }),
            s("cuMemFreeAsync", Free { ptr: 1 }, 2),
            f("cuMemFreeHost", Free { ptr: 1 }),
            f("cuMemHostUnregister", Free { ptr: 1 }),
            f("cuArrayDestroy", FreeHandle { handle: 1 }),
            f("cuMipmappedArrayDestroy", FreeHandle { handle: 1 }),
            f("cuMemRelease", FreeHandle { handle: 1 }),
        ],
    ),
    (Class::Map, &[f("cuMemMap", Range { ptr: 1, bytes: 2 }), f("cuMemUnmap", Range { ptr: 1, bytes: 2 })]),
    (
        Class::Launch,
        &[
            s("cuLaunchKernel", Launch, 9),
            s("cuLaunchKernelEx", LaunchConfig, 0),
            s("cuLaunchCooperativeKernel", Launch, 9),
            f("cuLaunchCooperativeKernelMultiDevice", Plain),
            s("cuGraphLaunch", Handle { handle: 1 }, 2),
        ],
    ),
    (
        Class::Copy,
        &[
            d("cuMemcpy", copy(3, Default)),
            s("cuMemcpyAsync", copy(3, Default), 4),
            d("cuMemcpyHtoD_v2", copy(3, HtoD)),
            s("cuMemcpyHtoDAsync_v2", copy(3, HtoD), 4),
            d("cuMemcpyDtoH_v2", copy(3, DtoH)),
            s("cuMemcpyDtoHAsync_v2", copy(3, DtoH), 4),
            d("cuMemcpyDtoD_v2", copy(3, DtoD)),
            s("cuMemcpyDtoDAsync_v2", copy(3, DtoD), 4),
            d("cuMemcpyPeer", copy(5, DtoD)),
            s("cuMemcpyPeerAsync", copy(5, DtoD), 6),
            d("cuMemcpyHtoA_v2", copy(4, HtoD)),
            s("cuMemcpyHtoAAsync_v2", copy(4, HtoD), 5),
            d("cuMemcpyAtoH_v2", copy(4, DtoH)),
            s("cuMemcpyAtoHAsync_v2", copy(4, DtoH), 5),
            d("cuMemcpyDtoA_v2", copy(4, DtoD)),
            d("cuMemcpyAtoD_v2", copy(4, DtoD)),
            d("cuMemcpyAtoA_v2", copy(5, DtoD)),
            d("cuMemcpy2D_v2", Copy2DDriver),
            d("cuMemcpy2DUnaligned_v2", Copy2DDriver),
            s("cuMemcpy2DAsync_v2", Copy2DDriver, 2),
            d("cuMemcpy3D_v2", Copy3DDriver),
            s("cuMemcpy3DAsync_v2", Copy3DDriver, 2),
            d("cuMemcpy3DPeer", Copy3DDriver),
            s("cuMemcpy3DPeerAsync", Copy3DDriver, 2),
            f("cuMemcpyBatchAsync", Plain),
            f("cuMemcpyBatchAsync_ptsz", Plain),
            f("cuMemcpyBatchAsync_v2", Plain),
            f("cuMemcpyBatchAsync_v2_ptsz", Plain),
            f("cuMemcpy3DBatchAsync", Plain),
            f("cuMemcpy3DBatchAsync_ptsz", Plain),
            f("cuMemcpy3DBatchAsync_v2", Plain),
            f("cuMemcpy3DBatchAsync_v2_ptsz", Plain),
        ],
    ),
    (
        Class::Fill,
        &[
            d("cuMemsetD8_v2", fill(3, 2, 0)),
            s("cuMemsetD8Async", fill(3, 2, 0), 4),
            d("cuMemsetD16_v2", fill(3, 2, 1)),
            s("cuMemsetD16Async", fill(3, 2, 1), 4),
            d("cuMemsetD32_v2", fill(3, 2, 2)),
            s("cuMemsetD32Async", fill(3, 2, 2), 4),
            d("cuMemsetD2D8_v2", fill2d(4, 3, 0)),
            s("cuMemsetD2D8Async", fill2d(4, 3, 0), 6),
            d("cuMemsetD2D16_v2", fill2d(4, 3, 1)),
            s("cuMemsetD2D16Async", fill2d(4, 3, 1), 6),
            d("cuMemsetD2D32_v2", fill2d(4, 3, 2)),
            s("cuMemsetD2D32Async", fill2d(4, 3, 2), 6),
        ],
    ),
    (
        Class::Sync,
        &[
            s("cuStreamSynchronize", Handle { handle: 1 }, 1),
            f("cuCtxSynchronize", Plain),
            f("cuCtxSynchronize_v2", Plain),
            f("cuEventSynchronize", Handle { handle: 1 }),
        ],
    ),
    (
        Class::Order,
        &[
            s("cuStreamWaitEvent", Handle { handle: 2 }, 1),
            s("cuEventRecord", Handle { handle: 1 }, 2),
            s("cuEventRecordWithFlags", Handle { handle: 1 }, 2),
        ],
    ),
    (
        Class::Device,
        &[
            f("cuDevicePrimaryCtxRetain", NewContext { out: 1, device: 2, current: false }),
            f("cuCtxCreate_v2", NewContext { out: 1, device: 3, current: true }),
            f("cuCtxCreate_v3", NewContext { out: 1, device: 5, current: true }),
            f("cuCtxCreate_v4", NewContext { out: 1, device: 4, current: true }),
            f("cuCtxSetCurrent", SetContext { push: false }),
            f("cuCtxPushCurrent_v2", SetContext { push: true }),
            f("cuCtxPopCurrent_v2", PopContext),
            f("cuCtxDestroy_v2", DropContext),
        ],
    ),
];

/// Driver launches and the runtime functions that make them.
const TWINS: &[(&str, &str)] = &[
    ("cuLaunchKernel", "cudaLaunchKernel"),
    ("cuLaunchKernelEx", "cudaLaunchKernelExC"),
    ("cuLaunchCooperativeKernel", "cudaLaunchCooperativeKernel"),
    ("cuLaunchCooperativeKernelMultiDevice", "cudaLaunchCooperativeKernelMultiDevice"),
    ("cuGraphLaunch", "cudaGraphLaunch"),
];

/// The short name of a symbol: what people say.
pub fn short_name(symbol: &str) -> String {
    let mut name = symbol;
    loop {
        let stripped = ["_ptsz", "_ptds", "_v2", "_v3", "_v4"].iter().find_map(|end| name.strip_suffix(end));
        match stripped {
            Some(shorter) => name = shorter,
            None => break name.replace("Synchronize", "Sync"),
        }
    }
}

fn build() -> Vec<Op> {
    let mut ops = Vec::new();
    for (library, groups) in [(Library::Runtime, RUNTIME), (Library::Driver, DRIVER), (Library::Kernel, kernel::ROWS)] {
        for (class, rows) in groups {
            for row in *rows {
                let variant = if row.stream.is_some() { "_ptsz" } else { "_ptds" };
                let suffixes: &[&str] = if row.ptsz { &["", variant] } else { &[""] };
                for suffix in suffixes {
                    let function = format!("{}{suffix}", row.symbol);
                    ops.push(Op {
                        id: OpId(ops.len() as u16),
                        library,
                        name: short_name(&function),
                        seen_at_driver: library == Library::Runtime && *class == Class::Launch,
                        function,
                        class: *class,
                        decode: row.decode,
                        stream: row.stream.filter(|slot| *slot > 0),
                        runtime_twin: None,
                    });
                }
            }
        }
    }
    for (driver, runtime) in TWINS {
        for suffix in ["", "_ptsz"] {
            let twin = ops.iter().find(|op| op.function == format!("{runtime}{suffix}")).map(|op| op.id);
            if let Some(op) = ops.iter_mut().find(|op| op.function == format!("{driver}{suffix}")) {
                op.runtime_twin = twin;
            }
        }
    }
    ops
}

/// Every traced function, in order of [`OpId`].
pub fn table() -> &'static [Op] {
    static TABLE: LazyLock<Vec<Op>> = LazyLock::new(build);
    &TABLE
}

/// The row of an exact symbol.
pub fn by_function(symbol: &str) -> Option<&'static Op> {
    static INDEX: LazyLock<HashMap<&'static str, OpId>> =
        LazyLock::new(|| table().iter().map(|op| (op.function.as_str(), op.id)).collect());
    INDEX.get(symbol).and_then(|id| id.get())
}

/// The op table as the Markdown table in docs/run-file.md.
pub fn markdown() -> String {
    let mut out = String::from("| op | class | functions | arg0 | arg1 |\n|---|---|---|---|---|\n");
    let mut seen: Vec<&str> = Vec::new();
    for op in table() {
        if seen.contains(&op.name.as_str()) {
            continue;
        }
        seen.push(&op.name);
        let functions: Vec<String> =
            table().iter().filter(|o| o.name == op.name).map(|o| format!("`{}`", o.function)).collect();
        let (arg0, arg1) = op.decode.meaning();
        out += &format!("| `{}` | {} | {} | {arg0} | {arg1} |\n", op.name, op.class.name(), functions.join(" "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn symbols_are_unique_and_ids_are_positions() {
        let mut seen = HashSet::new();
        for (i, op) in table().iter().enumerate() {
            assert_eq!(usize::from(op.id.0), i);
            assert!(seen.insert(&op.function), "{} stands twice", op.function);
            assert!(i < 512, "the kernel counts loss for 512 ops, and the cookie holds ten bits of op");
        }
    }

    #[test]
    fn functions_that_share_an_op_mean_the_same_by_their_arguments() {
        for a in table() {
            for b in table().iter().filter(|b| b.name == a.name) {
                assert_eq!(a.decode.meaning(), b.decode.meaning(), "{} and {}", a.function, b.function);
                assert_eq!(a.class, b.class);
            }
        }
    }

    #[test]
    fn short_names_are_what_people_say() {
        for (symbol, name) in [
            ("cudaStreamSynchronize_ptsz", "cudaStreamSync"),
            ("cudaDeviceSynchronize", "cudaDeviceSync"),
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cudaMalloc", "cudaMalloc"),
        ] {
            assert_eq!(short_name(symbol), name);
        }
    }

    #[test]
    fn every_driver_launch_knows_its_runtime_twin() {
        for op in table().iter().filter(|op| op.class == Class::Launch) {
            match op.library {
                Library::Driver => assert!(op.runtime_twin.and_then(OpId::get).unwrap().seen_at_driver),
                Library::Runtime => assert!(op.seen_at_driver),
                Library::Kernel => panic!("the kernel launches nothing"),
            }
        }
    }

    #[test]
    fn libraries_are_known_by_file_name() {
        for (file, lib) in [
            ("libcudart.so.13", Some(Library::Runtime)),
            ("libcudart.so", Some(Library::Runtime)),
            ("libcudart-d0da41ae.so.11.0", Some(Library::Runtime)),
            ("libcuda.so.580.159.04", Some(Library::Driver)),
            ("libcuda.so.1", Some(Library::Driver)),
            ("libcudadebugger.so.1", None),
            ("libcudnn.so.9", None),
            ("libcuda.sorry", None),
        ] {
            assert_eq!(Library::of_file(file), lib, "{file}");
        }
    }

    /// The document's table is this table: set UPDATE_DOCS=1 to write it anew.
    #[test]
    fn the_run_file_document_lists_every_op() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/run-file.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- ops:begin -->\n", "<!-- ops:end -->");
        let (head, rest) = text.split_once(begin).unwrap();
        let (table, tail) = rest.split_once(end).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{head}{begin}{}{end}{tail}", markdown())).unwrap();
            return;
        }
        assert_eq!(table, markdown(), "docs/run-file.md is behind the op table: run with UPDATE_DOCS=1");
    }
}
