// SPDX-License-Identifier: Apache-2.0
// Driver API: allocation.
#include "driver_internal.h"

#define PITCH_ALIGN 512u

static CUresult alloc(SimCall *call, CUdeviceptr *ptr, size_t bytes, unsigned memory)
{
    int device = sim_current_device();
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t address;
    if (memory == MEM_DEVICE)
        device_work_on_cpu(sim_config.alloc_ns);
    CUresult result = memory_alloc(device, bytes, memory, &address);
    if (result == CUDA_SUCCESS) {
        *ptr = address;
        call->pointer = address;
    }
    return result;
}

static CUresult alloc_host(SimCall *call, void **ptr, size_t bytes, unsigned memory)
{
    if (sim_current_device() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = memory_alloc_host(bytes, memory, ptr);
    if (result == CUDA_SUCCESS)
        call->pointer = (uintptr_t)*ptr;
    return result;
}

API(CUresult, cuMemAlloc_v2, (CUdeviceptr *ptr, size_t bytes))
{
    BEGIN(cuMemAlloc_v2, .bytes = bytes);
    END(alloc(&call, ptr, bytes, MEM_DEVICE));
}

API(CUresult, cuMemAllocPitch_v2,
    (CUdeviceptr *ptr, size_t *pitch, size_t width_bytes, size_t height,
     unsigned int element_bytes))
{
    (void)element_bytes;
    size_t row = (width_bytes + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN;
    BEGIN(cuMemAllocPitch_v2, .bytes = row * height);
    *pitch = row;
    END(alloc(&call, ptr, row * height, MEM_DEVICE));
}

API(CUresult, cuMemAllocManaged, (CUdeviceptr *ptr, size_t bytes, unsigned int flags))
{
    (void)flags;
    BEGIN(cuMemAllocManaged, .bytes = bytes);
    void *host;
    CUresult result = alloc_host(&call, &host, bytes, MEM_MANAGED);
    if (result == CUDA_SUCCESS)
        *ptr = (uintptr_t)host;
    END(result);
}

API(CUresult, cuMemAllocHost_v2, (void **ptr, size_t bytes))
{
    BEGIN(cuMemAllocHost_v2, .bytes = bytes);
    END(alloc_host(&call, ptr, bytes, MEM_HOST));
}

API(CUresult, cuMemHostAlloc, (void **ptr, size_t bytes, unsigned int flags))
{
    (void)flags;
    BEGIN(cuMemHostAlloc, .bytes = bytes);
    END(alloc_host(&call, ptr, bytes, MEM_HOST));
}

API(CUresult, cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned int flags))
{
    (void)flags;
    BEGIN(cuMemHostRegister_v2, .bytes = bytes, .pointer = (uintptr_t)ptr);
    END(memory_register(ptr, bytes));
}

API(CUresult, cuMemHostUnregister, (void *ptr))
{
    BEGIN(cuMemHostUnregister, .pointer = (uintptr_t)ptr);
    END(memory_unregister(ptr));
}

// A slow free is also one that waits for the device, as the real one does.
static void take_time_to_free(void)
{
    int device = sim_current_device();
    if (!sim_config.alloc_ns || device < 0)
        return;
    device_synchronize(device);
    device_work_on_cpu(sim_config.alloc_ns);
}

API(CUresult, cuMemFree_v2, (CUdeviceptr ptr))
{
    BEGIN(cuMemFree_v2, .pointer = ptr);
    if (ptr)
        take_time_to_free();
    END(ptr ? memory_free(ptr) : CUDA_SUCCESS);
}

API(CUresult, cuMemFreeHost, (void *ptr))
{
    BEGIN(cuMemFreeHost, .pointer = (uintptr_t)ptr);
    END(memory_free_host((uintptr_t)ptr, MEM_HOST));
}

// Stream-ordered allocation takes and gives back memory at the time of the
// call, as a pool that never trims would; the stream is only checked.
static CUresult alloc_async(SimCall *call, CUdeviceptr *ptr, size_t bytes, CUstream handle,
                            bool per_thread)
{
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? alloc(call, ptr, bytes, MEM_ASYNC) : result;
}

static CUresult free_async(CUdeviceptr ptr, CUstream handle, bool per_thread)
{
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? memory_free(ptr) : result;
}

API(CUresult, cuMemAllocAsync, (CUdeviceptr *ptr, size_t bytes, CUstream stream))
{
    BEGIN(cuMemAllocAsync, .bytes = bytes, .stream = (uintptr_t)stream);
    END(alloc_async(&call, ptr, bytes, stream, false));
}

API(CUresult, cuMemAllocAsync_ptsz, (CUdeviceptr *ptr, size_t bytes, CUstream stream))
{
    BEGIN(cuMemAllocAsync_ptsz, .bytes = bytes, .stream = (uintptr_t)stream);
    END(alloc_async(&call, ptr, bytes, stream, true));
}

API(CUresult, cuMemAllocFromPoolAsync,
    (CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream))
{
    (void)pool;
    BEGIN(cuMemAllocFromPoolAsync, .bytes = bytes, .stream = (uintptr_t)stream);
    END(alloc_async(&call, ptr, bytes, stream, false));
}

API(CUresult, cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream))
{
    BEGIN(cuMemFreeAsync, .pointer = ptr, .stream = (uintptr_t)stream);
    END(free_async(ptr, stream, false));
}

