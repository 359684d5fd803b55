// SPDX-License-Identifier: Apache-2.0
// Driver API: stream capture and graphs. The log has both handles of a graph,
// so that one can be followed from its capture to its end.
#include "driver_internal.h"

#define BEGIN_GRAPH(name, graph, exec, ...)                                          \
    SimDetail detail = {.kind = DETAIL_GRAPH,                                        \
                        .values = {(uintptr_t)(graph), (uintptr_t)(exec)}};          \
    BEGIN(name, .detail = &detail, ##__VA_ARGS__)

API(CUresult, cuStreamBeginCapture_v2, (CUstream stream, int mode))
{
    (void)mode;
    BEGIN(cuStreamBeginCapture_v2, .stream = (uintptr_t)stream);
    SimStream *found;
    CUresult result = stream_resolve(stream, false, &found);
    END(result == CUDA_SUCCESS ? graph_begin_capture(found) : result);
}

API(CUresult, cuStreamEndCapture, (CUstream stream, CUgraph *graph))
{
    BEGIN_GRAPH(cuStreamEndCapture, 0, 0, .stream = (uintptr_t)stream);
    SimStream *found;
    CUresult result = stream_resolve(stream, false, &found);
    if (result == CUDA_SUCCESS)
        result = graph_end_capture(found, (SimGraph **)graph);
    if (result == CUDA_SUCCESS) {
        detail.values[0] = call.pointer = (uintptr_t)*graph;
        detail.numbers[0] = (int32_t)((SimGraph *)*graph)->count;
    }
    END(result);
}

API(CUresult, cuStreamIsCapturing, (CUstream stream, int *status))
{
    BEGIN(cuStreamIsCapturing, .stream = (uintptr_t)stream);
    SimStream *found;
    CUresult result = stream_resolve(stream, false, &found);
    if (result == CUDA_SUCCESS)
        *status = found->capture ? 1 : 0; // CU_STREAM_CAPTURE_STATUS_ACTIVE, _NONE
    END(result);
}

static CUresult instantiate(SimDetail *detail, CUgraphExec *exec, CUgraph graph)
{
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    *exec = (CUgraphExec)graph_copy((const SimGraph *)graph);
    if (!*exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    detail->values[1] = (uintptr_t)*exec;
    detail->numbers[0] = (int32_t)((SimGraph *)*exec)->count;
    return CUDA_SUCCESS;
}

API(CUresult, cuGraphInstantiateWithFlags,
    (CUgraphExec *exec, CUgraph graph, unsigned long long flags))
{
    (void)flags;
    BEGIN_GRAPH(cuGraphInstantiateWithFlags, graph, 0, .pointer = (uintptr_t)graph);
    END(instantiate(&detail, exec, graph));
}

API(CUresult, cuGraphInstantiateWithParams,
    (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params))
{
    BEGIN_GRAPH(cuGraphInstantiateWithParams, graph, 0, .pointer = (uintptr_t)graph);
    if (!params)
        END(CUDA_ERROR_INVALID_VALUE);
    CUresult result = instantiate(&detail, exec, graph);
    params->result_out = result == CUDA_SUCCESS ? 0 : 1;
    END(result);
}

API(CUresult, cuGraphExecUpdate_v2,
    (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info))
{
    BEGIN_GRAPH(cuGraphExecUpdate_v2, graph, exec, .pointer = (uintptr_t)exec);
    if (!exec || !graph || !info)
        END(CUDA_ERROR_INVALID_VALUE);
    // As in the real driver, what a graph does may change, but not its shape.
    bool fits = graph_update((SimGraph *)exec, (const SimGraph *)graph);
    *info = (CUgraphExecUpdateResultInfo){.result = fits ? 0 : 2};
    detail.numbers[0] = (int32_t)((SimGraph *)exec)->count;
    END(fits ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

API(CUresult, cuGraphLaunch, (CUgraphExec exec, CUstream stream))
{
    BEGIN_GRAPH(cuGraphLaunch, 0, exec, .pointer = (uintptr_t)exec,
                .stream = (uintptr_t)stream);
    if (!exec)
        END(CUDA_ERROR_INVALID_VALUE);
    detail.numbers[0] = (int32_t)((SimGraph *)exec)->count;
    SimStream *found;
    CUresult result = stream_resolve(stream, false, &found);
    END(result == CUDA_SUCCESS ? graph_launch((const SimGraph *)exec, found) : result);
}

API(CUresult, cuGraphExecDestroy, (CUgraphExec exec))
{
    BEGIN_GRAPH(cuGraphExecDestroy, 0, exec, .pointer = (uintptr_t)exec);
    if (!exec)
        END(CUDA_ERROR_INVALID_VALUE);
    graph_destroy((SimGraph *)exec);
    END(CUDA_SUCCESS);
}

API(CUresult, cuGraphDestroy, (CUgraph graph))
{
    BEGIN_GRAPH(cuGraphDestroy, graph, 0, .pointer = (uintptr_t)graph);
    if (!graph)
        END(CUDA_ERROR_INVALID_VALUE);
    graph_destroy((SimGraph *)graph);
    END(CUDA_SUCCESS);
}
