// SPDX-License-Identifier: Apache-2.0
// The simulated libc10: PyTorch's two memory profiler entry points under
// their C++ names, and a small caching allocator that calls them.
#ifndef SIMGPU_C10_H
#define SIMGPU_C10_H

#include <stddef.h>
#include <stdint.h>

// c10::Device: type 1 is CUDA. Passed by value in one register.
typedef struct {
    int8_t type;
    int8_t index;
} C10Device;

#pragma GCC visibility push(default)

// size is positive for an allocation and negative for a free.
void report_memory_usage(void *ptr, int64_t size, size_t total_allocated,
                         size_t total_reserved, C10Device device)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void report_out_of_memory(int64_t size, size_t total_allocated, size_t total_reserved,
                          C10Device device)
    __asm__("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

// The sink of both reports, like PyTorch's profiler; NULL (the default) for no sink.
// Out of memory has no pointer. A reporter may throw C++ exceptions: they pass
// through the functions here, which log the call with C10SIM_THROWN.
typedef void (*C10Reporter)(void *ptr, int64_t size, size_t total_allocated,
                            size_t total_reserved, C10Device device);
void c10sim_set_reporter(C10Reporter reporter);
#define C10SIM_THROWN (-1)

// What the allocator's next report would say of a device.
void c10sim_totals(int device, size_t *total_allocated, size_t *total_reserved);

// Return a cudaError_t: 0, 2 (out of memory), or 1 (unknown pointer).
int c10sim_alloc(size_t bytes, int device, void **out);
// On a thread that runs no Python, as autograd's own do; waits for it.
int c10sim_alloc_elsewhere(size_t bytes, int device, void **out);
int c10sim_free(void *ptr);
int c10sim_empty_cache(void);

#pragma GCC visibility pop
#endif
