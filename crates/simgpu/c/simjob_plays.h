// SPDX-License-Identifier: Apache-2.0
// simjob MODE: short plays, each in the process itself, which makes an exactly
// known number of calls and ends with a line of JSON that says what it did.
#ifndef SIMGPU_SIMJOB_PLAYS_H
#define SIMGPU_SIMJOB_PLAYS_H

#include "simjob.h"

typedef struct Play {
    const char *cudart[MAX_COPIES];
    int copies;
    uint64_t calls;     // of a burst
    uint64_t rounds;
    uint64_t wait_ms;   // before the first library is loaded
    uint64_t for_ms;
    uint64_t rate;      // calls per second
    uint64_t window_ms;
    uint64_t work;      // units of computing between calls; 0: measured
    uint64_t kernel_ns;
    bool events;        // windows: cudaEventRecord in place of launches
    const char *self;
    char **rest;        // execs: the program and its arguments
    uint64_t made;      // calls so far, which is what the log must have (torch: reports)
} Play;

void play_late(Play *play);
void play_reload(Play *play);
void play_twocopies(Play *play);
void play_execs(Play *play);
void play_windows(Play *play);
void play_nccl(Play *play);
void play_torch(Play *play);
void play_graphs(Play *play);
void play_modules(Play *play);

// Counts a call, and ends the play if it failed.
void made(Play *play, const char *name, int error);
// Calls a function of a library and counts the call.
#define CALL(handle, name, ...) made(play, #name, (int)FROM(handle, name)(__VA_ARGS__))

// `calls` calls of cudaMalloc, cudaLaunchKernel, cudaStreamSynchronize and
// cudaFree in turn, starting over where the last burst ended.
typedef struct Burst {
    const Api *api;
    void *kernel;
    void *block;
    uint64_t step;
} Burst;
void burst_calls(Play *play, Burst *burst, uint64_t calls);
// Frees what the last burst left allocated.
void burst_end(Play *play, Burst *burst);

// The first part of the last line.
void print_end(const Play *play, const char *mode);
void sleep_ms(uint64_t ms);

#endif
