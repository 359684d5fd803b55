// SPDX-License-Identifier: Apache-2.0
// A caching allocator in the manner of PyTorch's: segments from cudaMalloc,
// cut into blocks, kept when freed, and given back only when memory runs out.
#include "c10.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cuda_runtime.h"
#include "simgpu.h"

#define MIB ((size_t)1 << 20)
#define ROUND 512u
#define SMALL_LIMIT (1 * MIB)    // smaller requests share small segments
#define SMALL_SEGMENT (2 * MIB)
#define LARGE_SEGMENT (20 * MIB) // for requests below LARGE_LIMIT
#define LARGE_LIMIT (10 * MIB)
#define MAX_DEVICES 8
#define OUT_OF_MEMORY 2

// Blocks of one segment form a list in address order; the first block of a
// segment has no `before`. Segments are found through the list of all blocks.
typedef struct Block {
    char *address;
    size_t size;
    int device;
    bool used, small;
    struct Block *before, *after; // neighbours in the segment
    struct Block *next, *previous; // all blocks
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *blocks;
static size_t allocated[MAX_DEVICES], reserved[MAX_DEVICES];

static C10Reporter reporter;

// A report in progress. It is logged when its function is left, also when the
// reporter's exception is what leaves it: this file has unwind cleanups.
typedef struct Report {
    SimCall call;
    SimDetail detail;
    int result;
} Report;

static void report_left(Report *report)
{
    report->call.detail = &report->detail;
    simgpu_leave(&report->call, report->result);
}

#define BEGIN_REPORT(name, ptr, size)                                                   \
    Report report __attribute__((cleanup(report_left))) = {                             \
        .call = {.function = FN_##name, .pointer = (uintptr_t)(ptr),                    \
                 .bytes = (uint64_t)((size) < 0 ? -(size) : (size))},                   \
        .detail = {.kind = DETAIL_REPORT,                                               \
                   .values = {total_allocated, total_reserved, (uint64_t)(size)},       \
                   .numbers = {device.type, device.index}},                             \
        .result = C10SIM_THROWN};                                                       \
    simgpu_enter(&report.call)

#define REPORT(ptr, size)                                                               \
    do {                                                                                \
        if (reporter)                                                                   \
            reporter((ptr), (size), total_allocated, total_reserved, device);           \
        report.result = 0;                                                              \
    } while (0)

__attribute__((noinline)) void report_memory_usage(void *ptr, int64_t size,
                                                   size_t total_allocated,
                                                   size_t total_reserved, C10Device device)
{
    BEGIN_REPORT(reportMemoryUsage, ptr, size);
    REPORT(ptr, size);
}

__attribute__((noinline)) void report_out_of_memory(int64_t size, size_t total_allocated,
                                                    size_t total_reserved, C10Device device)
{
    BEGIN_REPORT(reportOutOfMemory, 0, size);
    REPORT(NULL, size);
}

API(void, c10sim_set_reporter, (C10Reporter fresh))
{
    QUERY_BEGIN();
    reporter = fresh;
}

// A lock that is released at the end of its block, also after an exception.
static void unlock(pthread_mutex_t **held)
{
    pthread_mutex_unlock(*held);
}

#define LOCKED()                                                          \
    pthread_mutex_t *held __attribute__((cleanup(unlock))) = &lock;       \
    pthread_mutex_lock(held)

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static Block *new_block(Block like)
{
    Block *block = malloc(sizeof *block);
    if (!block)
        abort();
    *block = like;
    block->previous = NULL;
    block->next = blocks;
    if (blocks)
        blocks->previous = block;
    blocks = block;
    return block;
}

static void forget_block(Block *block)
{
    if (block->previous)
        block->previous->next = block->next;
    else
        blocks = block->next;
    if (block->next)
        block->next->previous = block->previous;
    free(block);
}

// The smallest free block that fits, as PyTorch's allocator chooses.
static Block *find_block(size_t size, int device, bool small)
{
    Block *best = NULL;
    for (Block *block = blocks; block; block = block->next) {
        if (block->used || block->device != device || block->small != small ||
            block->size < size)
            continue;
        if (!best || block->size < best->size)
            best = block;
    }
    return best;
}

// Gives back the segments that are wholly free.
static void release_cached(void)
{
    for (Block *block = blocks, *next; block; block = next) {
        next = block->next;
        if (block->used || block->before || block->after)
            continue;
        cudaFree(block->address);
        reserved[block->device] -= block->size;
        forget_block(block);
    }
}

static Block *new_segment(size_t size, int device, bool small)
{
    size_t bytes = small                ? SMALL_SEGMENT
                   : size < LARGE_LIMIT ? LARGE_SEGMENT
                                        : round_up(size, 2 * MIB);
    void *address;
    int current = 0;
    cudaGetDevice(&current);
    if (current != device)
        cudaSetDevice(device);
    cudaError_t error = cudaMalloc(&address, bytes);
    if (error) {
        cudaGetLastError();
        release_cached();
        error = cudaMalloc(&address, bytes);
    }
    if (current != device)
        cudaSetDevice(current);
    if (error)
        return NULL;
    reserved[device] += bytes;
    return new_block(
        (Block){.address = address, .size = bytes, .device = device, .small = small});
}

static void split(Block *block, size_t size)
{
    size_t rest = block->size - size;
    // A large block keeps a remainder that could only serve small requests.
    if (rest < (block->small ? ROUND : SMALL_LIMIT + 1))
        return;
    Block *tail = new_block((Block){.address = block->address + size,
                                    .size = rest,
                                    .device = block->device,
                                    .small = block->small,
                                    .before = block,
                                    .after = block->after});
    if (tail->after)
        tail->after->before = tail;
    block->after = tail;
    block->size = size;
}

// Joins a free block with the free block that follows it.
static void join_after(Block *block)
{
    Block *after = block->after;
    if (!after || after->used || block->used)
        return;
    block->size += after->size;
    block->after = after->after;
    if (block->after)
        block->after->before = block;
    forget_block(after);
}

API(int, c10sim_alloc, (size_t bytes, int device, void **out))
{
    QUERY_BEGIN();
    if (!bytes || device < 0 || device >= MAX_DEVICES)
        return 1;
    size_t size = round_up(bytes, ROUND);
    bool small = size < SMALL_LIMIT;
    LOCKED();
    Block *block = find_block(size, device, small);
    if (!block)
        block = new_segment(size, device, small);
    if (block) {
        split(block, size);
        block->used = true;
        allocated[device] += block->size;
        *out = block->address;
        report_memory_usage(block->address, (int64_t)block->size, allocated[device],
                            reserved[device], (C10Device){1, (int8_t)device});
    } else {
        report_out_of_memory((int64_t)size, allocated[device], reserved[device],
                             (C10Device){1, (int8_t)device});
    }
    return block ? 0 : OUT_OF_MEMORY;
}

typedef struct {
    size_t bytes;
    int device;
    void **out;
    int result;
} Errand;

static void *run_errand(void *argument)
{
    Errand *errand = argument;
    errand->result = c10sim_alloc(errand->bytes, errand->device, errand->out);
    return NULL;
}

API(int, c10sim_alloc_elsewhere, (size_t bytes, int device, void **out))
{
    QUERY_BEGIN();
    Errand errand = {bytes, device, out, OUT_OF_MEMORY};
    pthread_t thread;
    if (!pthread_create(&thread, NULL, run_errand, &errand))
        pthread_join(thread, NULL);
    return errand.result;
}

API(int, c10sim_free, (void *ptr))
{
    QUERY_BEGIN();
    LOCKED();
    Block *block = blocks;
    while (block && !(block->used && block->address == ptr))
        block = block->next;
    if (block) {
        int device = block->device;
        int64_t size = (int64_t)block->size;
        allocated[device] -= block->size;
        block->used = false;
        join_after(block);
        if (block->before)
            join_after(block->before);
        // Last, because the report may be left by an exception.
        report_memory_usage(ptr, -size, allocated[device], reserved[device],
                            (C10Device){1, (int8_t)device});
        return 0;
    }
    return 1;
}

API(int, c10sim_empty_cache, (void))
{
    QUERY_BEGIN();
    LOCKED();
    release_cached();
    return 0;
}

API(void, c10sim_totals, (int device, size_t *total_allocated, size_t *total_reserved))
{
    QUERY_BEGIN();
    LOCKED();
    *total_allocated = allocated[device];
    *total_reserved = reserved[device];
}
