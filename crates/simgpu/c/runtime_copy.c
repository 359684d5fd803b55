// SPDX-License-Identifier: Apache-2.0
// Runtime API: copies and memsets.
#include "runtime_internal.h"

// The log's direction for a kind the caller states; cudaMemcpyDefault is
// left to the driver, and logged as no direction here.
static uint8_t direction_of(enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost: return SIM_H2H;
    case cudaMemcpyHostToDevice: return SIM_H2D;
    case cudaMemcpyDeviceToHost: return SIM_D2H;
    case cudaMemcpyDeviceToDevice: return SIM_D2D;
    default: return 0;
    }
}

static CUresult copy_now(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice: return cuMemcpyHtoD_v2((uintptr_t)dst, src, bytes);
    case cudaMemcpyDeviceToHost: return cuMemcpyDtoH_v2(dst, (uintptr_t)src, bytes);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoD_v2((uintptr_t)dst, (uintptr_t)src, bytes);
    default: return cuMemcpy((uintptr_t)dst, (uintptr_t)src, bytes);
    }
}

static CUresult copy_async(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                           cudaStream_t stream)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return cuMemcpyHtoDAsync_v2((uintptr_t)dst, src, bytes, stream);
    case cudaMemcpyDeviceToHost:
        return cuMemcpyDtoHAsync_v2(dst, (uintptr_t)src, bytes, stream);
    case cudaMemcpyDeviceToDevice:
        return cuMemcpyDtoDAsync_v2((uintptr_t)dst, (uintptr_t)src, bytes, stream);
    default: return cuMemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, stream);
    }
}

API(cudaError_t, cudaMemcpy,
    (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind))
{
    BEGIN(cudaMemcpy, .bytes = bytes, .pointer = (uintptr_t)dst,
          .direction = direction_of(kind));
    END_WITH(copy_now(dst, src, bytes, kind));
}

API(cudaError_t, cudaMemcpyAsync,
    (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream))
{
    BEGIN(cudaMemcpyAsync, .bytes = bytes, .pointer = (uintptr_t)dst,
          .direction = direction_of(kind), .stream = (uintptr_t)stream);
    END_WITH(copy_async(dst, src, bytes, kind, stream));
}

API(cudaError_t, cudaMemcpyAsync_ptsz,
    (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream))
{
    BEGIN(cudaMemcpyAsync_ptsz, .bytes = bytes, .pointer = (uintptr_t)dst,
          .direction = direction_of(kind), .stream = (uintptr_t)stream);
    END_WITH(cuMemcpyAsync_ptsz((uintptr_t)dst, (uintptr_t)src, bytes, stream));
}

static CUmemorytype type_of(enum cudaMemcpyKind kind, int destination)
{
    switch (kind) {
    case cudaMemcpyHostToHost: return CU_MEMORYTYPE_HOST;
    case cudaMemcpyHostToDevice:
        return destination ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    case cudaMemcpyDeviceToHost:
        return destination ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case cudaMemcpyDeviceToDevice: return CU_MEMORYTYPE_DEVICE;
    default: return CU_MEMORYTYPE_UNIFIED;
    }
}

static CUDA_MEMCPY2D describe_2d(void *dst, size_t dst_pitch, const void *src,
                                 size_t src_pitch, size_t width, size_t height,
                                 enum cudaMemcpyKind kind)
{
    return (CUDA_MEMCPY2D){
        .srcMemoryType = type_of(kind, 0),
        .srcHost = src,
        .srcDevice = (uintptr_t)src,
        .srcPitch = src_pitch,
        .dstMemoryType = type_of(kind, 1),
        .dstHost = dst,
        .dstDevice = (uintptr_t)dst,
        .dstPitch = dst_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

API(cudaError_t, cudaMemcpy2D,
    (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
     size_t height, enum cudaMemcpyKind kind))
{
    BEGIN(cudaMemcpy2D, .bytes = width * height, .pointer = (uintptr_t)dst,
          .direction = direction_of(kind));
    CUDA_MEMCPY2D copy = describe_2d(dst, dst_pitch, src, src_pitch, width, height, kind);
    END_WITH(cuMemcpy2D_v2(&copy));
}

API(cudaError_t, cudaMemcpy2DAsync,
    (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream))
{
    BEGIN(cudaMemcpy2DAsync, .bytes = width * height, .pointer = (uintptr_t)dst,
          .direction = direction_of(kind), .stream = (uintptr_t)stream);
    CUDA_MEMCPY2D copy = describe_2d(dst, dst_pitch, src, src_pitch, width, height, kind);
    END_WITH(cuMemcpy2DAsync_v2(&copy, stream));
}

static CUDA_MEMCPY3D describe_3d(const struct cudaMemcpy3DParms *parms)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = parms->srcPos.x,
        .srcY = parms->srcPos.y,
        .srcZ = parms->srcPos.z,
        .srcMemoryType = type_of(parms->kind, 0),
        .srcHost = parms->srcPtr.ptr,
        .srcDevice = (uintptr_t)parms->srcPtr.ptr,
        .srcPitch = parms->srcPtr.pitch,
        .srcHeight = parms->srcPtr.ysize,
        .dstXInBytes = parms->dstPos.x,
        .dstY = parms->dstPos.y,
        .dstZ = parms->dstPos.z,
        .dstMemoryType = type_of(parms->kind, 1),
        .dstHost = parms->dstPtr.ptr,
        .dstDevice = (uintptr_t)parms->dstPtr.ptr,
        .dstPitch = parms->dstPtr.pitch,
        .dstHeight = parms->dstPtr.ysize,
        .WidthInBytes = parms->extent.width,
        .Height = parms->extent.height,
        .Depth = parms->extent.depth,
    };
}

