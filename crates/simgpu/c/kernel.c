// SPDX-License-Identifier: Apache-2.0
// Kernels: a name and a duration, in a fixed pool, so that a handle is checked
// by its address alone.
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define MAX_KERNELS 4096
#define DEFAULT_KERNEL_NS 2000

// A kernel has three handles, all inside its entry: the entry itself is what
// programs launch, and what the driver hands out lies behind.
typedef struct SimKernel {
    uint64_t duration_ns;
    char kernel_handle[8];   // CUkernel
    char function_handle[8]; // CUfunction
    char *name;
} SimKernel;

static SimKernel kernels[MAX_KERNELS];
static unsigned kernel_count;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

// With the lock held.
static SimKernel *add(const char *name, uint64_t duration_ns)
{
    char *copy = kernel_count < MAX_KERNELS ? strdup(name) : NULL;
    if (!copy)
        return NULL;
    SimKernel *kernel = &kernels[kernel_count++];
    kernel->duration_ns = duration_ns;
    kernel->name = copy;
    return kernel;
}

void *simgpu_kernel(const char *name, uint64_t duration_ns)
{
    SimKernel *found = NULL;
    pthread_mutex_lock(&pool_lock);
    for (unsigned i = 0; i < kernel_count && !found; i++)
        if (kernels[i].duration_ns == duration_ns && strcmp(kernels[i].name, name) == 0)
            found = &kernels[i];
    if (!found)
        found = add(name, duration_ns);
    pthread_mutex_unlock(&pool_lock);
    return found;
}

SimKernel *kernel_by_name(const char *name)
{
    SimKernel *same = NULL, *alike = NULL;
    pthread_mutex_lock(&pool_lock);
    for (unsigned i = 0; i < kernel_count && !same; i++) {
        if (kernels[i].name == name)
            same = &kernels[i];
        else if (!alike && strcmp(kernels[i].name, name) == 0)
            alike = &kernels[i];
    }
    if (!same)
        same = alike ? alike : add(name, DEFAULT_KERNEL_NS);
    pthread_mutex_unlock(&pool_lock);
    return same;
}

SimKernel *kernel_of(const void *handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)kernels;
    return offset < sizeof kernels ? &kernels[offset / sizeof *kernels] : NULL;
}

CUkernel kernel_handle(SimKernel *kernel)
{
    return (CUkernel)kernel->kernel_handle;
}

CUfunction kernel_function(SimKernel *kernel)
{
    return (CUfunction)kernel->function_handle;
}

uint64_t kernel_duration(const void *function)
{
    const SimKernel *kernel = kernel_of(function);
    return kernel ? kernel->duration_ns : DEFAULT_KERNEL_NS;
}

const char *simgpu_kernel_name(const void *function)
{
    QUERY_BEGIN();
    const SimKernel *kernel = kernel_of(function);
    return kernel ? kernel->name : NULL;
}
