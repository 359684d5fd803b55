// SPDX-License-Identifier: Apache-2.0
// Runtime API: allocation.
#include "runtime_internal.h"

// Runs a driver allocation that stores to `device_ptr`, and hands the pointer
// on to the caller and the log.
#define END_ALLOC(out, driver_call)                               \
    do {                                                          \
        CUdeviceptr device_ptr = 0;                               \
        CUresult result_ = runtime_prepare();                     \
        if (result_ == CUDA_SUCCESS)                              \
            result_ = (driver_call);                              \
        if (result_ == CUDA_SUCCESS) {                            \
            *(out) = (void *)(uintptr_t)device_ptr;               \
            call.pointer = device_ptr;                            \
        }                                                         \
        END(result_);                                             \
    } while (0)

API(cudaError_t, cudaMalloc, (void **ptr, size_t bytes))
{
    BEGIN(cudaMalloc, .bytes = bytes);
    if (!bytes) {
        *ptr = NULL;
        END_WITH(CUDA_SUCCESS);
    }
    END_ALLOC(ptr, cuMemAlloc_v2(&device_ptr, bytes));
}

API(cudaError_t, cudaMallocAsync, (void **ptr, size_t bytes, cudaStream_t stream))
{
    BEGIN(cudaMallocAsync, .bytes = bytes, .stream = (uintptr_t)stream);
    END_ALLOC(ptr, cuMemAllocAsync(&device_ptr, bytes, stream));
}

API(cudaError_t, cudaMallocAsync_ptsz, (void **ptr, size_t bytes, cudaStream_t stream))
{
    BEGIN(cudaMallocAsync_ptsz, .bytes = bytes, .stream = (uintptr_t)stream);
    END_ALLOC(ptr, cuMemAllocAsync_ptsz(&device_ptr, bytes, stream));
}

API(cudaError_t, cudaMallocFromPoolAsync,
    (void **ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream))
{
    BEGIN(cudaMallocFromPoolAsync, .bytes = bytes, .stream = (uintptr_t)stream);
    END_ALLOC(ptr, cuMemAllocFromPoolAsync(&device_ptr, bytes, pool, stream));
}

API(cudaError_t, cudaMallocManaged, (void **ptr, size_t bytes, unsigned int flags))
{
    BEGIN(cudaMallocManaged, .bytes = bytes);
    END_ALLOC(ptr, cuMemAllocManaged(&device_ptr, bytes, flags));
}

// The bytes of a pitched allocation are those of its padded rows, which are
// known only once the driver has chosen the pitch.
API(cudaError_t, cudaMallocPitch, (void **ptr, size_t *pitch, size_t width, size_t height))
{
    BEGIN(cudaMallocPitch, .bytes = width * height);
    CUdeviceptr device_ptr = 0;
    CUresult result = runtime_prepare();
    if (result == CUDA_SUCCESS)
        result = cuMemAllocPitch_v2(&device_ptr, pitch, width, height, 4);
    if (result == CUDA_SUCCESS) {
        *ptr = (void *)(uintptr_t)device_ptr;
        call.pointer = device_ptr;
        call.bytes = *pitch * height;
    }
    END(result);
}

API(cudaError_t, cudaMalloc3D, (struct cudaPitchedPtr * ptr, struct cudaExtent extent))
{
    size_t rows = extent.height * extent.depth;
    BEGIN(cudaMalloc3D, .bytes = extent.width * rows);
    CUdeviceptr device_ptr = 0;
    size_t pitch = 0;
    CUresult result = runtime_prepare();
    if (result == CUDA_SUCCESS)
        result = cuMemAllocPitch_v2(&device_ptr, &pitch, extent.width, rows, 4);
    if (result == CUDA_SUCCESS) {
        *ptr = (struct cudaPitchedPtr){(void *)(uintptr_t)device_ptr, pitch, extent.width,
                                       extent.height};
        call.pointer = device_ptr;
        call.bytes = pitch * rows;
    }
    END(result);
}

static CUresult host_alloc(SimCall *call, void **ptr, size_t bytes, unsigned int flags)
{
    CUresult result = runtime_prepare();
    if (result == CUDA_SUCCESS)
        result = call->function == FN_cudaMallocHost ? cuMemAllocHost_v2(ptr, bytes)
                                                     : cuMemHostAlloc(ptr, bytes, flags);
    if (result == CUDA_SUCCESS)
        call->pointer = (uintptr_t)*ptr;
    return result;
}

API(cudaError_t, cudaMallocHost, (void **ptr, size_t bytes))
{
    BEGIN(cudaMallocHost, .bytes = bytes);
    END(host_alloc(&call, ptr, bytes, 0));
}

API(cudaError_t, cudaHostAlloc, (void **ptr, size_t bytes, unsigned int flags))
{
    BEGIN(cudaHostAlloc, .bytes = bytes);
    END(host_alloc(&call, ptr, bytes, flags));
}

API(cudaError_t, cudaHostRegister, (void *ptr, size_t bytes, unsigned int flags))
{
    BEGIN(cudaHostRegister, .bytes = bytes, .pointer = (uintptr_t)ptr);
    END_WITH(cuMemHostRegister_v2(ptr, bytes, flags));
}

API(cudaError_t, cudaHostUnregister, (void *ptr))
{
    BEGIN(cudaHostUnregister, .pointer = (uintptr_t)ptr);
    END_WITH(cuMemHostUnregister(ptr));
}

API(cudaError_t, cudaFree, (void *ptr))
{
    BEGIN(cudaFree, .pointer = (uintptr_t)ptr);
    // Programs call cudaFree(NULL) to create the context, and that is all it does.
    END_WITH(ptr ? cuMemFree_v2((uintptr_t)ptr) : CUDA_SUCCESS);
}

API(cudaError_t, cudaFreeAsync, (void *ptr, cudaStream_t stream))
{
    BEGIN(cudaFreeAsync, .pointer = (uintptr_t)ptr, .stream = (uintptr_t)stream);
    END_WITH(cuMemFreeAsync((uintptr_t)ptr, stream));
}

API(cudaError_t, cudaFreeAsync_ptsz, (void *ptr, cudaStream_t stream))
{
    BEGIN(cudaFreeAsync_ptsz, .pointer = (uintptr_t)ptr, .stream = (uintptr_t)stream);
    END_WITH(cuMemFreeAsync_ptsz((uintptr_t)ptr, stream));
}

API(cudaError_t, cudaFreeHost, (void *ptr))
{
    BEGIN(cudaFreeHost, .pointer = (uintptr_t)ptr);
    END_WITH(ptr ? cuMemFreeHost(ptr) : CUDA_SUCCESS);
}
