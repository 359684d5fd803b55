// SPDX-License-Identifier: Apache-2.0
// What the files of the driver API share.
#ifndef SIMGPU_DRIVER_INTERNAL_H
#define SIMGPU_DRIVER_INTERNAL_H

#include "cuda_driver.h"
#include "device.h"

// Ends an API function opened with BEGIN.
#define END(result) return (CUresult)simgpu_leave(&call, (int)(result))

struct CUctx_st {
    int device;
    int primary;
};

#endif
