// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnvidia-ml.so.1 with the functions that gpuwhy's sampler
// asks for. What it answers is in a file that is read again at every call, so
// that a test can change it: $SIMGPU_NVML, or "nvml.conf" beside this library.
// Without such a file there is no driver. Its lines are a key and values:
//
//   count N                       GPUs (1)
//   rate, memory_rate             percent, as nvidia-smi shows them
//   memory_used, memory_total     bytes; with `logs`, what is used is what the
//                                 processes hold, unless it is given
//   sm_mhz, memory_mhz, power_mw, temperature_c, throttle
//   busy PERCENT                  what the utilisation samples say
//   process PID BYTES             a compute process (-1: bytes unknown)
//   graphics PID BYTES            a graphics process
//   xid NUMBER COUNT              COUNT events so far; each is reported once
//   unsupported NAME              that call (rate, power_mw, ...) fails
//   slow_init_ms N                how long nvmlInit takes
//   logs FOLDER                   rate, samples and compute processes come from
//                                 the truth logs in there (nvml_truth.c)
//
// Utilisation samples are taken every 200 ms of CLOCK_REALTIME. As with the
// real library, the first read after nvmlInit gives zeros, and the times of
// the samples shift a little from one read to the next.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml_truth.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 8
#define SAMPLES 100
#define SAMPLE_EVERY_US 200000ull
#define SECOND_US 1000000ull
#define SHIFT_US 300u
#define SHIFTS 3
#define MAX_SHIFT_US ((SHIFTS - 1) * SHIFT_US)
#define VALUE_CHARS 1024
#define RATE_WINDOWS 6 // nvidia-smi's figure: how many sixths of a second saw a kernel
#define RATE_WINDOW_NS (1000000000ull / RATE_WINDOWS)
// A thread can be kept from the CPU between queueing work and logging it. Later
// than this after its end a sample is complete.
#define LOG_DELAY_US 400000ull
#define MAX_PROCESSES 256
#define XID_EVENT 8ull
#define GPU_UTILIZATION_SAMPLES 1
#define VALUE_UNSIGNED_INT 1

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
};

typedef struct Device {
    unsigned index;
    atomic_uint reads; // of the utilisation samples
} Device;

typedef struct EventSet {
    Device *device;
    unsigned long long told;
} EventSet;

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned long long time_us;
    union {
        unsigned value;
        unsigned long long all;
    };
} Sample;

typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
} Utilization;

static Device devices[MAX_GPUS];

static FILE *open_settings(void)
{
    const char *given = getenv("SIMGPU_NVML");
    if (given && *given)
        return fopen(given, "re");
    Dl_info self;
    if (!dladdr((void *)open_settings, &self) || !self.dli_fname)
        return NULL;
    char path[4096];
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash ? (int)(slash - self.dli_fname) : 0;
    if (snprintf(path, sizeof path, "%.*s/nvml.conf", folder, self.dli_fname) >= (int)sizeof path)
        return NULL;
    return fopen(path, "re");
}

// The nth line of a key: its up to two values. Returns whether there is one.
static int setting(const char *key, unsigned nth, char first[VALUE_CHARS], unsigned long long *second)
{
    FILE *file = open_settings();
    char line[VALUE_CHARS + 128], name[64];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        *second = 0;
        first[0] = 0;
        if (sscanf(line, "%63s %1023s %llu", name, first, second) >= 2 && !strcmp(name, key))
            found = nth-- == 0;
    }
    if (file)
        fclose(file);
    return found;
}

static unsigned long long number(const char *key, unsigned long long otherwise)
{
    char text[VALUE_CHARS];
    unsigned long long ignored;
    return setting(key, 0, text, &ignored) ? strtoull(text, NULL, 0) : otherwise;
}

static int unsupported(const char *key)
{
    char text[VALUE_CHARS];
    unsigned long long ignored;
    for (unsigned nth = 0; setting("unsupported", nth, text, &ignored); nth++)
        if (!strcmp(text, key))
            return 1;
    return 0;
}

static int tell(const char *key, unsigned *out)
{
    if (unsupported(key))
        return NOT_SUPPORTED;
    *out = (unsigned)number(key, 0);
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
    FILE *file = open_settings();
    if (!file)
        return DRIVER_NOT_LOADED;
    fclose(file);
    usleep((useconds_t)number("slow_init_ms", 0) * 1000);
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        devices[i].index = i;
        atomic_store(&devices[i].reads, 0);
    }
    return SUCCESS;
}

