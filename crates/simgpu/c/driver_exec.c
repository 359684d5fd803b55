// SPDX-License-Identifier: Apache-2.0
// Driver API: launches, streams, events.
#include "driver_internal.h"

static CUresult launch(CUfunction function, CUstream handle, bool per_thread)
{
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    SimWork work = {SIM_COMPUTE, kernel_duration(function), 0};
    uint64_t end;
    return stream_enqueue(stream, &work, &end);
}

API(CUresult, cuLaunchKernel,
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
     unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
     void **params, void **extra))
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared_bytes, (void)params, (void)extra;
    BEGIN(cuLaunchKernel, .pointer = (uintptr_t)f, .stream = (uintptr_t)stream);
    END(launch(f, stream, false));
}

API(CUresult, cuLaunchKernel_ptsz,
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
     unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
     void **params, void **extra))
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared_bytes, (void)params, (void)extra;
    BEGIN(cuLaunchKernel_ptsz, .pointer = (uintptr_t)f, .stream = (uintptr_t)stream);
    END(launch(f, stream, true));
}

API(CUresult, cuLaunchKernelEx,
    (const CUlaunchConfig *config, CUfunction f, void **params, void **extra))
{
    (void)params, (void)extra;
    BEGIN(cuLaunchKernelEx, .pointer = (uintptr_t)f, .stream = (uintptr_t)config->hStream);
    END(launch(f, config->hStream, false));
}

API(CUresult, cuLaunchKernelEx_ptsz,
    (const CUlaunchConfig *config, CUfunction f, void **params, void **extra))
{
    (void)params, (void)extra;
    BEGIN(cuLaunchKernelEx_ptsz, .pointer = (uintptr_t)f,
          .stream = (uintptr_t)config->hStream);
    END(launch(f, config->hStream, true));
}

API(CUresult, cuLaunchCooperativeKernel,
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
     unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream,
     void **params))
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared_bytes, (void)params;
    BEGIN(cuLaunchCooperativeKernel, .pointer = (uintptr_t)f, .stream = (uintptr_t)stream);
    END(launch(f, stream, false));
}

API(CUresult, cuStreamCreate, (CUstream *stream, unsigned int flags))
{
    (void)flags;
    BEGIN(cuStreamCreate);
    int device = sim_current_device();
    if (device < 0)
        END(CUDA_ERROR_INVALID_CONTEXT);
    SimStream *made = stream_create(device);
    *stream = (CUstream)made;
    call.stream = (uintptr_t)made;
    END(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API(CUresult, cuStreamDestroy_v2, (CUstream stream))
{
    BEGIN(cuStreamDestroy_v2, .stream = (uintptr_t)stream);
    SimStream *found;
    CUresult result = stream_resolve(stream, false, &found);
    if (result == CUDA_SUCCESS && (uintptr_t)stream <= 2)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        stream_destroy(found);
    END(result);
}

static CUresult synchronize(CUstream handle, bool per_thread)
{
    SimStream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? stream_synchronize(stream) : result;
}

API(CUresult, cuStreamSynchronize, (CUstream stream))
{
    BEGIN(cuStreamSynchronize, .stream = (uintptr_t)stream);
    END(synchronize(stream, false));
}

API(CUresult, cuStreamSynchronize_ptsz, (CUstream stream))
{
    BEGIN(cuStreamSynchronize_ptsz, .stream = (uintptr_t)stream);
    END(synchronize(stream, true));
}

API(CUresult, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))
{
    (void)flags;
    BEGIN(cuStreamWaitEvent, .stream = (uintptr_t)stream, .pointer = (uintptr_t)event);
    SimStream *found;
    SimEvent *awaited = event_resolve(event);
    CUresult result =
        awaited ? stream_resolve(stream, false, &found) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && awaited->recorded)
        stream_wait_for(found, awaited->time);
    END(result);
}

API(CUresult, cuEventCreate, (CUevent *event, unsigned int flags))
{
    (void)flags;
    BEGIN(cuEventCreate);
    SimEvent *made = event_create();
    *event = (CUevent)made;
    call.pointer = (uintptr_t)made;
    END(made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API(CUresult, cuEventRecord, (CUevent event, CUstream stream))
{
    BEGIN(cuEventRecord, .stream = (uintptr_t)stream, .pointer = (uintptr_t)event);
    SimStream *found;
    SimEvent *recorded = event_resolve(event);
    CUresult result =
        recorded ? stream_resolve(stream, false, &found) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        uint64_t now = sim_now(), end = stream_last_end(found);
        recorded->time = end > now ? end : now;
        recorded->recorded = true;
    }
    END(result);
}

API(CUresult, cuEventSynchronize, (CUevent event))
{
    BEGIN(cuEventSynchronize, .pointer = (uintptr_t)event);
    SimEvent *found = event_resolve(event);
    if (found && found->recorded)
        device_wait_until(found->time);
    END(found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

API(CUresult, cuEventDestroy_v2, (CUevent event))
{
    BEGIN(cuEventDestroy_v2, .pointer = (uintptr_t)event);
    SimEvent *found = event_resolve(event);
    if (found)
        found->in_use = false;
    END(found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

API(CUresult, cuEventQuery, (CUevent event))
{
    QUERY_BEGIN();
    SimEvent *found = event_resolve(event);
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    return found->recorded && found->time > sim_now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API(CUresult, cuEventElapsedTime, (float *ms, CUevent start, CUevent end))
{
    QUERY_BEGIN();
    SimEvent *from = event_resolve(start), *to = event_resolve(end);
    if (!from || !to || !from->recorded || !to->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    *ms = (float)((double)(int64_t)(to->time - from->time) / 1e6);
    return to->time > sim_now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
