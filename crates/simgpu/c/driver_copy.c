// SPDX-License-Identifier: Apache-2.0
// Driver API: copies and memsets. Device memory is not backed, so copies take
// their time on an engine without moving bytes; copies within the host do
// move them. Copies of pageable memory are as asynchronous as those of
// page-locked memory, unless SIMGPU_PAGEABLE_GBPS asks for staging.
#include <string.h>

#include "driver_internal.h"

// How much the driver stages at once, and in how many buffers.
#define STAGED_BYTES ((size_t)1 << 20)
#define STAGES 2

// Pageable memory goes through the driver's own page-locked buffers, which the
// calling thread fills or empties at the speed of pageable memory. Towards the
// device it returns once the last piece is in a buffer, and must wait for one
// while the stream still has work; towards the host it returns when all is there.
static CUresult transfer_staged(unsigned direction, size_t bytes, SimStream *stream)
{
    uint64_t ends[STAGES] = {0};
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; bytes && result == CUDA_SUCCESS; i++) {
        size_t piece = bytes < STAGED_BYTES ? bytes : STAGED_BYTES;
        SimWork work = {direction, device_copy_ns(direction, piece), piece};
        uint64_t host_ns = (uint64_t)((double)piece * sim_config.pageable_ns_per_byte);
        uint64_t *end = &ends[i % STAGES];
        if (direction == SIM_H2D) {
            device_wait_until(*end);
            device_work_on_cpu(host_ns);
            result = stream_enqueue(stream, &work, end);
        } else {
            result = stream_enqueue(stream, &work, end);
            device_wait_until(*end);
            // The engine's time has passed by now; both together run at the given speed.
            device_work_on_cpu(host_ns > work.duration_ns ? host_ns - work.duration_ns : 0);
        }
        bytes -= piece;
    }
    return result;
}

static bool needs_staging(unsigned direction, uint64_t host, const SimStream *stream)
{
    return sim_config.pageable_ns_per_byte > 0 && (direction == SIM_H2D || direction == SIM_D2H) && host &&
           !stream->capture && !memory_is_pinned(host);
}

// Queues a transfer on the call's stream; a synchronous one waits for its end.
// `host` is the host address, or 0.
static CUresult transfer(SimCall *call, unsigned direction, uint64_t host, size_t bytes, CUstream handle,
                         bool per_thread, bool wait)
{
    call->direction = (uint8_t)direction;
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS || direction == SIM_H2H)
        return result;
    if (needs_staging(direction, host, stream))
        return transfer_staged(direction, bytes, stream);
    SimWork work = {direction, device_copy_ns(direction, bytes), bytes};
    uint64_t end;
    result = stream_enqueue(stream, &work, &end);
    if (result == CUDA_SUCCESS && wait)
        device_wait_until(end);
    return result;
}

static unsigned direction_between(bool dst_device, bool src_device)
{
    if (dst_device)
        return src_device ? SIM_D2D : SIM_H2D;
    return src_device ? SIM_D2H : SIM_H2H;
}

static uint64_t host_side(unsigned direction, CUdeviceptr dst, CUdeviceptr src)
{
    return direction == SIM_H2D ? src : dst;
}

static unsigned unified_direction(CUdeviceptr dst, CUdeviceptr src)
{
    return direction_between(memory_is_device(dst), memory_is_device(src));
}

static void copy_within_host(unsigned direction, CUdeviceptr dst, CUdeviceptr src,
                             size_t bytes)
{
    if (direction == SIM_H2H)
        memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
}

API(CUresult, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes))
{
    BEGIN(cuMemcpy, .bytes = bytes, .pointer = dst);
    unsigned direction = unified_direction(dst, src);
    copy_within_host(direction, dst, src, bytes);
    END(transfer(&call, direction, host_side(direction, dst, src), bytes, NULL, false, true));
}

API(CUresult, cuMemcpyAsync,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    BEGIN(cuMemcpyAsync, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    unsigned direction = unified_direction(dst, src);
    copy_within_host(direction, dst, src, bytes);
    END(transfer(&call, direction, host_side(direction, dst, src), bytes, stream, false, false));
}

API(CUresult, cuMemcpyAsync_ptsz,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    BEGIN(cuMemcpyAsync_ptsz, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    unsigned direction = unified_direction(dst, src);
    copy_within_host(direction, dst, src, bytes);
    END(transfer(&call, direction, host_side(direction, dst, src), bytes, stream, true, false));
}

API(CUresult, cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes))
{
    BEGIN(cuMemcpyHtoD_v2, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_H2D, (uintptr_t)src, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyHtoDAsync_v2,
    (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))
{
    BEGIN(cuMemcpyHtoDAsync_v2, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_H2D, (uintptr_t)src, bytes, stream, false, false));
}

API(CUresult, cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes))
{
    (void)src;
    BEGIN(cuMemcpyDtoH_v2, .bytes = bytes, .pointer = (uintptr_t)dst);
    END(transfer(&call, SIM_D2H, (uintptr_t)dst, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyDtoHAsync_v2,
    (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    (void)src;
    BEGIN(cuMemcpyDtoHAsync_v2, .bytes = bytes, .pointer = (uintptr_t)dst,
          .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2H, (uintptr_t)dst, bytes, stream, false, false));
}

API(CUresult, cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes))
{
    (void)src;
    BEGIN(cuMemcpyDtoD_v2, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_D2D, 0, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyDtoDAsync_v2,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    (void)src;
    BEGIN(cuMemcpyDtoDAsync_v2, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2D, 0, bytes, stream, false, false));
}

API(CUresult, cuMemcpyPeer,
    (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes))
{
    (void)dst_ctx, (void)src, (void)src_ctx;
    BEGIN(cuMemcpyPeer, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_D2D, 0, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyPeerAsync,
    (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes,
     CUstream stream))
{
    (void)dst_ctx, (void)src, (void)src_ctx;
    BEGIN(cuMemcpyPeerAsync, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2D, 0, bytes, stream, false, false));
}

static bool side_is_device(CUmemorytype type, CUdeviceptr device)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
           (type == CU_MEMORYTYPE_UNIFIED && memory_is_device(device));
}

