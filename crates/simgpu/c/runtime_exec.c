// SPDX-License-Identifier: Apache-2.0
// Runtime API: launches, stream capture and graphs.
#include "runtime_internal.h"

API(cudaError_t, cudaLaunchKernel,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchKernel, .pointer = (uintptr_t)func, .stream = (uintptr_t)stream);
    if (!func)
        END(CUDA_ERROR_INVALID_DEVICE_FUNCTION);
    END_WITH(cuLaunchKernel((CUfunction)func, grid.x, grid.y, grid.z, block.x, block.y,
                            block.z, (unsigned int)shared_bytes, stream, args, NULL));
}

API(cudaError_t, cudaLaunchKernel_ptsz,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchKernel_ptsz, .pointer = (uintptr_t)func, .stream = (uintptr_t)stream);
    if (!func)
        END(CUDA_ERROR_INVALID_DEVICE_FUNCTION);
    END_WITH(cuLaunchKernel_ptsz((CUfunction)func, grid.x, grid.y, grid.z, block.x, block.y,
                                 block.z, (unsigned int)shared_bytes, stream, args, NULL));
}

API(cudaError_t, cudaLaunchKernelExC,
    (const cudaLaunchConfig_t *config, const void *func, void **args))
{
    BEGIN(cudaLaunchKernelExC, .pointer = (uintptr_t)func,
          .stream = (uintptr_t)config->stream);
    if (!func)
        END(CUDA_ERROR_INVALID_DEVICE_FUNCTION);
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
    END_WITH(cuLaunchKernelEx(&driver_config, (CUfunction)func, args, NULL));
}

API(cudaError_t, cudaLaunchCooperativeKernel,
    (const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes,
     cudaStream_t stream))
{
    BEGIN(cudaLaunchCooperativeKernel, .pointer = (uintptr_t)func,
          .stream = (uintptr_t)stream);
    if (!func)
        END(CUDA_ERROR_INVALID_DEVICE_FUNCTION);
    END_WITH(cuLaunchCooperativeKernel((CUfunction)func, grid.x, grid.y, grid.z, block.x,
                                       block.y, block.z, (unsigned int)shared_bytes, stream,
                                       args));
}

API(cudaError_t, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream))
{
    BEGIN(cudaGraphLaunch, .pointer = (uintptr_t)exec, .stream = (uintptr_t)stream);
    END_WITH(cuGraphLaunch(exec, stream));
}

API(cudaError_t, cudaStreamBeginCapture, (cudaStream_t stream, int mode))
{
    BEGIN(cudaStreamBeginCapture, .stream = (uintptr_t)stream);
    END_WITH(cuStreamBeginCapture_v2(stream, mode));
}

API(cudaError_t, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph))
{
    BEGIN(cudaStreamEndCapture, .stream = (uintptr_t)stream);
    END_WITH(cuStreamEndCapture(stream, graph));
}

API(cudaError_t, cudaGraphInstantiate,
    (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags))
{
    BEGIN(cudaGraphInstantiate, .pointer = (uintptr_t)graph);
    END_WITH(cuGraphInstantiateWithFlags(exec, graph, flags));
}

API(cudaError_t, cudaGraphExecDestroy, (cudaGraphExec_t exec))
{
    BEGIN(cudaGraphExecDestroy, .pointer = (uintptr_t)exec);
    END_WITH(cuGraphExecDestroy(exec));
}

API(cudaError_t, cudaGraphDestroy, (cudaGraph_t graph))
{
    BEGIN(cudaGraphDestroy, .pointer = (uintptr_t)graph);
    END_WITH(cuGraphDestroy(graph));
}

API(void *, simgpuKernel, (const char *name, uint64_t duration_ns))
{
    QUERY_BEGIN();
    return simgpu_kernel(name, duration_ns);
}
