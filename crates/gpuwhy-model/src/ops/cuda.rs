// SPDX-License-Identifier: Apache-2.0
//! CUDA's part of the op table: functions of the runtime and the driver.

use super::{Class, Row, f};
use crate::decode::Decode::{self, *};
use crate::decode::Direction::{self, *};

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

/// A handle made from another: `(new *out, old)`.
const MADE_FROM: Decode = NewHandle { out: 1, from: 2 };
/// A handle updated from another: `(handle, other)`.
const MADE_FROM_BOTH: Decode = Handles { handle: 1, from: 2 };
/// A function by its name: `(new *out, module, const char *name)`.
const NAMED: Decode = Named { out: 1, from: 2, name: 3 };

/// The same from a handle whose name is already known: `(new *out, old)`.
const NAMED_BEFORE: Decode = Named { out: 1, from: 2, name: 0 };

/// The runtime's functions.
pub(super) const RUNTIME: &[(Class, &[Row])] = &[
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
    (
        Class::Graph,
        &[
            s("cudaStreamBeginCapture", Plain, 1),
            s("cudaStreamBeginCaptureToGraph", Plain, 1),
            s("cudaStreamEndCapture", AllocOpaque { out: 2 }, 1),
            f("cudaGraphInstantiate", MADE_FROM),
            f("cudaGraphInstantiateWithFlags", MADE_FROM),
            s("cudaGraphInstantiateWithParams", MADE_FROM, 0),
            f("cudaGraphExecUpdate", MADE_FROM_BOTH),
            s("cudaGraphUpload", Handle { handle: 1 }, 2),
            f("cudaGraphExecDestroy", Handle { handle: 1 }),
            f("cudaGraphDestroy", Handle { handle: 1 }),
        ],
    ),
    (
        Class::Module,
        &[
            f("cudaLibraryLoadData", AllocOpaque { out: 1 }),
            f("cudaLibraryLoadFromFile", AllocOpaque { out: 1 }),
            f("cudaLibraryUnload", Handle { handle: 1 }),
        ],
    ),
    (Class::Device, &[f("cudaSetDevice", SetDevice { device: 1 })]),
];

/// The driver's functions.
pub(super) const DRIVER: &[(Class, &[Row])] = &[
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
        Class::Graph,
        &[
            s("cuStreamBeginCapture_v2", Plain, 1),
            s("cuStreamBeginCaptureToGraph", Plain, 1),
            s("cuStreamEndCapture", AllocOpaque { out: 2 }, 1),
            f("cuGraphInstantiate_v2", MADE_FROM),
            f("cuGraphInstantiateWithFlags", MADE_FROM),
            s("cuGraphInstantiateWithParams", MADE_FROM, 0),
            f("cuGraphExecUpdate", MADE_FROM_BOTH),
            f("cuGraphExecUpdate_v2", MADE_FROM_BOTH),
            s("cuGraphUpload", Handle { handle: 1 }, 2),
            f("cuGraphExecDestroy", Handle { handle: 1 }),
            f("cuGraphDestroy", Handle { handle: 1 }),
        ],
    ),
    (
        Class::Module,
        &[
            f("cuModuleLoad", AllocOpaque { out: 1 }),
            f("cuModuleLoadData", AllocOpaque { out: 1 }),
            f("cuModuleLoadDataEx", AllocOpaque { out: 1 }),
            f("cuModuleLoadFatBinary", AllocOpaque { out: 1 }),
            f("cuModuleUnload", Handle { handle: 1 }),
            f("cuLibraryLoadData", AllocOpaque { out: 1 }),
            f("cuLibraryLoadFromFile", AllocOpaque { out: 1 }),
            f("cuLibraryUnload", Handle { handle: 1 }),
            f("cuLibraryGetModule", MADE_FROM),
            f("cuModuleGetFunction", NAMED),
            f("cuLibraryGetKernel", NAMED),
            f("cuKernelGetFunction", NAMED_BEFORE),
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
pub(super) const TWINS: &[(&str, &str)] = &[
    ("cuLaunchKernel", "cudaLaunchKernel"),
    ("cuLaunchKernelEx", "cudaLaunchKernelExC"),
    ("cuLaunchCooperativeKernel", "cudaLaunchCooperativeKernel"),
    ("cuLaunchCooperativeKernelMultiDevice", "cudaLaunchCooperativeKernelMultiDevice"),
    ("cuGraphLaunch", "cudaGraphLaunch"),
];
