// SPDX-License-Identifier: Apache-2.0
// simjob --tour: one successful outermost call, or more, of every function of
// the driver and runtime APIs, and of NCCL and c10 from beside libcudart.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "c10.h"
#include "nccl.h"
#include "simjob.h"

#define MIB ((size_t)1 << 20)

typedef struct Tour {
    void *cuda, *nccl, *c10;
    Result *result;
    cudaStream_t stream;
    cudaEvent_t event;
    void *kernel;
    void *device; // a MiB of device memory
    char host[4096];
} Tour;

static void check(Tour *tour, const char *name, int error)
{
    tour->result->calls++;
    if (error)
        die("%s failed with error %d", name, error);
}

// QUERY calls a function that the log leaves out.
#define CALL(name, ...) check(tour, #name, (int)FROM(tour->cuda, name)(__VA_ARGS__))
#define NCCL(name, ...) check(tour, #name, FROM(tour->nccl, name)(__VA_ARGS__))
#define QUERY(name, ...) (void)FROM(tour->cuda, name)(__VA_ARGS__)

static void tour_contexts(Tour *tour)
{
    CUdevice device;
    CUcontext primary, other;
    int count;
    CALL(cuInit, 0);
    QUERY(cuDeviceGet, &device, 0);
    QUERY(cuDeviceGetCount, &count);
    CALL(cuDevicePrimaryCtxRetain, &primary, device);
    CALL(cuCtxCreate_v2, &other, 0, device);
    CALL(cuCtxPushCurrent_v2, primary);
    CALL(cuCtxPopCurrent_v2, &primary);
    CALL(cuCtxDestroy_v2, other);
    CALL(cuCtxSetCurrent, primary);
    QUERY(cuCtxGetCurrent, &other);
    QUERY(cuCtxGetDevice, &device);
    CALL(cuDevicePrimaryCtxRelease_v2, device);
    CALL(cudaSetDevice, 0);
    QUERY(cudaGetDevice, &count);
    QUERY(cudaGetDeviceCount, &count);
}

static void tour_modules(Tour *tour)
{
    const char *file = "/proc/self/exe"; // any file will do
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CALL(cuModuleLoad, &module, file);
    CALL(cuModuleUnload, module);
    CALL(cuModuleLoadDataEx, &module, tour->host, 0, NULL, NULL);
    CALL(cuModuleUnload, module);
    CALL(cuModuleLoadFatBinary, &module, tour->host);
    CALL(cuModuleUnload, module);
    CALL(cuModuleLoadData, &module, tour->host);
    CALL(cuModuleGetFunction, &function, module, "simjob_tour_function");
    CALL(cuModuleUnload, module);
    CALL(cuLibraryLoadFromFile, &library, file, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryUnload, library);
    CALL(cuLibraryLoadData, &library, tour->host, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernel, &kernel, library, "simjob_tour_kernel");
    CALL(cuKernelGetFunction, &function, kernel);
    CALL(cuLibraryUnload, library);
}

static void tour_driver_memory(Tour *tour)
{
    CUdeviceptr ptr;
    size_t pitch;
    void *host;
    CALL(cuMemAlloc_v2, &ptr, MIB);
    CALL(cuMemFree_v2, ptr);
    CALL(cuMemAllocPitch_v2, &ptr, &pitch, 1000, 10, 4);
    CALL(cuMemFree_v2, ptr);
    CALL(cuMemAllocManaged, &ptr, MIB, 1);
    CALL(cuMemFree_v2, ptr);
    CALL(cuMemAllocHost_v2, &host, 4096);
    CALL(cuMemFreeHost, host);
    CALL(cuMemHostAlloc, &host, 4096, 0);
    CALL(cuMemFreeHost, host);
    CALL(cuMemHostRegister_v2, tour->host, sizeof tour->host, 0);
    CALL(cuMemHostUnregister, tour->host);
    CALL(cuMemAllocAsync, &ptr, MIB, tour->stream);
    CALL(cuMemFreeAsync, ptr, tour->stream);
    CALL(cuMemAllocAsync_ptsz, &ptr, MIB, NULL);
    CALL(cuMemFreeAsync_ptsz, ptr, NULL);
    CALL(cuMemAllocFromPoolAsync, &ptr, MIB, NULL, tour->stream);
    CALL(cuMemFreeAsync, ptr, tour->stream);
}

