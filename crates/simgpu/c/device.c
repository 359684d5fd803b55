// SPDX-License-Identifier: Apache-2.0
// Engines, streams and events. There are no worker threads: the end of all
// work is known when it is queued, and waiting is waiting for that time
// (CLOCK_MONOTONIC ns). An engine takes work in the order of the calls, so
// work that waits for another stream also holds up what was queued after it.
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_STREAMS 256
#define MAX_EVENTS 16384

SimConfig sim_config;
SimDevice sim_devices[SIM_MAX_DEVICES];

// Fixed pools, so that a handle is checked by its address alone.
static SimStream streams[MAX_STREAMS];
static SimEvent events[MAX_EVENTS];
static unsigned event_hint; // where the search for a free event starts
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t env_bytes(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *unit;
    uint64_t value = strtoull(text, &unit, 10);
    switch (*unit) {
    case 'K': case 'k': return value << 10;
    case 'M': case 'm': return value << 20;
    case 'G': case 'g': return value << 30;
    default: return value;
    }
}

// Bandwidth in GB/s (10^9 bytes) is bytes per ns; 0 makes copies instantaneous.
static double env_ns_per_byte(const char *name, double gbps)
{
    const char *text = getenv(name);
    if (text && *text)
        gbps = strtod(text, NULL);
    return gbps > 0 ? 1.0 / gbps : 0.0;
}

__attribute__((constructor)) static void device_init(void)
{
    const char *sync = getenv("SIMGPU_SYNC");
    sim_config.devices = (int)env_bytes("SIMGPU_DEVICES", 1);
    if (sim_config.devices > SIM_MAX_DEVICES)
        sim_config.devices = SIM_MAX_DEVICES;
    sim_config.memory = env_bytes("SIMGPU_MEM", (uint64_t)16 << 30);
    sim_config.ns_per_byte[SIM_H2D] = env_ns_per_byte("SIMGPU_H2D_GBPS", 25);
    sim_config.ns_per_byte[SIM_D2H] = env_ns_per_byte("SIMGPU_D2H_GBPS", 25);
    sim_config.ns_per_byte[SIM_D2D] = env_ns_per_byte("SIMGPU_D2D_GBPS", 2000);
    sim_config.block = sync && strcmp(sync, "block") == 0;
    sim_config.alloc_ns = env_bytes("SIMGPU_ALLOC_US", 0) * 1000;
    sim_config.pageable_ns_per_byte = env_ns_per_byte("SIMGPU_PAGEABLE_GBPS", 0);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    for (int i = 0; i < sim_config.devices; i++) {
        pthread_mutex_init(&sim_devices[i].lock, &attr);
        sim_devices[i].engine_free = sim_devices[i].own_engines;
        sim_devices[i].default_stream.in_use = true;
        sim_devices[i].default_stream.device = i;
        memory_init(&sim_devices[i], i);
    }
    pthread_mutexattr_destroy(&attr);
    shared_init();
}

uint64_t device_copy_ns(unsigned engine, uint64_t bytes)
{
    return (uint64_t)((double)bytes * sim_config.ns_per_byte[engine]);
}

void device_wait_until(uint64_t deadline_ns)
{
    if (sim_config.block) {
        struct timespec at = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                              .tv_nsec = (long)(deadline_ns % 1000000000u)};
        while (sim_now() < deadline_ns &&
               clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
            ;
        return;
    }
    while (sim_now() < deadline_ns)
        __builtin_ia32_pause();
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void device_work_on_cpu(uint64_t ns)
{
    if (!ns)
        return;
    uint64_t deadline = thread_cpu_ns() + ns;
    while (thread_cpu_ns() < deadline)
        for (int i = 0; i < 50; i++)
            __builtin_ia32_pause();
}

SimStream *stream_create(int device)
{
    SimStream *found = NULL;
    pthread_mutex_lock(&pool_lock);
    for (unsigned i = 0; i < MAX_STREAMS && !found; i++)
        if (!streams[i].in_use)
            found = &streams[i];
    if (found) {
        memset(found, 0, sizeof *found);
        found->device = device;
        found->in_use = true;
    }
    pthread_mutex_unlock(&pool_lock);
    return found;
}

void stream_destroy(SimStream *stream)
{
    pthread_mutex_lock(&pool_lock);
    stream->in_use = false;
    pthread_mutex_unlock(&pool_lock);
}

void sim_thread_release_streams(SimThread *thread)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        if (thread->own_stream[i])
            stream_destroy(thread->own_stream[i]);
        thread->own_stream[i] = NULL;
    }
}

