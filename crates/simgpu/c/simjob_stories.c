// SPDX-License-Identifier: Apache-2.0
// simjob's plays about graphs and about modules and the names of functions.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simjob_plays.h"

#define LONG_ARGUMENTS 120

typedef struct Recorded {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} Recorded;

// Captures launches of a kernel, which do not run, and makes them executable.
static Recorded record(Play *play, const Api *api, cudaStream_t stream, int kernels)
{
    void *handle = api->handle, *kernel = api->simgpuKernel("simjob_graph", play->kernel_ns);
    dim3 one = {1, 1, 1};
    Recorded made_here;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    int capturing = 0;
    CALL(handle, cudaStreamBeginCapture, stream, 0);
    CALL(handle, cudaStreamIsCapturing, stream, &capturing);
    for (int i = 0; i < kernels; i++)
        CALL(handle, cudaLaunchKernel, kernel, one, one, NULL, 0, stream);
    CALL(handle, cudaStreamEndCapture, stream, &made_here.graph);
    if (!capturing)
        die("the stream does not say that it captures");
    if (kernels % 2)
        CALL(handle, cudaGraphInstantiate, &made_here.exec, made_here.graph, 0);
    else
        CALL(handle, cudaGraphInstantiateWithParams, &made_here.exec, made_here.graph, &params);
    return made_here;
}

void play_graphs(Play *play)
{
    enum { FIRST_KERNELS = 5, SECOND_KERNELS = 2, FIRST_LAUNCHES = 20, SECOND_LAUNCHES = 7 };
    Api api = load_api(play->cudart[0]);
    void *handle = api.handle;
    cudaStream_t stream;
    cudaGraphExecUpdateResultInfo info;
    if (!play->kernel_ns)
        play->kernel_ns = 20000;
    CALL(handle, cudaStreamCreate, &stream);
    Recorded first = record(play, &api, stream, FIRST_KERNELS);
    Recorded second = record(play, &api, stream, SECOND_KERNELS);
    for (int i = 0; i < FIRST_LAUNCHES; i++) {
        CALL(handle, cudaGraphLaunch, first.exec, stream);
        if (i < SECOND_LAUNCHES)
            CALL(handle, cudaGraphLaunch, second.exec, stream);
        CALL(handle, cudaStreamSynchronize, stream);
    }
    CALL(handle, cudaGraphExecUpdate, second.exec, second.graph, &info);
    CALL(handle, cudaGraphExecDestroy, first.exec);
    CALL(handle, cudaGraphDestroy, first.graph);
    CALL(handle, cudaGraphDestroy, second.graph);
    CALL(handle, cudaGraphExecDestroy, second.exec);
    CALL(handle, cudaStreamDestroy, stream);
    printf("graph %" PRIuPTR " %" PRIuPTR " %d %d\n", (uintptr_t)first.graph,
           (uintptr_t)first.exec, FIRST_KERNELS, FIRST_LAUNCHES);
    printf("graph %" PRIuPTR " %" PRIuPTR " %d %d\n", (uintptr_t)second.graph,
           (uintptr_t)second.exec, SECOND_KERNELS, SECOND_LAUNCHES);
    print_end(play, "graphs");
    printf(",\"kernel_ns\":%" PRIu64 "}\n", play->kernel_ns);
}

// void wide_kernel<10000, 10001, ...>(float*), as a compiler writes it.
static char *long_name(void)
{
    char *name = malloc(64 + LONG_ARGUMENTS * 16);
    if (!name)
        die("no memory");
    char *end = name + sprintf(name, "_Z11wide_kernelIJ");
    for (int i = 0; i < LONG_ARGUMENTS; i++)
        end += sprintf(end, "Li%dE", 10000 + i);
    strcpy(end, "EEvPf");
    return name;
}

// A kernel of PyTorch's, with templates in its name.
static const char template_name[] =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEE"
    "EviT0_T1_";

static void say(const char *name, const void *handle, uint64_t launches)
{
    printf("function %s %" PRIuPTR " %" PRIu64 "\n", name, (uintptr_t)handle, launches);
}

static void by_module(Play *play, const Api *api, const char *name, cudaStream_t stream)
{
    static const char image[] = ".version 8.0";
    CUmodule module;
    CUfunction function;
    CALL(api->handle, cuModuleLoadData, &module, image);
    CALL(api->handle, cuModuleGetFunction, &function, module, name);
    for (uint64_t i = 0; i < play->rounds; i++)
        CALL(api->handle, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    CALL(api->handle, cuModuleUnload, module);
    say(name, function, play->rounds);
}

static void by_library(Play *play, const Api *api, const char *name, cudaStream_t stream)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, NULL, 0};
    CALL(api->handle, cuLibraryLoadFromFile, &library, "/proc/self/exe", NULL, NULL, 0, NULL,
         NULL, 0);
    CALL(api->handle, cuLibraryGetKernel, &kernel, library, name);
    CALL(api->handle, cuKernelGetFunction, &function, kernel);
    for (uint64_t i = 0; i < play->rounds; i++)
        CALL(api->handle, cuLaunchKernelEx, &config, function, NULL, NULL);
    CALL(api->handle, cuLibraryUnload, library);
    say(name, function, play->rounds);
}

static void by_runtime(Play *play, const Api *api, const char *name, cudaStream_t stream)
{
    dim3 one = {1, 1, 1};
    void *kernel = api->simgpuKernel(name, play->kernel_ns);
    for (uint64_t i = 0; i < play->rounds; i++)
        CALL(api->handle, cudaLaunchKernel, kernel, one, one, NULL, 0, stream);
    say(name, kernel, play->rounds);
}

void play_modules(Play *play)
{
    Api api = load_api(play->cudart[0]);
    char *wide = long_name();
    cudaStream_t stream;
    CALL(api.handle, cudaStreamCreate, &stream);
    by_module(play, &api, "plain_kernel", stream);
    by_module(play, &api, wide, stream);
    by_library(play, &api, template_name, stream);
    by_runtime(play, &api, "_Z10lazy_firstPfi", stream);
    by_runtime(play, &api, "_Z11lazy_secondPfi", stream);
    CALL(api.handle, cudaStreamSynchronize, stream);
    free(wide);
    print_end(play, "modules");
    printf(",\"rounds\":%" PRIu64 "}\n", play->rounds);
}
