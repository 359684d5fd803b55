// SPDX-License-Identifier: Apache-2.0
// simjob's special modes: nested calls, running out of memory, and dying
// inside a call. Each runs on the process's main thread.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "simjob.h"

#define REENTER_LEVELS 3

typedef struct Nest {
    const Api *api;
    Result *result;
    cudaStream_t stream;
    void *kernel;
    int level;
} Nest;

static void count(Nest *nest, int error)
{
    nest->result->inner_calls++;
    if (error)
        die("a nested call failed with error %d", error);
}

// Runs inside cuStreamSynchronize, and calls it again until the nesting is
// REENTER_LEVELS deep.
static void nested_calls(void *arg)
{
    Nest *nest = arg;
    if (nest->level == REENTER_LEVELS)
        return;
    nest->level++;
    dim3 one = {1, 1, 1};
    void *ptr;
    count(nest, nest->api->cudaLaunchKernel(nest->kernel, one, one, NULL, 0, nest->stream));
    count(nest, nest->api->cudaMalloc(&ptr, 4096));
    count(nest, nest->api->cudaFree(ptr));
    count(nest, nest->api->cudaStreamSynchronize(nest->stream));
    nest->level--;
}

void run_reenter(const Options *options, const Api *api, int process, Result *result)
{
    Nest nest = {.api = api, .result = result};
    uint64_t quota = share(options->calls, options->procs, process);
    nest.kernel = api->simgpuKernel("simjob_nested", options->kernel_ns);
    if (api->cudaSetDevice(0) || api->cudaStreamCreate(&nest.stream))
        die("cannot set up the stream");
    result->setup_calls = 2;
    api->simgpu_set_hook(nested_calls, &nest);
    result->start_ns = clock_ns(CLOCK_MONOTONIC);
    for (uint64_t i = 0; i < quota; i++)
        result->errors += api->cudaStreamSynchronize(nest.stream) != 0;
    result->end_ns = clock_ns(CLOCK_MONOTONIC);
    result->wall_ns = result->end_ns - result->start_ns;
    result->calls = quota;
    api->simgpu_set_hook(NULL, NULL);
}

// Allocates until memory is out, frees every second chunk, and asks for two
// chunks in one piece: memory enough is free then, but nowhere in one piece.
void run_oom(const Options *options, const Api *api, Result *result)
{
    size_t free_bytes, total_bytes;
    if (api->cudaSetDevice(0))
        die("no device");
    result->setup_calls = 1;
    api->cudaMemGetInfo(&free_bytes, &total_bytes);
    size_t capacity = free_bytes / options->chunk + 2, made = 0;
    void **chunks = calloc(capacity, sizeof *chunks);
    if (!chunks)
        die("no memory for %zu pointers", capacity);
    result->start_ns = clock_ns(CLOCK_MONOTONIC);
    int error = 0;
    while (made < capacity && !error) {
        error = api->cudaMalloc(&chunks[made], options->chunk);
        made += error == 0;
        result->calls++;
    }
    result->errors += error == CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < made; i += 2, result->calls++)
        result->errors += api->cudaFree(chunks[i]) != 0;
    void *large;
    error = api->cudaMalloc(&large, 2 * options->chunk);
    result->calls++;
    result->errors += error == CUDA_ERROR_OUT_OF_MEMORY;
    api->cudaMemGetInfo(&result->free_bytes, &total_bytes);
    result->wanted_bytes = error ? 2 * options->chunk : 0;
    for (size_t i = 1; i < made; i += 2, result->calls++)
        result->errors += api->cudaFree(chunks[i]) != 0;
    result->end_ns = clock_ns(CLOCK_MONOTONIC);
    result->wall_ns = result->end_ns - result->start_ns;
    free(chunks);
}

// Called inside cuStreamSynchronize: reports to the parent that the call is open.
static void tell_parent(void *arg)
{
    char byte = 'b';
    if (write(*(int *)arg, &byte, 1) != 1)
        die("lost the parent");
}

void run_exit_in_call(const Api *api, int blocked_fd)
{
    cudaStream_t stream;
    dim3 one = {1, 1, 1};
    void *kernel = api->simgpuKernel("simjob_endless", (uint64_t)3600 * 1000000000u);
    if (api->cudaSetDevice(0) || api->cudaStreamCreate(&stream) ||
        api->cudaLaunchKernel(kernel, one, one, NULL, 0, stream))
        die("cannot start the kernel");
    api->simgpu_set_hook(tell_parent, &blocked_fd);
    api->cudaStreamSynchronize(stream);
    die("the call returned");
}
