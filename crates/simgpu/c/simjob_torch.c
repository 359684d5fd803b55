// SPDX-License-Identifier: Apache-2.0
// simjob torch: thousands of allocations and frees through the caching
// allocator of libc10, with what it holds at known times.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "c10.h"
#include "simjob_plays.h"

#define HELD 64      // blocks of memory held at a time on each device
#define STEPS 500u   // allocations and frees in one round on each device
#define DEVICES 2    // used at most
#define TOO_MUCH ((size_t)1 << 50)

typedef struct Torch {
    __typeof__(&c10sim_alloc) alloc;
    __typeof__(&c10sim_free) give_back;
    __typeof__(&c10sim_empty_cache) empty_cache;
    __typeof__(&c10sim_totals) totals;
    int devices;
    uint64_t random;
    void *held[DEVICES][HELD];
    uint64_t allocs, frees;
} Torch;

static uint64_t next_random(Torch *torch)
{
    torch->random ^= torch->random << 13;
    torch->random ^= torch->random >> 7;
    torch->random ^= torch->random << 17;
    return torch->random;
}

// Mostly small ones, some of megabytes, as in training.
static size_t some_size(Torch *torch)
{
    uint64_t dice = next_random(torch) >> 32;
    size_t most = dice % 8 ? 1u << 18 : dice % 64 ? 4u << 20 : 24u << 20;
    return 1 + (next_random(torch) >> 16) % most;
}

static void release(Torch *torch, void **slot)
{
    if (torch->give_back(*slot))
        die("c10sim_free failed");
    *slot = NULL;
    torch->frees++;
}

static void step(Torch *torch, int device)
{
    void **slot = &torch->held[device][(next_random(torch) >> 32) % HELD];
    if (*slot) {
        release(torch, slot);
        return;
    }
    if (torch->alloc(some_size(torch), device, slot))
        die("c10sim_alloc failed");
    torch->allocs++;
}

static void checkpoint(const Torch *torch)
{
    for (int device = 0; device < torch->devices; device++) {
        size_t allocated, reserved;
        torch->totals(device, &allocated, &reserved);
        printf("checkpoint %" PRIu64 " %d %zu %zu\n", clock_ns(CLOCK_MONOTONIC), device,
               allocated, reserved);
    }
}

static void one_round(Torch *torch)
{
    for (unsigned i = 0; i < STEPS; i++)
        for (int device = 0; device < torch->devices; device++)
            step(torch, device);
    checkpoint(torch);
    torch->empty_cache();
    checkpoint(torch);
}

void play_torch(Play *play)
{
    Api api = load_api(play->cudart[0]);
    void *c10 = open_beside(play->cudart[0], "libc10.so");
    Torch torch = {
        .alloc = FROM(c10, c10sim_alloc),
        .give_back = FROM(c10, c10sim_free),
        .empty_cache = FROM(c10, c10sim_empty_cache),
        .totals = FROM(c10, c10sim_totals),
        .random = 0x9e3779b97f4a7c15u,
    };
    if (FROM(api.handle, cudaGetDeviceCount)(&torch.devices))
        die("cudaGetDeviceCount failed");
    torch.devices = torch.devices < DEVICES ? torch.devices : DEVICES;
    for (uint64_t i = 0; i < play->rounds; i++)
        one_round(&torch);
    void *never;
    if (torch.alloc(TOO_MUCH, 0, &never) != CUDA_ERROR_OUT_OF_MEMORY)
        die("memory did not run out");
    checkpoint(&torch);
    for (int device = 0; device < torch.devices; device++)
        for (int i = 0; i < HELD; i++)
            if (torch.held[device][i])
                release(&torch, &torch.held[device][i]);
    torch.empty_cache();
    checkpoint(&torch);
    // How often the allocator calls CUDA is its own affair: only reports are counted.
    play->made = torch.allocs + torch.frees + 1;
    print_end(play, "torch");
    printf(",\"allocs\":%" PRIu64 ",\"frees\":%" PRIu64 ",\"out_of_memory\":1}\n",
           torch.allocs, torch.frees);
}