API(CUresult, cuMemFreeAsync_ptsz, (CUdeviceptr ptr, CUstream stream))
{
    BEGIN(cuMemFreeAsync_ptsz, .pointer = ptr, .stream = (uintptr_t)stream);
    END(free_async(ptr, stream, true));
}

API(CUresult, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))
{
    QUERY_BEGIN();
    int index = sim_current_device();
    if (index < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    SimDevice *device = &sim_devices[index];
    pthread_mutex_lock(&device->lock);
    *free_bytes = device->free_bytes;
    pthread_mutex_unlock(&device->lock);
    *total_bytes = sim_config.memory;
    return CUDA_SUCCESS;
}

API(CUresult, cuMemAddressReserve,
    (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr address,
     unsigned long long flags))
{
    (void)alignment, (void)address, (void)flags;
    BEGIN(cuMemAddressReserve, .bytes = size);
    uint64_t reserved = 0;
    CUresult result = memory_reserve(size, &reserved);
    if (result == CUDA_SUCCESS)
        *ptr = call.pointer = reserved;
    END(result);
}

API(CUresult, cuMemAddressFree, (CUdeviceptr ptr, size_t size))
{
    BEGIN(cuMemAddressFree, .pointer = ptr, .bytes = size);
    END(memory_unreserve(ptr, size));
}

API(CUresult, cuMemCreate,
    (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
     unsigned long long flags))
{
    (void)flags;
    BEGIN(cuMemCreate, .bytes = size);
    int device = prop->location.id;
    if (device < 0 || device >= sim_config.devices)
        END(CUDA_ERROR_INVALID_DEVICE);
    uint64_t made = 0;
    CUresult result = memory_alloc(device, size, MEM_PHYSICAL, &made);
    if (result == CUDA_SUCCESS)
        *handle = call.pointer = made;
    END(result);
}

API(CUresult, cuMemRelease, (CUmemGenericAllocationHandle handle))
{
    BEGIN(cuMemRelease, .pointer = handle);
    END(memory_is_device(handle) ? memory_free(handle) : CUDA_ERROR_INVALID_VALUE);
}

API(CUresult, cuMemMap,
    (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
     unsigned long long flags))
{
    (void)offset, (void)flags;
    BEGIN(cuMemMap, .pointer = ptr, .bytes = size);
    END(memory_map(ptr, size, handle));
}

API(CUresult, cuMemUnmap, (CUdeviceptr ptr, size_t size))
{
    BEGIN(cuMemUnmap, .pointer = ptr, .bytes = size);
    END(memory_unmap(ptr, size));
}

API(CUresult, cuMemSetAccess,
    (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))
{
    BEGIN(cuMemSetAccess, .pointer = ptr, .bytes = size);
    END(desc && count && memory_is_device(ptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
