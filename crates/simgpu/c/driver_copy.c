// SPDX-License-Identifier: Apache-2.0
// Driver API: copies and memsets. Device memory is not backed, so copies take
// their time on an engine without moving bytes; copies within the host do
// move them. Unlike real drivers, an asynchronous copy of pageable memory
// stays asynchronous.
#include <string.h>

#include "driver_internal.h"

// Queues a transfer on the call's stream; a synchronous one waits for its end.
static CUresult transfer(SimCall *call, unsigned direction, size_t bytes, CUstream handle,
                         bool per_thread, bool wait)
{
    call->direction = (uint8_t)direction;
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS || direction == SIM_H2H)
        return result;
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
    END(transfer(&call, direction, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyAsync,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    BEGIN(cuMemcpyAsync, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    unsigned direction = unified_direction(dst, src);
    copy_within_host(direction, dst, src, bytes);
    END(transfer(&call, direction, bytes, stream, false, false));
}

API(CUresult, cuMemcpyAsync_ptsz,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    BEGIN(cuMemcpyAsync_ptsz, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    unsigned direction = unified_direction(dst, src);
    copy_within_host(direction, dst, src, bytes);
    END(transfer(&call, direction, bytes, stream, true, false));
}

API(CUresult, cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes))
{
    (void)src;
    BEGIN(cuMemcpyHtoD_v2, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_H2D, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyHtoDAsync_v2,
    (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))
{
    (void)src;
    BEGIN(cuMemcpyHtoDAsync_v2, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_H2D, bytes, stream, false, false));
}

API(CUresult, cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes))
{
    (void)src;
    BEGIN(cuMemcpyDtoH_v2, .bytes = bytes, .pointer = (uintptr_t)dst);
    END(transfer(&call, SIM_D2H, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyDtoHAsync_v2,
    (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    (void)src;
    BEGIN(cuMemcpyDtoHAsync_v2, .bytes = bytes, .pointer = (uintptr_t)dst,
          .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2H, bytes, stream, false, false));
}

API(CUresult, cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes))
{
    (void)src;
    BEGIN(cuMemcpyDtoD_v2, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_D2D, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyDtoDAsync_v2,
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))
{
    (void)src;
    BEGIN(cuMemcpyDtoDAsync_v2, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2D, bytes, stream, false, false));
}

API(CUresult, cuMemcpyPeer,
    (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes))
{
    (void)dst_ctx, (void)src, (void)src_ctx;
    BEGIN(cuMemcpyPeer, .bytes = bytes, .pointer = dst);
    END(transfer(&call, SIM_D2D, bytes, NULL, false, true));
}

API(CUresult, cuMemcpyPeerAsync,
    (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes,
     CUstream stream))
{
    (void)dst_ctx, (void)src, (void)src_ctx;
    BEGIN(cuMemcpyPeerAsync, .bytes = bytes, .pointer = dst, .stream = (uintptr_t)stream);
    END(transfer(&call, SIM_D2D, bytes, stream, false, false));
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

API(CUresult, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy))
{
    BEGIN(cuMemcpy2D_v2, .bytes = copy->WidthInBytes * copy->Height);
    END(transfer(&call, direction_2d(copy), call.bytes, NULL, false, true));
}

API(CUresult, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))
{
    BEGIN(cuMemcpy2DAsync_v2, .bytes = copy->WidthInBytes * copy->Height,
          .stream = (uintptr_t)stream);
    END(transfer(&call, direction_2d(copy), call.bytes, stream, false, false));
}

API(CUresult, cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy))
{
    BEGIN(cuMemcpy3D_v2, .bytes = copy->WidthInBytes * copy->Height * copy->Depth);
    END(transfer(&call, direction_3d(copy), call.bytes, NULL, false, true));
}

API(CUresult, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream))
{
    BEGIN(cuMemcpy3DAsync_v2, .bytes = copy->WidthInBytes * copy->Height * copy->Depth,
          .stream = (uintptr_t)stream);
    END(transfer(&call, direction_3d(copy), call.bytes, stream, false, false));
}

// Memsets run at the speed of copies within the device, and no memset waits:
// for device memory the real ones do not wait either.
static CUresult fill(SimCall *call, CUstream stream)
{
    CUresult result = transfer(call, SIM_D2D, call->bytes, stream, false, false);
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
