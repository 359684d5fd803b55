// SPDX-License-Identifier: Apache-2.0
// simjob windows: a loop of cheap calls that says for each window of time how
// many it made and what CPU time they took, to see what tracing costs. With a
// rate, a fixed amount of computing lies between the calls: as much as gives
// that rate here and now, measured unless it is given.
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "simjob_plays.h"

#define CHECK_EVERY 32u // rounds between looks at the clock, when nothing is computed
#define MEASURE 400u
#define TRIES 5

typedef struct Loop {
    const Api *api;
    void *kernel;
    cudaStream_t stream;
    cudaEvent_t event;
    uint64_t work;
    uint64_t rounds;
    bool events;
} Loop;

static uint64_t compute(uint64_t units)
{
    uint64_t value = 0x9e3779b97f4a7c15u;
    for (uint64_t i = 0; i < units; i++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    // Keeps the compiler from leaving the computing out.
    __asm__ volatile("" : "+r"(value));
    return value;
}

static void one_round(Play *play, Loop *loop)
{
    dim3 one = {1, 1, 1};
    int error = loop->events ? loop->api->cudaEventRecord(loop->event, loop->stream)
                             : loop->api->cudaLaunchKernel(loop->kernel, one, one, NULL, 0,
                                                           loop->stream);
    made(play, "a call in the loop", error);
    loop->rounds++;
    if (loop->work)
        compute(loop->work);
}

// Units of computing that make one round take 1 / rate seconds.
static uint64_t measure_work(Play *play, Loop *loop)
{
    // The least of a few tries each: others may take the CPU meanwhile.
    double call = 1e9, unit = 1e9;
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = clock_ns(CLOCK_MONOTONIC);
        for (unsigned round = 0; round < MEASURE; round++)
            one_round(play, loop);
        uint64_t between = clock_ns(CLOCK_MONOTONIC);
        compute(1000000);
        double calls = (double)(between - start) / MEASURE;
        double units = (double)(clock_ns(CLOCK_MONOTONIC) - between) / 1e6;
        call = calls < call ? calls : call;
        unit = units < unit ? units : unit;
    }
    double units = (1e9 / (double)play->rate - call) / unit;
    return units > 1 ? (uint64_t)units : 1;
}

static bool stdin_ended(void)
{
    char byte;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) > 0)
        if (read(0, &byte, 1) != 1)
            return true;
    return false;
}

static void one_window(Play *play, Loop *loop, uint64_t end)
{
    uint64_t rounds = loop->rounds, cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t now;
    do {
        for (unsigned i = 0; i < (loop->work ? 1 : CHECK_EVERY); i++)
            one_round(play, loop);
        now = clock_ns(CLOCK_MONOTONIC);
    } while (now < end);
    cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    printf("window %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", now, loop->rounds - rounds, cpu);
    fflush(stdout);
}

void play_windows(Play *play)
{
    Api api = load_api(play->cudart[0]);
    Loop loop = {.api = &api, .events = play->events, .work = play->work};
    loop.kernel = api.simgpuKernel("simjob_windows", play->kernel_ns);
    made(play, "cudaStreamCreate", api.cudaStreamCreate(&loop.stream));
    made(play, "cudaEventCreate", api.cudaEventCreate(&loop.event));
    if (play->rate && !loop.work)
        loop.work = measure_work(play, &loop);
    uint64_t window = play->window_ms * 1000000u, start = clock_ns(CLOCK_MONOTONIC);
    printf("start %" PRIu64 " work %" PRIu64 "\n", start, loop.work);
    loop.rounds = 0;
    for (uint64_t end = start + window;; end += window) {
        one_window(play, &loop, end);
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (play->for_ms ? now >= start + play->for_ms * 1000000u : stdin_ended())
            break;
        if (now > end + window)
            end = now; // it did not run for a while: the next window is a whole one
    }
    made(play, "cudaStreamSynchronize", api.cudaStreamSynchronize(loop.stream));
    print_end(play, "windows");
    printf(",\"rounds\":%" PRIu64 ",\"work\":%" PRIu64 "}\n", loop.rounds, loop.work);
}
