// SPDX-License-Identifier: Apache-2.0
// The truth log: what this process really did, written by the simulated
// libraries themselves. One file per thread, PID.TID.simlog, in a shared
// mapping, so that the kernel keeps its contents when the process is killed.
// All integers little-endian; all times CLOCK_MONOTONIC nanoseconds.
#ifndef SIMGPU_SIMLOG_H
#define SIMGPU_SIMLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_types.h"
#include "simgpu.h"

#define SIM_MAX_DEVICES 8
#define SIM_MAX_DEPTH 16

enum SimLogLevel { LOG_NONE = 0, LOG_COUNTS = 1, LOG_FULL = 2 };

enum SimRecordKind {
    REC_CALL = 1,
    REC_BUSY = 2,
    REC_ALLOC = 3,
    REC_FREE = 4,
    REC_DETAIL = 5, // SimDetailRecord: of the call whose record comes next
    REC_TEXT = 6,   // SimTextRecord: part of the text of the call that comes next
};

// What kind of memory an allocation record is about.
enum SimMemory {
    MEM_DEVICE = 0,
    MEM_ASYNC = 1,
    MEM_MANAGED = 2,
    MEM_HOST = 3,
    MEM_PHYSICAL = 4, // cuMemCreate: `pointer` is the handle
};

typedef struct SimRecord {
    uint64_t t_enter; // busy intervals: start
    uint64_t t_exit;  // busy intervals: end
    uint64_t bytes;
    uint64_t pointer;
    uint64_t stream;
    int32_t ret;
    uint16_t function; // busy, alloc, free: the innermost API function open
    uint8_t kind;
    uint8_t depth;
    int8_t device;     // -1: the thread has no current context
    uint8_t direction; // busy intervals: the engine
    uint8_t memory;    // alloc, free: SimMemory
    uint8_t pad[13];
} SimRecord;

// Both have `kind` where SimRecord has it, and are as large.
typedef struct SimDetailRecord {
    uint64_t values[5];
    uint8_t pad[4];
    uint16_t function;
    uint8_t kind;
    uint8_t detail; // SimDetailKind
    int32_t numbers[4];
} SimDetailRecord;

typedef struct SimTextRecord {
    char text[40];
    uint32_t bytes; // of `text`, in use
    uint16_t function;
    uint8_t kind;
    uint8_t pad[17];
} SimTextRecord;

typedef struct SimCounter {
    char name[56];
    uint64_t calls_outer;
    uint64_t calls_inner;
    uint64_t errors_outer;
    uint64_t bytes_outer; // of calls that returned success
    uint64_t ns_outer;    // only counted at log level full
} SimCounter;

typedef struct SimOpenCall {
    uint64_t t_enter;
    uint64_t function;
} SimOpenCall;

typedef struct SimLogHeader {
    char magic[8]; // "SIMLOG1\0"
    uint32_t pid;
    uint32_t tid;
    uint32_t records_offset;
    uint32_t record_bytes;
    uint32_t counters_offset;
    uint32_t counter_bytes;
    uint32_t functions;
    uint32_t level;
    uint64_t records; // grows only after a record is complete
    uint64_t open_depth; // calls entered and not left
    SimOpenCall open[SIM_MAX_DEPTH];
    uint8_t pad[512 - 56 - SIM_MAX_DEPTH * 16];
    SimCounter counters[FN_COUNT];
} SimLogHeader;

// Everything a thread owns, in one TLS block: small, because libraries
// loaded by dlopen get only a small reserve of static TLS.
typedef struct SimThread {
    SimLogHeader *header;
    SimRecord *next; // where the next record goes; == chunk_end when full
    SimRecord *chunk_end;
    int log_fd;
    bool log_failed;
    unsigned depth;
    uint16_t open[SIM_MAX_DEPTH];
    void (*hook)(void *);
    void *hook_arg;
    unsigned contexts; // number of entries on the context stack
    CUcontext context[8];
    void *own_stream[SIM_MAX_DEVICES]; // per-thread default streams
} SimThread;

extern __thread SimThread sim_thread;
extern enum SimLogLevel sim_log_level;

// Both write to the calling thread's file, and nothing below log level full.
void simlog_busy(int device, unsigned engine, uint64_t start, uint64_t end, uint64_t stream,
                 uint64_t bytes);
void simlog_memory(unsigned kind, unsigned memory, int device, uint64_t pointer,
                   uint64_t bytes);

uint64_t sim_now(void); // CLOCK_MONOTONIC ns

// The device of the thread's current context, or -1.
int sim_current_device(void);
// Makes sure that what the thread owns is freed when it ends.
void sim_thread_at_exit(void);
// Gives back the thread's per-thread streams when it ends (device.c).
void sim_thread_release_streams(SimThread *thread);

#endif
