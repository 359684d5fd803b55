// SPDX-License-Identifier: Apache-2.0
// Runtime API: devices, errors, streams, events.
#include <pthread.h>
#include <stdbool.h>

#include "runtime_internal.h"

#define MAX_DEVICES 8

static __thread cudaError_t last_error;
static __thread int current_device;
static __thread bool prepared;
// Primary contexts this process has retained so far, one per device.
static CUcontext retained[MAX_DEVICES];
static pthread_mutex_t retain_lock = PTHREAD_MUTEX_INITIALIZER;

// The primary context of a device, retained once per process.
static CUresult primary_context(int device, CUcontext *ctx)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&retain_lock);
    if (!retained[device]) {
        result = cuInit(0);
        if (result == CUDA_SUCCESS)
            result = cuDevicePrimaryCtxRetain(&retained[device], device);
    }
    *ctx = retained[device];
    pthread_mutex_unlock(&retain_lock);
    return result;
}

static CUresult use_primary(int device)
{
    if (device < 0 || device >= MAX_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext ctx;
    CUresult result = primary_context(device, &ctx);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(ctx) : result;
}

CUresult runtime_prepare(void)
{
    if (prepared)
        return CUDA_SUCCESS;
    CUcontext ctx = NULL;
    cuCtxGetCurrent(&ctx);
    CUresult result = ctx ? CUDA_SUCCESS : use_primary(current_device);
    prepared = result == CUDA_SUCCESS;
    return result;
}

cudaError_t runtime_leave(SimCall *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        last_error = (cudaError_t)result;
    return simgpu_leave(call, (int)result);
}

API(cudaError_t, cudaSetDevice, (int device))
{
    BEGIN(cudaSetDevice);
    CUresult result = use_primary(device);
    if (result == CUDA_SUCCESS) {
        current_device = device;
        prepared = true;
    }
    END(result);
}

API(cudaError_t, cudaGetDevice, (int *device))
{
    QUERY_BEGIN();
    *device = current_device;
    return 0;
}

API(cudaError_t, cudaGetDeviceCount, (int *count))
{
    QUERY_BEGIN();
    CUresult result = runtime_prepare();
    return (cudaError_t)(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

API(cudaError_t, cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes))
{
    QUERY_BEGIN();
    CUresult result = runtime_prepare();
    return (cudaError_t)(result == CUDA_SUCCESS ? cuMemGetInfo_v2(free_bytes, total_bytes)
                                                : result);
}

API(cudaError_t, cudaGetLastError, (void))
{
    QUERY_BEGIN();
    cudaError_t error = last_error;
    last_error = 0;
    return error;
}

API(const char *, cudaGetErrorString, (cudaError_t error))
{
    QUERY_BEGIN();
    switch ((CUresult)error) {
    case CUDA_SUCCESS: return "no error";
    case CUDA_ERROR_INVALID_VALUE: return "invalid argument";
    case CUDA_ERROR_OUT_OF_MEMORY: return "out of memory";
    case CUDA_ERROR_NOT_INITIALIZED: return "initialization error";
    case CUDA_ERROR_INVALID_DEVICE_FUNCTION: return "invalid device function";
    case CUDA_ERROR_INVALID_DEVICE: return "invalid device ordinal";
    case CUDA_ERROR_INVALID_CONTEXT: return "invalid device context";
    case CUDA_ERROR_INVALID_HANDLE: return "invalid resource handle";
    case CUDA_ERROR_NOT_READY: return "device not ready";
    default: return "unrecognized error code";
    }
}

API(cudaError_t, cudaDeviceSynchronize, (void))
{
    BEGIN(cudaDeviceSynchronize);
    END_WITH(cuCtxSynchronize());
}

API(cudaError_t, cudaStreamCreate, (cudaStream_t *stream))
{
    BEGIN(cudaStreamCreate);
    END_WITH(cuStreamCreate(stream, 0));
}

API(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t *stream, unsigned int flags))
{
    BEGIN(cudaStreamCreateWithFlags);
    END_WITH(cuStreamCreate(stream, flags));
}

API(cudaError_t, cudaStreamDestroy, (cudaStream_t stream))
{
    BEGIN(cudaStreamDestroy, .stream = (uintptr_t)stream);
    END_WITH(cuStreamDestroy_v2(stream));
}

API(cudaError_t, cudaStreamSynchronize, (cudaStream_t stream))
{
    BEGIN(cudaStreamSynchronize, .stream = (uintptr_t)stream);
    END_WITH(cuStreamSynchronize(stream));
}

API(cudaError_t, cudaStreamSynchronize_ptsz, (cudaStream_t stream))
{
    BEGIN(cudaStreamSynchronize_ptsz, .stream = (uintptr_t)stream);
    END_WITH(cuStreamSynchronize_ptsz(stream));
}

API(cudaError_t, cudaStreamWaitEvent,
    (cudaStream_t stream, cudaEvent_t event, unsigned int flags))
{
    BEGIN(cudaStreamWaitEvent, .stream = (uintptr_t)stream, .pointer = (uintptr_t)event);
    END_WITH(cuStreamWaitEvent(stream, event, flags));
}

API(cudaError_t, cudaEventCreate, (cudaEvent_t *event))
{
    BEGIN(cudaEventCreate);
    END_WITH(cuEventCreate(event, 0));
}

API(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned int flags))
{
    BEGIN(cudaEventCreateWithFlags);
    END_WITH(cuEventCreate(event, flags));
}

API(cudaError_t, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))
{
    BEGIN(cudaEventRecord, .stream = (uintptr_t)stream, .pointer = (uintptr_t)event);
    END_WITH(cuEventRecord(event, stream));
}

API(cudaError_t, cudaEventSynchronize, (cudaEvent_t event))
{
    BEGIN(cudaEventSynchronize, .pointer = (uintptr_t)event);
    END_WITH(cuEventSynchronize(event));
}

API(cudaError_t, cudaEventDestroy, (cudaEvent_t event))
{
    BEGIN(cudaEventDestroy, .pointer = (uintptr_t)event);
    END_WITH(cuEventDestroy_v2(event));
}

API(cudaError_t, cudaEventQuery, (cudaEvent_t event))
{
    QUERY_BEGIN();
    return (cudaError_t)cuEventQuery(event);
}

API(cudaError_t, cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end))
{
    QUERY_BEGIN();
    return (cudaError_t)cuEventElapsedTime(ms, start, end);
}
