// SPDX-License-Identifier: Apache-2.0
// Memory: device addresses come first-fit from a free list ordered by
// address, with neighbours merged, so memory fragments and runs out as real
// memory does. Device addresses are not backed; host and managed memory is.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "device.h"

// Below where Linux on x86-64 places mappings, so that an address tells on
// which side it lies.
#define VMM_BASE 0x7a0000000000u
#define DEVICE_BASE 0x7c0000000000u
#define DEVICE_STRIDE 0x4000000000u
#define DEVICE_END (DEVICE_BASE + SIM_MAX_DEVICES * DEVICE_STRIDE)
#define GRANULE 512u
#define VMM_GRANULE (2u << 20)

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static AddressMap host_used;       // host and managed allocations
static AddressMap host_registered;

static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t vmm_next = VMM_BASE;
static AddressMap vmm_reserved;
static AddressMap vmm_mapped; // mapped address -> handle, kept in `reserved`

void memory_init(SimDevice *device, int index)
{
    uint64_t size = sim_config.memory / GRANULE * GRANULE;
    if (size > DEVICE_STRIDE)
        size = DEVICE_STRIDE;
    sim_config.memory = size;
    FreeBlock *block = malloc(sizeof *block);
    if (!block)
        abort();
    *block = (FreeBlock){DEVICE_BASE + (uint64_t)index * DEVICE_STRIDE, size, NULL};
    device->free_list = block;
    device->free_bytes = size;
}

bool memory_is_device(uint64_t address)
{
    return address >= VMM_BASE && address < DEVICE_END;
}

static bool map_covers(const AddressMap *map, uint64_t address)
{
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key && address - map->slots[i].key < map->slots[i].bytes)
            return true;
    return false;
}

bool memory_is_pinned(uint64_t address)
{
    pthread_mutex_lock(&host_lock);
    bool pinned = map_covers(&host_used, address) || map_covers(&host_registered, address);
    pthread_mutex_unlock(&host_lock);
    return pinned;
}

static SimDevice *device_of(uint64_t address, int *index)
{
    if (address < DEVICE_BASE || address >= DEVICE_END)
        return NULL;
    *index = (int)((address - DEVICE_BASE) / DEVICE_STRIDE);
    return *index < sim_config.devices ? &sim_devices[*index] : NULL;
}

// With the lock held: cuts `size` bytes off the first block that has them.
static uint64_t take_first_fit(SimDevice *device, uint64_t size)
{
    for (FreeBlock **at = &device->free_list; *at; at = &(*at)->next) {
        FreeBlock *block = *at;
        if (block->size < size)
            continue;
        uint64_t address = block->address;
        block->address += size;
        block->size -= size;
        device->free_bytes -= size;
        if (!block->size) {
            *at = block->next;
            free(block);
        }
        return address;
    }
    return 0;
}

// With the lock held: frees a range and merges it with its neighbours.
static void give_back(SimDevice *device, uint64_t address, uint64_t size)
{
    FreeBlock **at = &device->free_list;
    FreeBlock *before = NULL;
    while (*at && (*at)->address < address) {
        before = *at;
        at = &(*at)->next;
    }
    device->free_bytes += size;
    if (before && before->address + before->size == address) {
        before->size += size;
    } else {
        FreeBlock *block = malloc(sizeof *block);
        if (!block)
            abort();
        *block = (FreeBlock){address, size, *at};
        *at = block;
        before = block;
    }
    FreeBlock *after = before->next;
    if (after && before->address + before->size == after->address) {
        before->size += after->size;
        before->next = after->next;
        free(after);
    }
}

