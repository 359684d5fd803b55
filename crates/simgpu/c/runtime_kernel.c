// SPDX-License-Identifier: Apache-2.0
// Lazy loading, as the real runtime does it: the program's device code is
// loaded as one library, and a kernel is looked up in it by its name when it
// is launched for the first time.
#include <pthread.h>
#include <stdbool.h>

#include "runtime_internal.h"

#define SLOTS 16384u // more than there can be kernels; a power of two

typedef struct Slot {
    const void *func; // NULL = empty; written after `function`
    CUfunction function;
} Slot;

static Slot slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary library;
static const char fat_binary[] = "the program's device code";

static unsigned hash(const void *func)
{
    return (unsigned)(((uint64_t)(uintptr_t)func * 0x9e3779b97f4a7c15u) >> 50) % SLOTS;
}

// The slot of a kernel, or the empty one where it belongs.
static Slot *find(const void *func)
{
    unsigned i = hash(func);
    for (;; i = (i + 1) % SLOTS) {
        const void *there = __atomic_load_n(&slots[i].func, __ATOMIC_ACQUIRE);
        if (!there || there == func)
            return &slots[i];
    }
}

static CUresult look_up(const char *name, CUfunction *function)
{
    CUkernel kernel;
    CUresult result = CUDA_SUCCESS;
    if (!library)
        result = cuLibraryLoadData(&library, fat_binary, NULL, NULL, 0, NULL, NULL, 0);
    if (result == CUDA_SUCCESS)
        result = cuLibraryGetKernel(&kernel, library, name);
    if (result == CUDA_SUCCESS)
        result = cuKernelGetFunction(function, kernel);
    return result;
}

CUresult runtime_function(const void *func, CUfunction *function)
{
    if (!func)
        return CUDA_ERROR_INVALID_DEVICE_FUNCTION;
    Slot *slot = find(func);
    if (__atomic_load_n(&slot->func, __ATOMIC_ACQUIRE) == func) {
        *function = slot->function;
        return CUDA_SUCCESS;
    }
    const char *name = simgpu_kernel_name(func);
    *function = (CUfunction)func;
    if (!name)
        return CUDA_SUCCESS; // no kernel of the simulator's: the driver takes it as it is
    pthread_mutex_lock(&lock);
    slot = find(func); // another thread may have filled it
    CUresult result = slot->func ? CUDA_SUCCESS : look_up(name, &slot->function);
    if (result == CUDA_SUCCESS) {
        *function = slot->function;
        __atomic_store_n(&slot->func, func, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