static void tour_virtual_memory(Tour *tour)
{
    CUdeviceptr ptr;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
    CUmemAccessDesc access = {{1, 0}, 3};
    CALL(cuMemAddressReserve, &ptr, 4 * MIB, 0, 0, 0);
    CALL(cuMemCreate, &handle, 2 * MIB, &prop, 0);
    CALL(cuMemMap, ptr, 2 * MIB, 0, handle, 0);
    CALL(cuMemSetAccess, ptr, 2 * MIB, &access, 1);
    CALL(cuMemUnmap, ptr, 2 * MIB);
    CALL(cuMemRelease, handle);
    CALL(cuMemAddressFree, ptr, 4 * MIB);
}

static void tour_runtime_memory(Tour *tour)
{
    void *ptr;
    size_t pitch;
    struct cudaPitchedPtr pitched;
    struct cudaExtent extent = {100, 10, 2};
    CALL(cudaFree, NULL);
    CALL(cudaMalloc, &tour->device, MIB);
    CALL(cudaMallocAsync, &ptr, MIB, tour->stream);
    CALL(cudaFreeAsync, ptr, tour->stream);
    CALL(cudaMallocAsync_ptsz, &ptr, MIB, NULL);
    CALL(cudaFreeAsync_ptsz, ptr, NULL);
    CALL(cudaMallocFromPoolAsync, &ptr, MIB, NULL, tour->stream);
    CALL(cudaFreeAsync, ptr, tour->stream);
    CALL(cudaMallocManaged, &ptr, MIB, 1);
    CALL(cudaFree, ptr);
    CALL(cudaMallocPitch, &ptr, &pitch, 1000, 10);
    CALL(cudaMemset2D, ptr, pitch, 0, 1000, 10);
    CALL(cudaMemset2DAsync, ptr, pitch, 0, 1000, 10, tour->stream);
    CALL(cudaFree, ptr);
    CALL(cudaMalloc3D, &pitched, extent);
    CALL(cudaMemset3D, pitched, 0, extent);
    CALL(cudaFree, pitched.ptr);
    CALL(cudaMallocHost, &ptr, 4096);
    CALL(cudaFreeHost, ptr);
    CALL(cudaHostAlloc, &ptr, 4096, 0);
    CALL(cudaFreeHost, ptr);
    CALL(cudaHostRegister, tour->host, sizeof tour->host, 0);
    CALL(cudaHostUnregister, tour->host);
}

static void tour_driver_copies(Tour *tour)
{
    CUdeviceptr device = (uintptr_t)tour->device, host = (uintptr_t)tour->host;
    cudaStream_t stream = tour->stream;
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = tour->host,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = device,
                          .WidthInBytes = 64, .Height = 4};
    CUDA_MEMCPY3D deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = device,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = tour->host,
                          .WidthInBytes = 64, .Height = 4, .Depth = 2};
    CALL(cuMemcpy, device, host, 256);
    CALL(cuMemcpyAsync, host, device, 256, stream);
    CALL(cuMemcpyAsync_ptsz, device, host, 256, NULL);
    CALL(cuMemcpyHtoD_v2, device, tour->host, 256);
    CALL(cuMemcpyHtoDAsync_v2, device, tour->host, 256, stream);
    CALL(cuMemcpyDtoH_v2, tour->host, device, 256);
    CALL(cuMemcpyDtoHAsync_v2, tour->host, device, 256, stream);
    CALL(cuMemcpyDtoD_v2, device, device + 4096, 256);
    CALL(cuMemcpyDtoDAsync_v2, device, device + 4096, 256, stream);
    CALL(cuMemcpyPeer, device, NULL, device + 4096, NULL, 256);
    CALL(cuMemcpyPeerAsync, device, NULL, device + 4096, NULL, 256, stream);
    CALL(cuMemcpy2D_v2, &flat);
    CALL(cuMemcpy2DAsync_v2, &flat, stream);
    CALL(cuMemcpy3D_v2, &deep);
    CALL(cuMemcpy3DAsync_v2, &deep, stream);
    CALL(cuMemsetD8_v2, device, 0, 256);
    CALL(cuMemsetD16_v2, device, 0, 256);
    CALL(cuMemsetD32_v2, device, 0, 256);
    CALL(cuMemsetD8Async, device, 0, 256, stream);
    CALL(cuMemsetD32Async, device, 0, 256, stream);
    CALL(cuMemsetD2D8_v2, device, 512, 0, 64, 4);
    CALL(cuMemsetD2D8Async, device, 512, 0, 64, 4, stream);
}