CUresult memory_alloc(int index, uint64_t bytes, unsigned memory, uint64_t *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > DEVICE_STRIDE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SimDevice *device = &sim_devices[index];
    uint64_t size = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_lock(&device->lock);
    uint64_t got = take_first_fit(device, size);
    if (got) {
        AddressEntry entry = {.key = got, .bytes = bytes, .reserved = size, .memory = memory};
        if (!address_map_insert(&device->used, &entry))
            abort();
        // Under the lock, so that records of one address are in time order.
        simlog_memory(REC_ALLOC, memory, index, got, bytes);
        *address = got;
    }
    pthread_mutex_unlock(&device->lock);
    return got ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void drop(SimDevice *device, int index, AddressEntry *entry)
{
    simlog_memory(REC_FREE, entry->memory, index, entry->key, entry->bytes);
    give_back(device, entry->key, entry->reserved);
    address_map_remove(&device->used, entry);
}

// Frees an allocation, or releases a physical one: that memory stays taken
// until its last mapping is gone.
CUresult memory_free(uint64_t address)
{
    int index;
    SimDevice *device = device_of(address, &index);
    if (!device)
        return memory_free_host(address, MEM_MANAGED);
    pthread_mutex_lock(&device->lock);
    AddressEntry *entry = address_map_find(&device->used, address);
    bool known = entry && !entry->released;
    if (known && entry->maps)
        entry->released = true;
    else if (known)
        drop(device, index, entry);
    pthread_mutex_unlock(&device->lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_alloc_host(uint64_t bytes, unsigned memory, void **ptr)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *got;
    if (memory == MEM_MANAGED) {
        got = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED)
            got = NULL;
    } else {
        got = aligned_alloc(256, (bytes + 255) / 256 * 256);
    }
    if (!got)
        return CUDA_ERROR_OUT_OF_MEMORY;
    AddressEntry entry = {.key = (uintptr_t)got, .bytes = bytes, .memory = memory};
    pthread_mutex_lock(&host_lock);
    if (!address_map_insert(&host_used, &entry))
        abort();
    simlog_memory(REC_ALLOC, memory, sim_current_device(), entry.key, bytes);
    pthread_mutex_unlock(&host_lock);
    *ptr = got;
    return CUDA_SUCCESS;
}

CUresult memory_free_host(uint64_t address, unsigned memory)
{
    pthread_mutex_lock(&host_lock);
    AddressEntry *found = address_map_find(&host_used, address);
    if (!found || found->memory != memory) {
        pthread_mutex_unlock(&host_lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t bytes = found->bytes;
    simlog_memory(REC_FREE, memory, sim_current_device(), address, bytes);
    address_map_remove(&host_used, found);
    pthread_mutex_unlock(&host_lock);
    if (memory == MEM_MANAGED)
        munmap((void *)(uintptr_t)address, bytes);
    else
        free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}

CUresult memory_register(void *ptr, uint64_t bytes)
{
    if (!ptr || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    AddressEntry entry = {.key = (uintptr_t)ptr, .bytes = bytes, .memory = MEM_HOST};
    pthread_mutex_lock(&host_lock);
    bool already = address_map_find(&host_registered, entry.key) != NULL;
    if (!already && !address_map_insert(&host_registered, &entry))
        abort();
    pthread_mutex_unlock(&host_lock);
    return already ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

CUresult memory_unregister(void *ptr)
{
    pthread_mutex_lock(&host_lock);
    AddressEntry *found = address_map_find(&host_registered, (uintptr_t)ptr);
    if (found)
        address_map_remove(&host_registered, found);
    pthread_mutex_unlock(&host_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

// Address space is never reused: 2 TiB outlast any test.
CUresult memory_reserve(uint64_t bytes, uint64_t *address)
{
    if (!bytes || bytes % VMM_GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&vmm_lock);
    bool room = bytes <= DEVICE_BASE - vmm_next;
    if (room) {
        AddressEntry entry = {.key = vmm_next, .bytes = bytes};
        if (!address_map_insert(&vmm_reserved, &entry))
            abort();
        *address = vmm_next;
        vmm_next += bytes;
    }
    pthread_mutex_unlock(&vmm_lock);
    return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_unreserve(uint64_t address, uint64_t bytes)
{
    pthread_mutex_lock(&vmm_lock);
    AddressEntry *found = address_map_find(&vmm_reserved, address);
    bool known = found && found->bytes == bytes;
    if (known)
        address_map_remove(&vmm_reserved, found);
    pthread_mutex_unlock(&vmm_lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Counts a mapping of a physical allocation up or down.
static bool count_mapping(uint64_t handle, bool up)
{
    int index;
    SimDevice *device = device_of(handle, &index);
    if (!device)
        return false;
    pthread_mutex_lock(&device->lock);
    AddressEntry *entry = address_map_find(&device->used, handle);
    bool known = entry && entry->memory == MEM_PHYSICAL && !(up && entry->released);
    if (known) {
        entry->maps += up ? 1u : -1u;
        if (!entry->maps && entry->released)
            drop(device, index, entry);
    }
    pthread_mutex_unlock(&device->lock);
    return known;
}

CUresult memory_map(uint64_t address, uint64_t bytes, uint64_t handle)
{
    if (address < VMM_BASE || address >= DEVICE_BASE || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    AddressEntry entry = {.key = address, .bytes = bytes, .reserved = handle};
    pthread_mutex_lock(&vmm_lock);
    bool fine = !address_map_find(&vmm_mapped, address) && count_mapping(handle, true);
    if (fine && !address_map_insert(&vmm_mapped, &entry))
        abort();
    pthread_mutex_unlock(&vmm_lock);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_unmap(uint64_t address, uint64_t bytes)
{
    pthread_mutex_lock(&vmm_lock);
    AddressEntry *found = address_map_find(&vmm_mapped, address);
    bool known = found && found->bytes == bytes;
    if (known) {
        count_mapping(found->reserved, false);
        address_map_remove(&vmm_mapped, found);
    }
    pthread_mutex_unlock(&vmm_lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