EXPORT int nvmlShutdown(void)
{
    return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "580.0.simgpu");
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 13000;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    unsigned long long wanted = number("count", 1);
    *count = wanted < MAX_GPUS ? (unsigned)wanted : MAX_GPUS;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    unsigned count;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count)
        return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(Device *device, char *name, unsigned length)
{
    (void)device;
    snprintf(name, length, "Simulated GPU");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%u", device->index);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(Device *device, void *out)
{
    struct {
        char legacy[16];
        unsigned domain, bus, device, id, subsystem;
        char bus_id[32];
    } *info = out;
    memset(info, 0, sizeof *info);
    info->bus = 0x3a + device->index;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// CLOCK_REALTIME less CLOCK_MONOTONIC. A thread that loses its CPU between the
// two reads gets too little.
static uint64_t ahead_of_monotonic_ns(void)
{
    uint64_t ahead = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t real = clock_ns(CLOCK_REALTIME), now = real - clock_ns(CLOCK_MONOTONIC);
        ahead = now > ahead ? now : ahead;
    }
    return ahead;
}

// Whether the truth logs are asked, and where they are.
static int logs_folder(char folder[VALUE_CHARS])
{
    unsigned long long ignored;
    return setting("logs", 0, folder, &ignored);
}

static unsigned rate_from_logs(const char *folder, const Device *device)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    unsigned used = 0;
    for (unsigned i = 0; i < RATE_WINDOWS; i++) {
        uint64_t end = now - i * RATE_WINDOW_NS;
        used += truth_busy_ns(folder, (int)device->index, 0, end - RATE_WINDOW_NS, end) > 0;
    }
    return used * 100 / RATE_WINDOWS;
}

EXPORT int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2])
{
    char folder[VALUE_CHARS];
    int result = tell("rate", &rates[0]);
    if (!result && logs_folder(folder))
        rates[0] = rate_from_logs(folder, device);
    return result ? result : tell("memory_rate", &rates[1]);
}

// What the processes hold, by their truth logs.
static unsigned long long used_from_logs(const char *folder)
{
    unsigned pids[MAX_PROCESSES];
    unsigned long long bytes[MAX_PROCESSES], sum = 0;
    unsigned there = truth_processes(folder, MAX_PROCESSES, pids, bytes);
    for (unsigned i = 0; i < there && i < MAX_PROCESSES; i++)
        sum += bytes[i];
    return sum;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Device *device, void *out)
{
    (void)device;
    char folder[VALUE_CHARS];
    unsigned long long held = logs_folder(folder) ? used_from_logs(folder) : 0;
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } *info = out;
    if (unsupported("memory"))
        return NOT_SUPPORTED;
    info->total = number("memory_total", 0);
    info->used = number("memory_used", held);
    info->reserved = 0;
    info->free = info->total - info->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *mhz)
{
    (void)device;
    return tell(kind == 2 ? "memory_mhz" : "sm_mhz", mhz);
}

EXPORT int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts)
{
    (void)device;
    return tell("power_mw", milliwatts);
}

EXPORT int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius)
{
    (void)device;
    (void)sensor;
    return tell("temperature_c", celsius);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons)
{
    (void)device;
    *reasons = number("throttle", 0);
    return unsupported("throttle") ? NOT_SUPPORTED : SUCCESS;
}

