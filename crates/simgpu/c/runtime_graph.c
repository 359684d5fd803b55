// SPDX-License-Identifier: Apache-2.0
// Runtime API: stream capture and graphs. The log has both handles of a graph.
#include "runtime_internal.h"

#define BEGIN_GRAPH(name, graph, exec, ...)                                          \
    SimDetail detail = {.kind = DETAIL_GRAPH,                                        \
                        .values = {(uintptr_t)(graph), (uintptr_t)(exec)}};          \
    BEGIN(name, .detail = &detail, ##__VA_ARGS__)

// Ends with the result of `driver_call`, which makes an executable graph.
#define END_INSTANTIATE(driver_call)                              \
    do {                                                          \
        CUresult result_ = runtime_prepare();                     \
        if (result_ == CUDA_SUCCESS)                              \
            result_ = (driver_call);                              \
        if (result_ == CUDA_SUCCESS)                              \
            detail.values[1] = (uintptr_t)*exec;                  \
        END(result_);                                             \
    } while (0)

API(cudaError_t, cudaStreamBeginCapture, (cudaStream_t stream, int mode))
{
    BEGIN(cudaStreamBeginCapture, .stream = (uintptr_t)stream);
    END_WITH(cuStreamBeginCapture_v2(stream, mode));
}

API(cudaError_t, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph))
{
    BEGIN_GRAPH(cudaStreamEndCapture, 0, 0, .stream = (uintptr_t)stream);
    CUresult result = runtime_prepare();
    if (result == CUDA_SUCCESS)
        result = cuStreamEndCapture(stream, graph);
    if (result == CUDA_SUCCESS)
        detail.values[0] = call.pointer = (uintptr_t)*graph;
    END(result);
}

API(cudaError_t, cudaStreamIsCapturing, (cudaStream_t stream, int *status))
{
    BEGIN(cudaStreamIsCapturing, .stream = (uintptr_t)stream);
    END_WITH(cuStreamIsCapturing(stream, status));
}

API(cudaError_t, cudaGraphInstantiate,
    (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags))
{
    BEGIN_GRAPH(cudaGraphInstantiate, graph, 0, .pointer = (uintptr_t)graph);
    END_INSTANTIATE(cuGraphInstantiateWithFlags(exec, graph, flags));
}

API(cudaError_t, cudaGraphInstantiateWithFlags,
    (cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags))
{
    BEGIN_GRAPH(cudaGraphInstantiateWithFlags, graph, 0, .pointer = (uintptr_t)graph);
    END_INSTANTIATE(cuGraphInstantiateWithFlags(exec, graph, flags));
}

API(cudaError_t, cudaGraphInstantiateWithParams,
    (cudaGraphExec_t *exec, cudaGraph_t graph, cudaGraphInstantiateParams *params))
{
    BEGIN_GRAPH(cudaGraphInstantiateWithParams, graph, 0, .pointer = (uintptr_t)graph);
    END_INSTANTIATE(cuGraphInstantiateWithParams(exec, graph, params));
}

API(cudaError_t, cudaGraphExecUpdate,
    (cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info))
{
    BEGIN_GRAPH(cudaGraphExecUpdate, graph, exec, .pointer = (uintptr_t)exec);
    END_WITH(cuGraphExecUpdate_v2(exec, graph, info));
}

API(cudaError_t, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream))
{
    BEGIN_GRAPH(cudaGraphLaunch, 0, exec, .pointer = (uintptr_t)exec,
                .stream = (uintptr_t)stream);
    END_WITH(cuGraphLaunch(exec, stream));
}

API(cudaError_t, cudaGraphExecDestroy, (cudaGraphExec_t exec))
{
    BEGIN_GRAPH(cudaGraphExecDestroy, 0, exec, .pointer = (uintptr_t)exec);
    END_WITH(cuGraphExecDestroy(exec));
}

API(cudaError_t, cudaGraphDestroy, (cudaGraph_t graph))
{
    BEGIN_GRAPH(cudaGraphDestroy, graph, 0, .pointer = (uintptr_t)graph);
    END_WITH(cuGraphDestroy(graph));
}
