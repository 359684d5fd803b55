// SPDX-License-Identifier: Apache-2.0
// simjob's load: an exact number of calls, at a rate or as fast as it goes.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "simjob.h"

#define PACE_NS 1000000u // a paced thread wakes up every millisecond
#define DEVICE_BUFFER (1u << 16)

typedef struct Worker {
    const Options *options;
    const Api *api;
    pthread_barrier_t *start;
    uint64_t quota;
    uint64_t per_second; // 0 = unpaced
    uint64_t random;     // xorshift state: the same sequence in every run
    cudaStream_t stream;
    cudaEvent_t event;
    void *kernel;
    char *device_buffer;
    void *device_slot, *async_slot, *host_slot; // allocations made, not yet freed
    char host_buffer[DEVICE_BUFFER];
    Result result;
} Worker;

static uint64_t next_random(Worker *worker)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return worker->random;
}

static int launch(Worker *worker)
{
    dim3 one = {1, 1, 1};
    return worker->api->cudaLaunchKernel(worker->kernel, one, one, NULL, 0, worker->stream);
}

static int launch_driver(Worker *worker)
{
    return (int)worker->api->cuLaunchKernel(worker->kernel, 1, 1, 1, 1, 1, 1, 0,
                                            worker->stream, NULL, NULL);
}

static int launch_driver_ex(Worker *worker)
{
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, worker->stream, NULL, 0};
    return (int)worker->api->cuLaunchKernelEx(&config, worker->kernel, NULL, NULL);
}

static size_t copy_size(Worker *worker)
{
    return 256 + next_random(worker) % (DEVICE_BUFFER / 2 - 256);
}

static int copy(Worker *worker, enum cudaMemcpyKind kind)
{
    char *device = worker->device_buffer;
    char *to = kind == cudaMemcpyDeviceToHost ? worker->host_buffer : device;
    char *from = kind == cudaMemcpyHostToDevice ? worker->host_buffer
                                                : device + DEVICE_BUFFER / 2;
    return worker->api->cudaMemcpyAsync(to, from, copy_size(worker), kind, worker->stream);
}

static int memset_some(Worker *worker)
{
    return worker->api->cudaMemsetAsync(worker->device_buffer, 0, copy_size(worker),
                                        worker->stream);
}

// Allocations come in pairs: the operation frees what it allocated before.
static int device_pair(Worker *worker)
{
    if (!worker->device_slot)
        return worker->api->cudaMalloc(&worker->device_slot,
                                       1024 + next_random(worker) % (1u << 22));
    void *ptr = worker->device_slot;
    worker->device_slot = NULL;
    return worker->api->cudaFree(ptr);
}

static int async_pair(Worker *worker)
{
    if (!worker->async_slot)
        return worker->api->cudaMallocAsync(
            &worker->async_slot, 512 + next_random(worker) % (1u << 20), worker->stream);
    void *ptr = worker->async_slot;
    worker->async_slot = NULL;
    return worker->api->cudaFreeAsync(ptr, worker->stream);
}

static int host_pair(Worker *worker)
{
    if (!worker->host_slot)
        return worker->api->cudaMallocHost(&worker->host_slot,
                                           64 + next_random(worker) % 8192);
    void *ptr = worker->host_slot;
    worker->host_slot = NULL;
    return worker->api->cudaFreeHost(ptr);
}

// One call of the mix. Of 64: 30 launches of the runtime's, the rest as below.
static int mixed_call(Worker *worker)
{
    unsigned dice = (unsigned)(next_random(worker) >> 32) % 64;
    if (dice < 30) return launch(worker);
    if (dice < 35) return launch_driver(worker);
    if (dice < 39) return launch_driver_ex(worker);
    if (dice < 42) return copy(worker, cudaMemcpyHostToDevice);
    if (dice < 45) return copy(worker, cudaMemcpyDeviceToHost);
    if (dice < 47) return copy(worker, cudaMemcpyDeviceToDevice);
    if (dice < 50) return memset_some(worker);
    if (dice < 54) return device_pair(worker);
    if (dice < 57) return async_pair(worker);
    if (dice < 60) return worker->api->cudaStreamSynchronize(worker->stream);
    if (dice < 62) return worker->api->cudaStreamWaitEvent(worker->stream, worker->event, 0);
    if (dice < 63) return worker->api->cudaDeviceSynchronize();
    return host_pair(worker);
}

