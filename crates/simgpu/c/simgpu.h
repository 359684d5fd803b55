// SPDX-License-Identifier: Apache-2.0
// What libcuda.so.1 exports beyond the driver API, for its sibling libraries
// and for tests: call logging, kernels with a chosen duration, and a hook.
#ifndef SIMGPU_H
#define SIMGPU_H

#include <stdint.h>

enum SimFunction {
#define FN(name) FN_##name,
#define FN_AS(id, symbol) FN_##id,
#include "functions.def"
#undef FN
#undef FN_AS
    FN_COUNT
};

// Copy directions and engines share one numbering: an engine serves exactly
// one direction, and 0 is the compute engine (or "no direction").
enum SimDirection {
    SIM_COMPUTE = 0,
    SIM_H2D = 1,
    SIM_D2H = 2,
    SIM_D2D = 3,
    SIM_ENGINES = 4,
    SIM_H2H = 4,
};

// What a SimDetail is about.
enum SimDetailKind {
    DETAIL_REPORT = 1,     // c10: totals {allocated, reserved, signed size}, {device type, index}
    DETAIL_COMM = 2,       // NCCL: {made or used, parent, id bytes 0-7, 8-15}, {ranks, rank, color, key}
    DETAIL_COLLECTIVE = 3, // NCCL: {communicator, sequence, count}, {ranks, rank, data type, peer or root}
    DETAIL_GRAPH = 4,      // {graph, exec}, {pieces of work}
    DETAIL_FUNCTION = 5,   // {function or kernel, module or library}; the text is its name
    DETAIL_MODULE = 6,     // {module or library, image}; the text is the file's path, if any
};

// What one call was about beyond the fields of SimCall: the log writes it as
// a record of its own, right before the call's.
typedef struct SimDetail {
    uint64_t values[5];
    int32_t numbers[4];
    uint8_t kind;
} SimDetail;

// One API call in progress, on the caller's stack.
typedef struct SimCall {
    uint64_t t_enter; // CLOCK_MONOTONIC ns; only read at log level full
    uint64_t bytes;
    uint64_t pointer;
    uint64_t stream; // the handle as the caller passed it
    uint16_t function;
    uint8_t depth; // 0 = called by the program, not by another API function
    uint8_t direction;
    const SimDetail *detail; // NULL: none
    const char *text;        // a name that belongs to the call; NULL: none
} SimCall;

#pragma GCC visibility push(default)

void simgpu_enter(SimCall *call);
// Logs the call and hands `result` back, so that it can end a function.
int simgpu_leave(SimCall *call, int result);

// A kernel handle, good as CUfunction and as cudaLaunchKernel's `func`.
// The same name and duration give the same handle. NULL when out of handles.
void *simgpu_kernel(const char *name, uint64_t duration_ns);
// The name of a handle made by simgpu_kernel, or NULL. Looking a kernel up by
// this very string finds that handle's kernel, even where names are shared.
const char *simgpu_kernel_name(const void *function);

// Sets this thread's hook: cuStreamSynchronize calls it before it waits, as a
// stand-in for the callbacks that make real API calls nest. NULL removes it.
void simgpu_set_hook(void (*hook)(void *), void *arg);

#pragma GCC visibility pop

#define API(type, name, params) type name params

// Opens the log entry of an API function; further arguments initialise
// fields of SimCall, e.g. BEGIN(cuMemFree_v2, .pointer = ptr).
#define BEGIN(name, ...)                                             \
    SimCall call = {.function = FN_##name, ##__VA_ARGS__};           \
    simgpu_enter(&call)

// Opens a function that is not logged. Compilers leave the frame pointer out
// of leaf functions even with -fno-omit-frame-pointer; reading it brings it back.
#define QUERY_BEGIN() __asm__ volatile("" : : "r"(__builtin_frame_address(0)))

#endif