static void tour_runtime_copies(Tour *tour)
{
    char *device = tour->device, *host = tour->host;
    cudaStream_t stream = tour->stream;
    struct cudaMemcpy3DParms deep = {.srcPtr = {host, 64, 64, 4}, .dstPtr = {device, 64, 64, 4},
                                     .extent = {64, 4, 2}, .kind = cudaMemcpyHostToDevice};
    CALL(cudaMemcpy, device, host, 256, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy, host + 256, host, 256, cudaMemcpyDefault);
    CALL(cudaMemcpyAsync, host, device, 256, cudaMemcpyDeviceToHost, stream);
    CALL(cudaMemcpyAsync_ptsz, device, host, 256, cudaMemcpyHostToDevice, NULL);
    CALL(cudaMemcpy2D, device, 512, host, 64, 64, 4, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy2DAsync, host, 64, device, 512, 64, 4, cudaMemcpyDeviceToHost, stream);
    CALL(cudaMemcpy3D, &deep);
    CALL(cudaMemcpy3DAsync, &deep, stream);
    CALL(cudaMemcpyPeer, device, 0, device + 4096, 0, 256);
    CALL(cudaMemcpyPeerAsync, device, 0, device + 4096, 0, 256, stream);
    CALL(cudaMemset, device, 0, 256);
    CALL(cudaMemsetAsync, device, 0, 256, stream);
}

static void tour_launches(Tour *tour)
{
    dim3 one = {1, 1, 1};
    CUlaunchConfig driver = {1, 1, 1, 1, 1, 1, 0, tour->stream, NULL, 0};
    CUlaunchConfig driver_own = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    cudaLaunchConfig_t runtime = {one, one, 0, tour->stream, NULL, 0};
    CUfunction f = tour->kernel;
    CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, tour->stream, NULL, NULL);
    CALL(cuLaunchKernel_ptsz, f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    CALL(cuLaunchKernelEx, &driver, f, NULL, NULL);
    CALL(cuLaunchKernelEx_ptsz, &driver_own, f, NULL, NULL);
    CALL(cuLaunchCooperativeKernel, f, 1, 1, 1, 1, 1, 1, 0, tour->stream, NULL);
    CALL(cudaLaunchKernel, f, one, one, NULL, 0, tour->stream);
    CALL(cudaLaunchKernel_ptsz, f, one, one, NULL, 0, NULL);
    CALL(cudaLaunchKernelExC, &runtime, f, NULL);
    CALL(cudaLaunchCooperativeKernel, f, one, one, NULL, 0, tour->stream);
    CALL(cudaStreamSynchronize_ptsz, NULL);
    CALL(cuStreamSynchronize_ptsz, NULL);
}

static void tour_graphs(Tour *tour)
{
    dim3 one = {1, 1, 1};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int status;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    CUgraphExecUpdateResultInfo info;
    CALL(cudaStreamBeginCapture, tour->stream, 0);
    CALL(cudaStreamIsCapturing, tour->stream, &status);
    CALL(cuStreamIsCapturing, tour->stream, &status);
    CALL(cudaLaunchKernel, tour->kernel, one, one, NULL, 0, tour->stream);
    CALL(cudaStreamEndCapture, tour->stream, &graph);
    CALL(cudaGraphInstantiate, &exec, graph, 0);
    CALL(cudaGraphLaunch, exec, tour->stream);
    CALL(cudaGraphExecUpdate, exec, graph, &info);
    CALL(cuGraphExecUpdate_v2, exec, graph, &info);
    CALL(cudaGraphExecDestroy, exec);
    CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0);
    CALL(cudaGraphExecDestroy, exec);
    CALL(cudaGraphInstantiateWithParams, &exec, graph, &params);
    CALL(cudaGraphExecDestroy, exec);
    CALL(cuGraphInstantiateWithParams, &exec, graph, &params);
    CALL(cuGraphExecDestroy, exec);
    CALL(cudaGraphDestroy, graph);
    CALL(cuStreamBeginCapture_v2, tour->stream, 0);
    CALL(cudaLaunchKernel, tour->kernel, one, one, NULL, 0, tour->stream);
    CALL(cuStreamEndCapture, tour->stream, &graph);
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
    CALL(cuGraphLaunch, exec, tour->stream);
    CALL(cuGraphExecDestroy, exec);
    CALL(cuGraphDestroy, graph);
}

