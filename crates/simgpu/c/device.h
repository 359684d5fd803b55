// SPDX-License-Identifier: Apache-2.0
// The simulated device: engines, streams, events, graphs and memory.
#ifndef SIMGPU_DEVICE_H
#define SIMGPU_DEVICE_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_types.h"
#include "simlog.h"

#define QUEUE_DEPTH 1024

// One piece of work for an engine.
typedef struct SimWork {
    unsigned engine;
    uint64_t duration_ns;
    uint64_t bytes;
} SimWork;

// Work recorded by stream capture; the same object serves as CUgraph and,
// copied, as CUgraphExec.
typedef struct SimGraph {
    size_t count, capacity;
    SimWork *work;
} SimGraph;

typedef struct SimStream {
    bool in_use;
    int device;
    uint64_t last_end;           // when everything queued so far is done
    uint64_t ring[QUEUE_DEPTH];  // end times of queued work, oldest first
    unsigned head, count;
    SimGraph *capture;           // not NULL while the stream captures
} SimStream;

typedef struct SimEvent {
    bool in_use;
    bool recorded;
    uint64_t time;
} SimEvent;

typedef struct FreeBlock {
    uint64_t address, size;
    struct FreeBlock *next;
} FreeBlock;

typedef struct AddressEntry {
    uint64_t key; // address or handle; 0 = empty slot
    uint64_t bytes;
    uint64_t reserved; // what was taken from the device, after rounding
    unsigned memory;   // SimMemory
    unsigned maps;     // MEM_PHYSICAL: mappings in place
    bool released;     // MEM_PHYSICAL: released while still mapped
} AddressEntry;

// Hash map from address to entry (open addressing, linear probing).
typedef struct AddressMap {
    AddressEntry *slots;
    size_t capacity, count;
} AddressMap;

typedef struct SimDevice {
    pthread_mutex_t lock; // guards everything below and the device's streams
    uint64_t own_engines[SIM_ENGINES];
    uint64_t *engine_free; // when each engine is done: own_engines, or in the shared file
    uint64_t last_end; // the latest end of any work on any stream
    SimStream default_stream;
    FreeBlock *free_list; // by address
    uint64_t free_bytes;
    AddressMap used;
} SimDevice;

typedef struct SimConfig {
    int devices;
    uint64_t memory;        // bytes per device
    double ns_per_byte[SIM_ENGINES];
    bool block;             // synchronisation sleeps instead of spinning
    uint64_t alloc_ns;      // of CPU time that a device malloc or free takes
    double pageable_ns_per_byte; // 0: pageable memory is copied like page-locked memory
} SimConfig;

extern SimConfig sim_config;
extern SimDevice sim_devices[SIM_MAX_DEVICES];

// device.c
uint64_t device_copy_ns(unsigned engine, uint64_t bytes);
void device_wait_until(uint64_t deadline_ns);
void device_work_on_cpu(uint64_t ns); // takes so much of the calling thread's CPU time
SimStream *stream_create(int device);
void stream_destroy(SimStream *stream);
// Resolves a handle: 0 is the default stream of the current device (or the
// thread's own stream, when per_thread), 1 the legacy one, 2 the thread's own.
CUresult stream_resolve(CUstream handle, bool per_thread, SimStream **stream);
// Queues work; blocks while the queue is full. *end gets its end time.
CUresult stream_enqueue(SimStream *stream, const SimWork *work, uint64_t *end);
CUresult stream_synchronize(SimStream *stream);
uint64_t stream_last_end(SimStream *stream);
void stream_wait_for(SimStream *stream, uint64_t time);
CUresult device_synchronize(int device);
SimEvent *event_create(void);
SimEvent *event_resolve(CUevent handle);

// shared.c: engines that several processes share. With the device's lock held:
// no other process uses its engines between the two calls.
void shared_init(void);
void shared_lock(void);
void shared_unlock(void);

// kernel.c: every kernel handle has a duration, and so do invalid pointers.
uint64_t kernel_duration(const void *function);
// The kernel with this name, created if needed; see simgpu_kernel_name.
struct SimKernel *kernel_by_name(const char *name);
CUkernel kernel_handle(struct SimKernel *kernel);
CUfunction kernel_function(struct SimKernel *kernel);
// The kernel that a handle belongs to, or NULL.
struct SimKernel *kernel_of(const void *handle);

// graph.c
CUresult graph_begin_capture(SimStream *stream);
CUresult graph_end_capture(SimStream *stream, SimGraph **graph);
CUresult graph_append(SimGraph *graph, const SimWork *work); // device lock held
SimGraph *graph_copy(const SimGraph *graph);
bool graph_update(SimGraph *exec, const SimGraph *graph); // false: another shape
CUresult graph_launch(const SimGraph *graph, SimStream *stream);
void graph_destroy(SimGraph *graph);

// memory.c
void memory_init(SimDevice *device, int index);
bool memory_is_device(uint64_t address);
// Whether a copy from or to this host address needs no staging.
bool memory_is_pinned(uint64_t address);
CUresult memory_alloc(int device, uint64_t bytes, unsigned memory, uint64_t *address);
CUresult memory_free(uint64_t address);
CUresult memory_alloc_host(uint64_t bytes, unsigned memory, void **ptr);
CUresult memory_free_host(uint64_t address, unsigned memory);
CUresult memory_register(void *ptr, uint64_t bytes);
CUresult memory_unregister(void *ptr);
CUresult memory_reserve(uint64_t bytes, uint64_t *address);
CUresult memory_unreserve(uint64_t address, uint64_t bytes);
CUresult memory_map(uint64_t address, uint64_t bytes, uint64_t handle);
CUresult memory_unmap(uint64_t address, uint64_t bytes);

// address_map.c
AddressEntry *address_map_find(const AddressMap *map, uint64_t key);
bool address_map_insert(AddressMap *map, const AddressEntry *entry);
void address_map_remove(AddressMap *map, AddressEntry *entry);

#endif