// Counts a call outside the load proper.
static void setup_call(Worker *worker, int error)
{
    worker->result.setup_calls++;
    if (error)
        die("a setup call failed with error %d", error);
}

static void set_up(Worker *worker)
{
    const Api *api = worker->api;
    worker->kernel = api->simgpuKernel("simjob_kernel", worker->options->kernel_ns);
    setup_call(worker, api->cudaSetDevice(0));
    setup_call(worker, api->cudaStreamCreate(&worker->stream));
    setup_call(worker, api->cudaEventCreate(&worker->event));
    setup_call(worker, api->cudaEventRecord(worker->event, worker->stream));
    setup_call(worker, api->cudaMalloc((void **)&worker->device_buffer, DEVICE_BUFFER));
}

static void clean_up(Worker *worker)
{
    const Api *api = worker->api;
    setup_call(worker, api->cudaStreamSynchronize(worker->stream));
    if (worker->device_slot)
        setup_call(worker, api->cudaFree(worker->device_slot));
    if (worker->async_slot)
        setup_call(worker, api->cudaFreeAsync(worker->async_slot, worker->stream));
    if (worker->host_slot)
        setup_call(worker, api->cudaFreeHost(worker->host_slot));
    setup_call(worker, api->cudaFree(worker->device_buffer));
    setup_call(worker, api->cudaEventDestroy(worker->event));
    setup_call(worker, api->cudaStreamDestroy(worker->stream));
}

static void burst(Worker *worker, uint64_t calls)
{
    uint64_t errors = 0;
    if (worker->options->mixed)
        for (uint64_t i = 0; i < calls; i++)
            errors += mixed_call(worker) != 0;
    else
        for (uint64_t i = 0; i < calls; i++)
            errors += launch(worker) != 0;
    worker->result.calls += calls;
    worker->result.errors += errors;
}

// Makes the calls due by now, then sleeps until the next tick.
static void paced(Worker *worker, uint64_t start)
{
    uint64_t tick = start;
    while (worker->result.calls < worker->quota) {
        double elapsed = (double)(clock_ns(CLOCK_MONOTONIC) - start) / 1e9;
        uint64_t due = (uint64_t)(elapsed * (double)worker->per_second) + 1;
        if (due > worker->quota)
            due = worker->quota;
        if (due > worker->result.calls)
            burst(worker, due - worker->result.calls);
        tick += PACE_NS;
        struct timespec at = {(time_t)(tick / 1000000000u), (long)(tick % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
            ;
    }
}

static void *work(void *arg)
{
    Worker *worker = arg;
    set_up(worker);
    pthread_barrier_wait(worker->start);
    uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    worker->result.start_ns = clock_ns(CLOCK_MONOTONIC);
    if (worker->per_second)
        paced(worker, worker->result.start_ns);
    else
        burst(worker, worker->quota);
    worker->result.end_ns = clock_ns(CLOCK_MONOTONIC);
    worker->result.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    clean_up(worker);
    return NULL;
}

static void add_result(Result *total, const Result *part)
{
    total->calls += part->calls;
    total->setup_calls += part->setup_calls;
    total->errors += part->errors;
    total->wall_ns += part->end_ns - part->start_ns;
    total->cpu_ns += part->cpu_ns;
    if (!total->start_ns || part->start_ns < total->start_ns)
        total->start_ns = part->start_ns;
    if (part->end_ns > total->end_ns)
        total->end_ns = part->end_ns;
}

void run_load(const Options *options, const Api *api, int process, Result *result)
{
    int threads = options->threads;
    int all_threads = options->procs * threads;
    Worker *workers = calloc((size_t)threads, sizeof *workers);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    pthread_barrier_t start;
    if (!workers || !handles || pthread_barrier_init(&start, NULL, (unsigned)threads))
        die("cannot set up %d threads", threads);
    for (int i = 0; i < threads; i++) {
        int number = process * threads + i;
        workers[i] = (Worker){
            .options = options,
            .api = api,
            .start = &start,
            .quota = share(options->calls, all_threads, number),
            .per_second = options->rate ? share(options->rate, all_threads, number) : 0,
            .random = 0x9e3779b97f4a7c15u + (uint64_t)number,
        };
        // A rate below one call per second and thread still has to progress.
        if (options->rate && !workers[i].per_second)
            workers[i].per_second = 1;
        if (pthread_create(&handles[i], NULL, work, &workers[i]))
            die("cannot start a thread");
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        add_result(result, &workers[i].result);
    }
    free(workers);
    free(handles);
}