CUresult stream_resolve(CUstream handle, bool per_thread, SimStream **stream)
{
    uintptr_t value = (uintptr_t)handle;
    int device = sim_current_device();
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (value == 2 || (value == 0 && per_thread)) {
        void **own = &sim_thread.own_stream[device];
        if (!*own) {
            *own = stream_create(device);
            sim_thread_at_exit();
        }
        *stream = *own;
    } else if (value <= 1) {
        *stream = &sim_devices[device].default_stream;
    } else {
        uintptr_t offset = value - (uintptr_t)streams;
        bool ours = offset < sizeof streams && offset % sizeof *streams == 0;
        *stream = ours && ((SimStream *)handle)->in_use ? (SimStream *)handle : NULL;
    }
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// With the device's lock held: blocks until the queue has room, and returns
// the time at which it had.
static uint64_t wait_for_room(SimDevice *device, SimStream *stream)
{
    for (;;) {
        uint64_t now = sim_now();
        while (stream->count && stream->ring[stream->head] <= now) {
            stream->head = (stream->head + 1) % QUEUE_DEPTH;
            stream->count--;
        }
        if (stream->count < QUEUE_DEPTH)
            return now;
        uint64_t oldest = stream->ring[stream->head];
        pthread_mutex_unlock(&device->lock);
        device_wait_until(oldest);
        pthread_mutex_lock(&device->lock);
    }
}

CUresult stream_enqueue(SimStream *stream, const SimWork *work, uint64_t *end)
{
    SimDevice *device = &sim_devices[stream->device];
    pthread_mutex_lock(&device->lock);
    if (stream->capture) {
        CUresult result = graph_append(stream->capture, work);
        pthread_mutex_unlock(&device->lock);
        *end = 0;
        return result;
    }
    uint64_t now = wait_for_room(device, stream);
    uint64_t start = later(now, stream->last_end);
    shared_lock();
    start = later(start, device->engine_free[work->engine]);
    *end = start + work->duration_ns;
    device->engine_free[work->engine] = *end;
    shared_unlock();
    device->last_end = later(device->last_end, *end);
    stream->last_end = *end;
    if (*end > now) {
        stream->ring[(stream->head + stream->count) % QUEUE_DEPTH] = *end;
        stream->count++;
    }
    pthread_mutex_unlock(&device->lock);
    if (work->duration_ns)
        simlog_busy(stream->device, work->engine, start, *end, (uintptr_t)stream, work->bytes);
    return CUDA_SUCCESS;
}

uint64_t stream_last_end(SimStream *stream)
{
    SimDevice *device = &sim_devices[stream->device];
    pthread_mutex_lock(&device->lock);
    uint64_t end = stream->last_end;
    pthread_mutex_unlock(&device->lock);
    return end;
}

void stream_wait_for(SimStream *stream, uint64_t time)
{
    SimDevice *device = &sim_devices[stream->device];
    pthread_mutex_lock(&device->lock);
    stream->last_end = later(stream->last_end, time);
    pthread_mutex_unlock(&device->lock);
}

CUresult stream_synchronize(SimStream *stream)
{
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (sim_thread.hook)
        sim_thread.hook(sim_thread.hook_arg);
    device_wait_until(stream_last_end(stream));
    return CUDA_SUCCESS;
}

CUresult device_synchronize(int index)
{
    SimDevice *device = &sim_devices[index];
    pthread_mutex_lock(&device->lock);
    uint64_t end = device->last_end;
    pthread_mutex_unlock(&device->lock);
    device_wait_until(end);
    return CUDA_SUCCESS;
}

SimEvent *event_create(void)
{
    SimEvent *found = NULL;
    pthread_mutex_lock(&pool_lock);
    for (unsigned i = 0; i < MAX_EVENTS && !found; i++) {
        SimEvent *event = &events[(event_hint + i) % MAX_EVENTS];
        if (!event->in_use)
            found = event;
    }
    if (found) {
        event_hint = (unsigned)(found - events) + 1;
        *found = (SimEvent){.in_use = true};
    }
    pthread_mutex_unlock(&pool_lock);
    return found;
}

SimEvent *event_resolve(CUevent handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)events;
    if (offset >= sizeof events || offset % sizeof *events != 0)
        return NULL;
    SimEvent *event = (SimEvent *)handle;
    return event->in_use ? event : NULL;
}

void simgpu_set_hook(void (*hook)(void *), void *arg)
{
    QUERY_BEGIN();
    sim_thread.hook = hook;
    sim_thread.hook_arg = arg;
}
