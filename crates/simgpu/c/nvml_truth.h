// SPDX-License-Identifier: Apache-2.0
// The values that the simulated NVML takes from truth logs instead of its settings.
#ifndef SIMGPU_NVML_TRUTH_H
#define SIMGPU_NVML_TRUTH_H

#include <stdint.h>

// All times are CLOCK_MONOTONIC ns. Each function reads what is new in the
// folder's logs first; the folder is that of the first call.

// How long some kernel ran on the device in a span of time, of one process or of
// all (0).
uint64_t truth_busy_ns(const char *folder, int device, unsigned pid, uint64_t from, uint64_t to);

// The processes alive that have called the library: how many there are, the
// first `room` of them into `pids` and `bytes` (of device memory).
unsigned truth_processes(const char *folder, unsigned room, unsigned *pids, unsigned long long *bytes);

#endif