static int list_processes(const char *key, unsigned *count, Process *out)
{
    char text[VALUE_CHARS];
    unsigned long long bytes;
    unsigned there = 0;
    if (unsupported(key))
        return NOT_SUPPORTED;
    for (; setting(key, there, text, &bytes); there++)
        if (out && there < *count)
            out[there] = (Process){(unsigned)strtoul(text, NULL, 0), bytes, ~0u, ~0u};
    int fits = there <= *count;
    *count = there;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

static int list_from_logs(const char *folder, unsigned *count, Process *out)
{
    unsigned pids[MAX_PROCESSES];
    unsigned long long bytes[MAX_PROCESSES];
    unsigned there = truth_processes(folder, MAX_PROCESSES, pids, bytes);
    for (unsigned i = 0; out && i < there && i < *count && i < MAX_PROCESSES; i++)
        out[i] = (Process){pids[i], bytes[i], ~0u, ~0u};
    int fits = there <= *count;
    *count = there;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *out)
{
    (void)device;
    char folder[VALUE_CHARS];
    if (!unsupported("process") && logs_folder(folder))
        return list_from_logs(folder, count, out);
    return list_processes("process", count, out);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, Process *out)
{
    (void)device;
    return list_processes("graphics", count, out);
}

// What the sample that ends at a CLOCK_REALTIME says. As the times of samples are
// a little off, what is taken for its span may be longer or shorter: all that may
// be in it counts, against the shortest it may be, and a part of a percent counts
// as one. So a sample never says less than there was.
static unsigned sample_from_logs(const char *folder, const Device *device, uint64_t end_us)
{
    uint64_t ahead = ahead_of_monotonic_ns();
    uint64_t from = (end_us - SAMPLE_EVERY_US) * 1000 - ahead;
    uint64_t to = (end_us + MAX_SHIFT_US) * 1000 - ahead;
    uint64_t percent_ns = (SAMPLE_EVERY_US - MAX_SHIFT_US) * 1000 / 100;
    uint64_t percent = (truth_busy_ns(folder, (int)device->index, 0, from, to) + percent_ns - 1) / percent_ns;
    return percent < 100 ? (unsigned)percent : 100;
}

EXPORT int nvmlDeviceGetSamples(Device *device, unsigned kind, unsigned long long last_seen_us, unsigned *value_kind,
                                unsigned *count, Sample *out)
{
    *value_kind = VALUE_UNSIGNED_INT;
    if (kind != GPU_UTILIZATION_SAMPLES || unsupported("samples"))
        return NOT_SUPPORTED;
    if (!out) {
        *count = SAMPLES;
        return SUCCESS;
    }
    char folder[VALUE_CHARS];
    int truth = logs_folder(folder);
    unsigned long long newest = (clock_ns(CLOCK_REALTIME) / 1000 - (truth ? LOG_DELAY_US : 0)) / SAMPLE_EVERY_US;
    unsigned read = atomic_fetch_add(&device->reads, 1), given = 0;
    unsigned busy = read == 0 ? 0 : (unsigned)number("busy", 0);
    for (unsigned long long at = newest - SAMPLES + 1; at <= newest && given < *count; at++) {
        unsigned long long time_us = at * SAMPLE_EVERY_US + read % SHIFTS * SHIFT_US;
        if (time_us <= last_seen_us)
            continue;
        if (truth && read > 0)
            busy = sample_from_logs(folder, device, at * SAMPLE_EVERY_US);
        out[given++] = (Sample){time_us, {.value = busy}};
    }
    *count = given;
    return given ? SUCCESS : NOT_FOUND;
}

// Every second, of each process, how much of that second its kernels ran.
EXPORT int nvmlDeviceGetProcessUtilization(Device *device, Utilization *out, unsigned *count,
                                           unsigned long long last_seen_us)
{
    char folder[VALUE_CHARS];
    unsigned pids[MAX_PROCESSES];
    unsigned long long bytes[MAX_PROCESSES];
    if (unsupported("process_utilization") || !logs_folder(folder))
        return NOT_SUPPORTED;
    unsigned there = truth_processes(folder, MAX_PROCESSES, pids, bytes);
    there = there < MAX_PROCESSES ? there : MAX_PROCESSES;
    unsigned long long end_us = clock_ns(CLOCK_REALTIME) / 1000 - LOG_DELAY_US;
    end_us -= end_us % SECOND_US;
    if (!there || end_us <= last_seen_us)
        return NOT_FOUND;
    int fits = out && there <= *count;
    *count = there;
    if (!fits)
        return INSUFFICIENT_SIZE;
    uint64_t end_ns = end_us * 1000 - ahead_of_monotonic_ns();
    for (unsigned i = 0; i < there; i++) {
        uint64_t busy = truth_busy_ns(folder, (int)device->index, pids[i], end_ns - SECOND_US * 1000, end_ns);
        out[i] = (Utilization){.pid = pids[i], .time_us = end_us, .sm = (unsigned)(busy / (SECOND_US * 10))};
    }
    return SUCCESS;
}

EXPORT int nvmlEventSetCreate(EventSet **set)
{
    *set = calloc(1, sizeof **set);
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(EventSet *set)
{
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types)
{
    (void)device;
    *types = unsupported("events") ? 0 : XID_EVENT;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set)
{
    if (types != XID_EVENT || unsupported("events"))
        return NOT_SUPPORTED;
    set->device = device;
    return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(EventSet *set, void *out, unsigned timeout_ms)
{
    struct {
        Device *device;
        unsigned long long type, data;
        unsigned gpu_instance, compute_instance;
    } *event = out;
    char xid[VALUE_CHARS];
    unsigned long long happened;
    (void)timeout_ms;
    if (!setting("xid", 0, xid, &happened) || set->told >= happened)
        return TIMEOUT;
    set->told++;
    event->device = set->device;
    event->type = XID_EVENT;
    event->data = strtoull(xid, NULL, 0);
    event->gpu_instance = event->compute_instance = ~0u;
    return SUCCESS;
}