static uint64_t volume(struct cudaExtent extent)
{
    return (uint64_t)extent.width * extent.height * extent.depth;
}

API(cudaError_t, cudaMemcpy3D, (const struct cudaMemcpy3DParms *parms))
{
    BEGIN(cudaMemcpy3D, .bytes = volume(parms->extent),
          .pointer = (uintptr_t)parms->dstPtr.ptr, .direction = direction_of(parms->kind));
    CUDA_MEMCPY3D copy = describe_3d(parms);
    END_WITH(cuMemcpy3D_v2(&copy));
}

API(cudaError_t, cudaMemcpy3DAsync,
    (const struct cudaMemcpy3DParms *parms, cudaStream_t stream))
{
    BEGIN(cudaMemcpy3DAsync, .bytes = volume(parms->extent),
          .pointer = (uintptr_t)parms->dstPtr.ptr, .direction = direction_of(parms->kind),
          .stream = (uintptr_t)stream);
    CUDA_MEMCPY3D copy = describe_3d(parms);
    END_WITH(cuMemcpy3DAsync_v2(&copy, stream));
}

API(cudaError_t, cudaMemcpyPeer,
    (void *dst, int dst_device, const void *src, int src_device, size_t bytes))
{
    (void)dst_device, (void)src_device;
    BEGIN(cudaMemcpyPeer, .bytes = bytes, .pointer = (uintptr_t)dst, .direction = SIM_D2D);
    END_WITH(cuMemcpyPeer((uintptr_t)dst, NULL, (uintptr_t)src, NULL, bytes));
}

API(cudaError_t, cudaMemcpyPeerAsync,
    (void *dst, int dst_device, const void *src, int src_device, size_t bytes,
     cudaStream_t stream))
{
    (void)dst_device, (void)src_device;
    BEGIN(cudaMemcpyPeerAsync, .bytes = bytes, .pointer = (uintptr_t)dst,
          .direction = SIM_D2D, .stream = (uintptr_t)stream);
    END_WITH(cuMemcpyPeerAsync((uintptr_t)dst, NULL, (uintptr_t)src, NULL, bytes, stream));
}

API(cudaError_t, cudaMemset, (void *ptr, int value, size_t bytes))
{
    BEGIN(cudaMemset, .bytes = bytes, .pointer = (uintptr_t)ptr);
    END_WITH(cuMemsetD8_v2((uintptr_t)ptr, (unsigned char)value, bytes));
}

API(cudaError_t, cudaMemsetAsync, (void *ptr, int value, size_t bytes, cudaStream_t stream))
{
    BEGIN(cudaMemsetAsync, .bytes = bytes, .pointer = (uintptr_t)ptr,
          .stream = (uintptr_t)stream);
    END_WITH(cuMemsetD8Async((uintptr_t)ptr, (unsigned char)value, bytes, stream));
}

API(cudaError_t, cudaMemset2D,
    (void *ptr, size_t pitch, int value, size_t width, size_t height))
{
    BEGIN(cudaMemset2D, .bytes = width * height, .pointer = (uintptr_t)ptr);
    END_WITH(
        cuMemsetD2D8_v2((uintptr_t)ptr, pitch, (unsigned char)value, width, height));
}

API(cudaError_t, cudaMemset2DAsync,
    (void *ptr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream))
{
    BEGIN(cudaMemset2DAsync, .bytes = width * height, .pointer = (uintptr_t)ptr,
          .stream = (uintptr_t)stream);
    END_WITH(cuMemsetD2D8Async((uintptr_t)ptr, pitch, (unsigned char)value, width, height,
                               stream));
}

API(cudaError_t, cudaMemset3D,
    (struct cudaPitchedPtr ptr, int value, struct cudaExtent extent))
{
    BEGIN(cudaMemset3D, .bytes = volume(extent), .pointer = (uintptr_t)ptr.ptr);
    END_WITH(cuMemsetD2D8_v2((uintptr_t)ptr.ptr, ptr.pitch, (unsigned char)value,
                             extent.width, extent.height * extent.depth));
}
