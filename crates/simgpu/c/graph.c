// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs: a graph is the list of work that was queued
// while the stream captured, launched in that order.
#include <stdlib.h>
#include <string.h>

#include "device.h"

CUresult graph_begin_capture(SimStream *stream)
{
    SimDevice *device = &sim_devices[stream->device];
    // The default stream cannot capture, as in the real driver.
    if (stream == &device->default_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    SimGraph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&device->lock);
    bool already = stream->capture != NULL;
    if (!already)
        stream->capture = graph;
    pthread_mutex_unlock(&device->lock);
    if (already)
        free(graph);
    return already ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult graph_end_capture(SimStream *stream, SimGraph **graph)
{
    SimDevice *device = &sim_devices[stream->device];
    pthread_mutex_lock(&device->lock);
    *graph = stream->capture;
    stream->capture = NULL;
    pthread_mutex_unlock(&device->lock);
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult graph_append(SimGraph *graph, const SimWork *work)
{
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? graph->capacity * 2 : 16;
        SimWork *bigger = realloc(graph->work, capacity * sizeof *bigger);
        if (!bigger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->work = bigger;
        graph->capacity = capacity;
    }
    graph->work[graph->count++] = *work;
    return CUDA_SUCCESS;
}

SimGraph *graph_copy(const SimGraph *graph)
{
    SimGraph *copy = calloc(1, sizeof *copy);
    if (!copy)
        return NULL;
    for (size_t i = 0; i < graph->count; i++) {
        if (graph_append(copy, &graph->work[i]) != CUDA_SUCCESS) {
            graph_destroy(copy);
            return NULL;
        }
    }
    return copy;
}

bool graph_update(SimGraph *exec, const SimGraph *graph)
{
    bool fits = exec->count == graph->count;
    for (size_t i = 0; i < graph->count && fits; i++)
        fits = exec->work[i].engine == graph->work[i].engine;
    if (fits && graph->count)
        memcpy(exec->work, graph->work, graph->count * sizeof *graph->work);
    return fits;
}

CUresult graph_launch(const SimGraph *graph, SimStream *stream)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t end;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = stream_enqueue(stream, &graph->work[i], &end);
    return result;
}

void graph_destroy(SimGraph *graph)
{
    free(graph->work);
    free(graph);
}
