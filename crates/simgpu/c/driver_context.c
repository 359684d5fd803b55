// SPDX-License-Identifier: Apache-2.0
// Driver API: initialisation, devices, contexts.
#include <stdlib.h>

#include "driver_internal.h"

static struct CUctx_st primary[SIM_MAX_DEVICES];
static int initialised;

int sim_current_device(void)
{
    const SimThread *thread = &sim_thread;
    return thread->contexts ? thread->context[thread->contexts - 1]->device : -1;
}

static CUresult check_device(CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < sim_config.devices ? CUDA_SUCCESS
                                                      : CUDA_ERROR_INVALID_DEVICE;
}

API(CUresult, cuInit, (unsigned int flags))
{
    BEGIN(cuInit);
    if (!flags)
        initialised = 1;
    END(flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

API(CUresult, cuDeviceGet, (CUdevice *device, int ordinal))
{
    QUERY_BEGIN();
    *device = ordinal;
    return check_device(ordinal);
}

API(CUresult, cuDeviceGetCount, (int *count))
{
    QUERY_BEGIN();
    *count = sim_config.devices;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice device))
{
    BEGIN(cuDevicePrimaryCtxRetain);
    CUresult result = check_device(device);
    if (result == CUDA_SUCCESS) {
        primary[device].device = device;
        primary[device].primary = 1;
        *ctx = &primary[device];
    }
    END(result);
}

API(CUresult, cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
    BEGIN(cuDevicePrimaryCtxRelease_v2);
    END(check_device(device));
}

static CUresult push_context(CUcontext ctx)
{
    SimThread *thread = &sim_thread;
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->contexts == sizeof thread->context / sizeof thread->context[0])
        return CUDA_ERROR_INVALID_VALUE;
    thread->context[thread->contexts++] = ctx;
    return CUDA_SUCCESS;
}

API(CUresult, cuCtxCreate_v2, (CUcontext *ctx, unsigned int flags, CUdevice device))
{
    BEGIN(cuCtxCreate_v2);
    (void)flags;
    CUresult result = check_device(device);
    if (result == CUDA_SUCCESS) {
        struct CUctx_st *made = calloc(1, sizeof *made);
        if (!made)
            END(CUDA_ERROR_OUT_OF_MEMORY);
        made->device = device;
        result = push_context(made);
        *ctx = made;
    }
    END(result);
}

API(CUresult, cuCtxDestroy_v2, (CUcontext ctx))
{
    BEGIN(cuCtxDestroy_v2);
    if (!ctx || ctx->primary)
        END(CUDA_ERROR_INVALID_CONTEXT);
    SimThread *thread = &sim_thread;
    if (thread->contexts && thread->context[thread->contexts - 1] == ctx)
        thread->contexts--;
    free(ctx);
    END(CUDA_SUCCESS);
}

API(CUresult, cuCtxSetCurrent, (CUcontext ctx))
{
    BEGIN(cuCtxSetCurrent);
    SimThread *thread = &sim_thread;
    if (thread->contexts)
        thread->contexts--;
    END(ctx ? push_context(ctx) : CUDA_SUCCESS);
}

API(CUresult, cuCtxGetCurrent, (CUcontext *ctx))
{
    QUERY_BEGIN();
    const SimThread *thread = &sim_thread;
    *ctx = thread->contexts ? thread->context[thread->contexts - 1] : NULL;
    return CUDA_SUCCESS;
}

API(CUresult, cuCtxPushCurrent_v2, (CUcontext ctx))
{
    BEGIN(cuCtxPushCurrent_v2);
    END(push_context(ctx));
}

API(CUresult, cuCtxPopCurrent_v2, (CUcontext *ctx))
{
    BEGIN(cuCtxPopCurrent_v2);
    SimThread *thread = &sim_thread;
    if (!thread->contexts)
        END(CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = thread->context[--thread->contexts];
    if (ctx)
        *ctx = popped;
    END(CUDA_SUCCESS);
}

API(CUresult, cuCtxGetDevice, (CUdevice *device))
{
    QUERY_BEGIN();
    *device = sim_current_device();
    return *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

API(CUresult, cuCtxSynchronize, (void))
{
    BEGIN(cuCtxSynchronize);
    int device = sim_current_device();
    END(device < 0 ? CUDA_ERROR_INVALID_CONTEXT : device_synchronize(device));
}

API(CUresult, cuGetErrorName, (CUresult error, const char **name))
{
    QUERY_BEGIN();
    switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case CUDA_ERROR_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
    default: *name = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
