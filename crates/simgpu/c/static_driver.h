// SPDX-License-Identifier: Apache-2.0
// For a runtime that is linked into a program: the driver's functions are
// reached through a table, which the first call fills from libcuda.so.1, as in
// the real static runtime. Macros do it, so that the program has no symbol with
// the name of a driver function.
#ifndef SIMGPU_STATIC_DRIVER_H
#define SIMGPU_STATIC_DRIVER_H

#include "cuda_driver.h"
#include "simgpu.h"

typedef struct StaticDriver {
#define FN(name) __typeof__(&name) name;
#include "static_driver.def"
#undef FN
} StaticDriver;

// Loads the driver if need be; a program without one ends here.
const StaticDriver *static_driver(void);

#ifndef SIMGPU_STATIC_TABLE
#define cuCtxGetCurrent (static_driver()->cuCtxGetCurrent)
#define cuCtxSetCurrent (static_driver()->cuCtxSetCurrent)
#define cuCtxSynchronize (static_driver()->cuCtxSynchronize)
#define cuDeviceGetCount (static_driver()->cuDeviceGetCount)
#define cuDevicePrimaryCtxRetain (static_driver()->cuDevicePrimaryCtxRetain)
#define cuEventCreate (static_driver()->cuEventCreate)
#define cuEventDestroy_v2 (static_driver()->cuEventDestroy_v2)
#define cuEventElapsedTime (static_driver()->cuEventElapsedTime)
#define cuEventQuery (static_driver()->cuEventQuery)
#define cuEventRecord (static_driver()->cuEventRecord)
#define cuEventSynchronize (static_driver()->cuEventSynchronize)
#define cuGraphDestroy (static_driver()->cuGraphDestroy)
#define cuGraphExecDestroy (static_driver()->cuGraphExecDestroy)
#define cuGraphExecUpdate_v2 (static_driver()->cuGraphExecUpdate_v2)
#define cuGraphInstantiateWithFlags (static_driver()->cuGraphInstantiateWithFlags)
#define cuGraphInstantiateWithParams (static_driver()->cuGraphInstantiateWithParams)
#define cuGraphLaunch (static_driver()->cuGraphLaunch)
#define cuInit (static_driver()->cuInit)
#define cuKernelGetFunction (static_driver()->cuKernelGetFunction)
#define cuLaunchCooperativeKernel (static_driver()->cuLaunchCooperativeKernel)
#define cuLaunchKernel (static_driver()->cuLaunchKernel)
#define cuLaunchKernelEx (static_driver()->cuLaunchKernelEx)
#define cuLaunchKernel_ptsz (static_driver()->cuLaunchKernel_ptsz)
#define cuLibraryGetKernel (static_driver()->cuLibraryGetKernel)
#define cuLibraryLoadData (static_driver()->cuLibraryLoadData)
#define cuMemAllocAsync (static_driver()->cuMemAllocAsync)
#define cuMemAllocAsync_ptsz (static_driver()->cuMemAllocAsync_ptsz)
#define cuMemAllocFromPoolAsync (static_driver()->cuMemAllocFromPoolAsync)
#define cuMemAllocHost_v2 (static_driver()->cuMemAllocHost_v2)
#define cuMemAllocManaged (static_driver()->cuMemAllocManaged)
#define cuMemAllocPitch_v2 (static_driver()->cuMemAllocPitch_v2)
#define cuMemAlloc_v2 (static_driver()->cuMemAlloc_v2)
#define cuMemFreeAsync (static_driver()->cuMemFreeAsync)
#define cuMemFreeAsync_ptsz (static_driver()->cuMemFreeAsync_ptsz)
#define cuMemFreeHost (static_driver()->cuMemFreeHost)
#define cuMemFree_v2 (static_driver()->cuMemFree_v2)
#define cuMemGetInfo_v2 (static_driver()->cuMemGetInfo_v2)
#define cuMemHostAlloc (static_driver()->cuMemHostAlloc)
#define cuMemHostRegister_v2 (static_driver()->cuMemHostRegister_v2)
#define cuMemHostUnregister (static_driver()->cuMemHostUnregister)
#define cuMemcpy (static_driver()->cuMemcpy)
#define cuMemcpy2DAsync_v2 (static_driver()->cuMemcpy2DAsync_v2)
#define cuMemcpy2D_v2 (static_driver()->cuMemcpy2D_v2)
#define cuMemcpy3DAsync_v2 (static_driver()->cuMemcpy3DAsync_v2)
#define cuMemcpy3D_v2 (static_driver()->cuMemcpy3D_v2)
#define cuMemcpyAsync (static_driver()->cuMemcpyAsync)
#define cuMemcpyAsync_ptsz (static_driver()->cuMemcpyAsync_ptsz)
#define cuMemcpyDtoDAsync_v2 (static_driver()->cuMemcpyDtoDAsync_v2)
#define cuMemcpyDtoD_v2 (static_driver()->cuMemcpyDtoD_v2)
#define cuMemcpyDtoHAsync_v2 (static_driver()->cuMemcpyDtoHAsync_v2)
#define cuMemcpyDtoH_v2 (static_driver()->cuMemcpyDtoH_v2)
#define cuMemcpyHtoDAsync_v2 (static_driver()->cuMemcpyHtoDAsync_v2)
#define cuMemcpyHtoD_v2 (static_driver()->cuMemcpyHtoD_v2)
#define cuMemcpyPeer (static_driver()->cuMemcpyPeer)
#define cuMemcpyPeerAsync (static_driver()->cuMemcpyPeerAsync)
#define cuMemsetD2D8Async (static_driver()->cuMemsetD2D8Async)
#define cuMemsetD2D8_v2 (static_driver()->cuMemsetD2D8_v2)
#define cuMemsetD8Async (static_driver()->cuMemsetD8Async)
#define cuMemsetD8_v2 (static_driver()->cuMemsetD8_v2)
#define cuStreamBeginCapture_v2 (static_driver()->cuStreamBeginCapture_v2)
#define cuStreamCreate (static_driver()->cuStreamCreate)
#define cuStreamDestroy_v2 (static_driver()->cuStreamDestroy_v2)
#define cuStreamEndCapture (static_driver()->cuStreamEndCapture)
#define cuStreamIsCapturing (static_driver()->cuStreamIsCapturing)
#define cuStreamSynchronize (static_driver()->cuStreamSynchronize)
#define cuStreamSynchronize_ptsz (static_driver()->cuStreamSynchronize_ptsz)
#define cuStreamWaitEvent (static_driver()->cuStreamWaitEvent)
#define simgpu_enter (static_driver()->simgpu_enter)
#define simgpu_leave (static_driver()->simgpu_leave)
#define simgpu_kernel (static_driver()->simgpu_kernel)
#define simgpu_kernel_name (static_driver()->simgpu_kernel_name)
#endif

#endif
