// SPDX-License-Identifier: Apache-2.0
// What the files of the runtime API share. Every runtime function does its
// work by calling the exported driver functions, as the real library does.
#ifndef SIMGPU_RUNTIME_INTERNAL_H
#define SIMGPU_RUNTIME_INTERNAL_H

#include "cuda_driver.h"
#include "cuda_runtime.h"
#include "simgpu.h"
#ifdef SIMGPU_STATIC
#include "static_driver.h" // last: it gives the driver's functions another meaning
#endif

// Makes a context current on a thread's first call: its device's primary
// one, unless the program has made another one current with the driver API.
CUresult runtime_prepare(void);
// The driver's handle of a kernel, which its first launch has looked up.
CUresult runtime_function(const void *func, CUfunction *function);
// Logs the call and remembers an error for cudaGetLastError.
cudaError_t runtime_leave(SimCall *call, CUresult result);

#define END(result) return runtime_leave(&call, (result))

// Ends with the result of `driver_call`, made on a thread with a context.
#define END_WITH(driver_call)                                     \
    do {                                                          \
        CUresult result_ = runtime_prepare();                     \
        if (result_ == CUDA_SUCCESS)                              \
            result_ = (driver_call);                              \
        END(result_);                                             \
    } while (0)

#endif