static void tour_streams(Tour *tour)
{
    CUstream stream;
    CUevent event;
    float ms;
    CALL(cuStreamCreate, &stream, 0);
    CALL(cuEventCreate, &event, 0);
    CALL(cuEventRecord, event, stream);
    CALL(cuStreamWaitEvent, tour->stream, event, 0);
    CALL(cudaStreamWaitEvent, stream, tour->event, 0);
    CALL(cuStreamSynchronize, stream);
    CALL(cudaStreamSynchronize, tour->stream);
    CALL(cuEventSynchronize, event);
    CALL(cudaEventSynchronize, tour->event);
    QUERY(cudaEventQuery, event);
    QUERY(cudaEventElapsedTime, &ms, event, event);
    CALL(cuEventDestroy_v2, event);
    CALL(cuStreamDestroy_v2, stream);
    CALL(cudaStreamCreateWithFlags, &stream, 1);
    CALL(cudaStreamDestroy, stream);
    CALL(cudaEventCreateWithFlags, &event, 2);
    CALL(cudaEventDestroy, event);
    CALL(cuCtxSynchronize, );
    CALL(cudaDeviceSynchronize, );
}

static void tour_nccl(Tour *tour)
{
    enum { FLOAT = 7 };
    ncclUniqueId id;
    ncclComm_t comm, other, part, scalable, all;
    void *device = tour->device;
    cudaStream_t stream = tour->stream;
    FROM(tour->nccl, ncclGetUniqueId)(&id);
    NCCL(ncclCommInitRank, &comm, 1, id, 0);
    NCCL(ncclCommInitRankConfig, &other, 1, id, 0, NULL);
    NCCL(ncclCommInitRankScalable, &scalable, 1, 0, 1, &id, NULL);
    NCCL(ncclCommInitAll, &all, 1, NULL);
    NCCL(ncclCommSplit, comm, 0, 0, &part, NULL);
    NCCL(ncclAllReduce, device, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclBroadcast, device, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclBcast, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclAlltoAll, device, device, 1000, FLOAT, comm, stream);
    NCCL(ncclReduce, device, device, 1000, FLOAT, 0, 0, comm, stream);
    NCCL(ncclAllGather, device, device, 1000, FLOAT, comm, stream);
    NCCL(ncclReduceScatter, device, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclGroupStart, );
    NCCL(ncclSend, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclRecv, device, 1000, FLOAT, 0, comm, stream);
    NCCL(ncclGroupEnd, );
    NCCL(ncclCommFinalize, scalable);
    NCCL(ncclCommDestroy, scalable);
    NCCL(ncclCommAbort, all);
    NCCL(ncclCommDestroy, part);
    NCCL(ncclCommDestroy, other);
    NCCL(ncclCommDestroy, comm);
}

// Fills the device through the caching allocator until it reports that memory
// is out, then empties it. How many calls that takes depends on the size of
// the memory, so they are not counted.
static void tour_c10(Tour *tour)
{
    int (*alloc)(size_t, int, void **) = resolve(tour->c10, "c10sim_alloc");
    int (*give_back)(void *) = resolve(tour->c10, "c10sim_free");
    int (*empty)(void) = resolve(tour->c10, "c10sim_empty_cache");
    enum { MAX = 4096 };
    void **made = calloc(MAX, sizeof *made);
    int count = 0;
    if (!made)
        die("no memory");
    while (count < MAX && alloc(count ? 512 * MIB : 1000, 0, &made[count]) == 0)
        count++;
    while (count > 0)
        if (give_back(made[--count]) != 0)
            die("c10sim_free failed");
    empty();
    free(made);
}

void run_tour(const Options *options, const Api *api, Result *result)
{
    Tour all = {.cuda = api->handle, .result = result};
    Tour *tour = &all;
    tour->nccl = open_beside(options->cudart[0], "libnccl.so.2");
    tour->c10 = open_beside(options->cudart[0], "libc10.so");
    result->start_ns = clock_ns(CLOCK_MONOTONIC);
    tour_contexts(tour);
    tour_modules(tour);
    tour->kernel = api->simgpuKernel("simjob_tour", 1000);
    CALL(cudaStreamCreate, &tour->stream);
    CALL(cudaEventCreate, &tour->event);
    CALL(cudaEventRecord, tour->event, tour->stream);
    tour_driver_memory(tour);
    tour_virtual_memory(tour);
    tour_runtime_memory(tour);
    tour_driver_copies(tour);
    tour_runtime_copies(tour);
    tour_launches(tour);
    tour_graphs(tour);
    tour_streams(tour);
    tour_nccl(tour);
    CALL(cudaFree, tour->device);
    tour_c10(tour);
    result->end_ns = clock_ns(CLOCK_MONOTONIC);
    result->wall_ns = result->end_ns - result->start_ns;
}
