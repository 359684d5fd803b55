// SPDX-License-Identifier: Apache-2.0
// Hash map from address to entry: open addressing with linear probing, and
// removal by shifting back, so that lookups never pass dead slots.
#include <stdlib.h>

#include "device.h"

static size_t home_slot(const AddressMap *map, uint64_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (map->capacity - 1);
}

AddressEntry *address_map_find(const AddressMap *map, uint64_t key)
{
    if (!map->capacity || !key)
        return NULL;
    size_t i = home_slot(map, key);
    while (map->slots[i].key) {
        if (map->slots[i].key == key)
            return &map->slots[i];
        i = (i + 1) & (map->capacity - 1);
    }
    return NULL;
}

static void place(AddressMap *map, const AddressEntry *entry)
{
    size_t i = home_slot(map, entry->key);
    while (map->slots[i].key)
        i = (i + 1) & (map->capacity - 1);
    map->slots[i] = *entry;
}

bool address_map_insert(AddressMap *map, const AddressEntry *entry)
{
    if (map->count * 2 >= map->capacity) {
        AddressMap bigger = {.capacity = map->capacity ? map->capacity * 2 : 256,
                             .count = map->count};
        bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
        if (!bigger.slots)
            return false;
        for (size_t i = 0; i < map->capacity; i++)
            if (map->slots[i].key)
                place(&bigger, &map->slots[i]);
        free(map->slots);
        *map = bigger;
    }
    place(map, entry);
    map->count++;
    return true;
}

void address_map_remove(AddressMap *map, AddressEntry *entry)
{
    size_t mask = map->capacity - 1;
    size_t hole = (size_t)(entry - map->slots);
    for (size_t i = (hole + 1) & mask; map->slots[i].key; i = (i + 1) & mask) {
        // An entry may fill the hole if the hole lies on its probe path.
        size_t home = home_slot(map, map->slots[i].key);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            map->slots[hole] = map->slots[i];
            hole = i;
        }
    }
    map->slots[hole].key = 0;
    map->count--;
}
