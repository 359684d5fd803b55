// SPDX-License-Identifier: Apache-2.0
// Loads the driver into a program with the runtime linked in (static_driver.h).
#define _GNU_SOURCE
#define SIMGPU_STATIC_TABLE // the table itself needs the names as they are
#include "static_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static StaticDriver table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *handle, const char *name)
{
    void *symbol = handle ? dlsym(handle, name) : NULL;
    if (!symbol) {
        fprintf(stderr, "the CUDA driver cannot be used: %s\n", dlerror());
        exit(1);
    }
    return symbol;
}

static void load(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
#define FN(name) table.name = (__typeof__(table.name))find(handle, #name);
#include "static_driver.def"
#undef FN
}

const StaticDriver *static_driver(void)
{
    pthread_once(&once, load);
    return &table;
}