static unsigned direction_2d(const CUDA_MEMCPY2D *copy)
{
    return direction_between(side_is_device(copy->dstMemoryType, copy->dstDevice),
                             side_is_device(copy->srcMemoryType, copy->srcDevice));
}

static unsigned direction_3d(const CUDA_MEMCPY3D *copy)
{
    return direction_between(side_is_device(copy->dstMemoryType, copy->dstDevice),
                             side_is_device(copy->srcMemoryType, copy->srcDevice));
}

static uint64_t host_2d(const CUDA_MEMCPY2D *copy)
{
    return (uintptr_t)(direction_2d(copy) == SIM_H2D ? copy->srcHost : copy->dstHost);
}

API(CUresult, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy))
{
    BEGIN(cuMemcpy2D_v2, .bytes = copy->WidthInBytes * copy->Height);
    END(transfer(&call, direction_2d(copy), host_2d(copy), call.bytes, NULL, false, true));
}

API(CUresult, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))
{
    BEGIN(cuMemcpy2DAsync_v2, .bytes = copy->WidthInBytes * copy->Height,
          .stream = (uintptr_t)stream);
    END(transfer(&call, direction_2d(copy), host_2d(copy), call.bytes, stream, false, false));
}

static uint64_t host_3d(const CUDA_MEMCPY3D *copy)
{
    return (uintptr_t)(direction_3d(copy) == SIM_H2D ? copy->srcHost : copy->dstHost);
}

API(CUresult, cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy))
{
    BEGIN(cuMemcpy3D_v2, .bytes = copy->WidthInBytes * copy->Height * copy->Depth);
    END(transfer(&call, direction_3d(copy), host_3d(copy), call.bytes, NULL, false, true));
}

API(CUresult, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream))
{
    BEGIN(cuMemcpy3DAsync_v2, .bytes = copy->WidthInBytes * copy->Height * copy->Depth,
          .stream = (uintptr_t)stream);
    END(transfer(&call, direction_3d(copy), host_3d(copy), call.bytes, stream, false, false));
}

// Memsets run at the speed of copies within the device, and no memset waits:
// for device memory the real ones do not wait either.
static CUresult fill(SimCall *call, CUstream stream)
{
    CUresult result = transfer(call, SIM_D2D, 0, call->bytes, stream, false, false);
    call->direction = 0;
    return result;
}

API(CUresult, cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t count))
{
    (void)value;
    BEGIN(cuMemsetD8_v2, .bytes = count, .pointer = dst);
    END(fill(&call, NULL));
}

API(CUresult, cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, size_t count))
{
    (void)value;
    BEGIN(cuMemsetD16_v2, .bytes = count * 2, .pointer = dst);
    END(fill(&call, NULL));
}

API(CUresult, cuMemsetD32_v2, (CUdeviceptr dst, unsigned int value, size_t count))
{
    (void)value;
    BEGIN(cuMemsetD32_v2, .bytes = count * 4, .pointer = dst);
    END(fill(&call, NULL));
}

API(CUresult, cuMemsetD8Async,
    (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))
{
    (void)value;
    BEGIN(cuMemsetD8Async, .bytes = count, .pointer = dst, .stream = (uintptr_t)stream);
    END(fill(&call, stream));
}

API(CUresult, cuMemsetD32Async,
    (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream))
{
    (void)value;
    BEGIN(cuMemsetD32Async, .bytes = count * 4, .pointer = dst, .stream = (uintptr_t)stream);
    END(fill(&call, stream));
}

API(CUresult, cuMemsetD2D8_v2,
    (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height))
{
    (void)pitch, (void)value;
    BEGIN(cuMemsetD2D8_v2, .bytes = width * height, .pointer = dst);
    END(fill(&call, NULL));
}

API(CUresult, cuMemsetD2D8Async,
    (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
     CUstream stream))
{
    (void)pitch, (void)value;
    BEGIN(cuMemsetD2D8Async, .bytes = width * height, .pointer = dst,
          .stream = (uintptr_t)stream);
    END(fill(&call, stream));
}
