// SPDX-License-Identifier: Apache-2.0
// Runtime API: launches. The driver is asked for a kernel by its name when it
// is launched for the first time (runtime_kernel.c).
#include "runtime_internal.h"

// Ends with the result of `launch`, which uses `kernel`, the driver's handle
// of `func`.
#define END_WITH_KERNEL(launch)                                   \
    do {                                                          \
        CUfunction kernel = NULL;                                 \
        CUresult result_ = runtime_prepare();                     \
        if (result_ == CUDA_SUCCESS)                              \
            result_ = runtime_function(func, &kernel);            \
        if (result_ == CUDA_SUCCESS)                              \
            result_ = (launch);                                   \
        END(result_);                                             \
    } while (0)

API(cudaError_t, cudaLaunchKernel,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchKernel, .pointer = (uintptr_t)func, .stream = (uintptr_t)stream);
    END_WITH_KERNEL(cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                   block.z, (unsigned int)shared_bytes, stream, args,
                                   NULL));
}

API(cudaError_t, cudaLaunchKernel_ptsz,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchKernel_ptsz, .pointer = (uintptr_t)func, .stream = (uintptr_t)stream);
    END_WITH_KERNEL(cuLaunchKernel_ptsz(kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                        block.z, (unsigned int)shared_bytes, stream, args,
                                        NULL));
}

API(cudaError_t, cudaLaunchKernelExC,
    (const cudaLaunchConfig_t *config, const void *func, void **args))
{
    BEGIN(cudaLaunchKernelExC, .pointer = (uintptr_t)func,
          .stream = (uintptr_t)config->stream);
    CUlaunchConfig driver_config = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = config->attrs,
        .numAttrs = config->numAttrs,
    };
    END_WITH_KERNEL(cuLaunchKernelEx(&driver_config, kernel, args, NULL));
}

API(cudaError_t, cudaLaunchCooperativeKernel,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchCooperativeKernel, .pointer = (uintptr_t)func,
          .stream = (uintptr_t)stream);
    END_WITH_KERNEL(cuLaunchCooperativeKernel(kernel, grid.x, grid.y, grid.z, block.x,
                                              block.y, block.z, (unsigned int)shared_bytes,
                                              stream, args));
}

API(void *, simgpuKernel, (const char *name, uint64_t duration_ns))
{
    QUERY_BEGIN();
    return simgpu_kernel(name, duration_ns);
}
