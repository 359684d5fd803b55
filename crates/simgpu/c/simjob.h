// SPDX-License-Identifier: Apache-2.0
// simjob: makes an exactly known number of API calls on the simulated stack.
#ifndef SIMGPU_SIMJOB_H
#define SIMGPU_SIMJOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda_driver.h"
#include "cuda_runtime.h"

#define MAX_PROCS 64
#define MAX_COPIES 8

typedef enum { MODE_LOAD, MODE_REENTER, MODE_OOM, MODE_EXIT_IN_CALL, MODE_TOUR } Mode;

typedef struct Options {
    const char *cudart[MAX_COPIES];
    int copies;
    int procs;
    int threads;
    uint64_t calls; // outermost calls, over all processes
    uint64_t rate;  // calls per second over all threads; 0 = unpaced
    uint64_t kernel_ns;
    uint64_t chunk; // --oom: bytes per allocation
    int linger_s;
    bool hold;
    bool mixed;
    Mode mode;
} Options;

// What one process did, in memory shared with the parent.
typedef struct Result {
    pid_t pid;
    uint64_t calls;       // outermost calls of the load itself
    uint64_t setup_calls; // outermost calls before and after it
    uint64_t inner_calls; // --reenter: calls made from the hook
    uint64_t errors;      // outermost calls that failed
    uint64_t start_ns;    // CLOCK_MONOTONIC, earliest thread
    uint64_t end_ns;      // CLOCK_MONOTONIC, latest thread
    uint64_t wall_ns;     // sum over threads of the time in the load
    uint64_t cpu_ns;      // sum over threads of the CPU time in the load
    uint64_t free_bytes;  // --oom: free when the second allocation failed
    uint64_t wanted_bytes; // --oom: contiguous bytes that were not to be had
} Result;

// Every function simjob calls, resolved with dlsym from the given libcudart
// (and, through its dependency, libcuda).
#define SIMJOB_FUNCTIONS(X)                                                              \
    X(cudaMalloc) X(cudaMallocAsync) X(cudaMallocHost) X(cudaFree) X(cudaFreeAsync)      \
    X(cudaFreeHost) X(cudaLaunchKernel) X(cudaMemcpyAsync) X(cudaMemsetAsync)            \
    X(cudaStreamCreate) X(cudaStreamDestroy) X(cudaStreamSynchronize)                    \
    X(cudaStreamWaitEvent) X(cudaEventCreate) X(cudaEventRecord) X(cudaEventDestroy)     \
    X(cudaDeviceSynchronize) X(cudaSetDevice) X(cudaMemGetInfo) X(cuLaunchKernel)        \
    X(cuLaunchKernelEx) X(simgpuKernel)

typedef struct Api {
    void *handle;
#define X(name) __typeof__(&name) name;
    SIMJOB_FUNCTIONS(X)
#undef X
    void (*simgpu_set_hook)(void (*hook)(void *), void *arg);
} Api;

uint64_t clock_ns(int clock);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The share of `total` that falls to number `index` of `parts`.
uint64_t share(uint64_t total, int parts, int index);
// A number of the command line; dies of anything else.
uint64_t number(const char *text);

Api load_api(const char *path);
void *resolve(void *handle, const char *name); // dlsym that cannot fail
void *open_beside(const char *path, const char *name); // a library in the folder of another

// A function of a library, with its type.
#define FROM(handle, name) ((__typeof__(&name))resolve(handle, #name))

// simjob MODE ...: what simjob_plays.h is about.
int play(int argc, char **argv);

// Each runs in a child process and fills in its result.
void run_load(const Options *options, const Api *api, int process, Result *result);
void run_reenter(const Options *options, const Api *api, int process, Result *result);
void run_oom(const Options *options, const Api *api, Result *result);
// Does not return: writes a byte to `blocked_fd` from inside the call, and
// stays there until it is killed.
void run_exit_in_call(const Api *api, int blocked_fd);
void run_tour(const Options *options, const Api *api, Result *result);

#endif
