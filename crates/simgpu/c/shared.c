// SPDX-License-Identifier: Apache-2.0
// One GPU for several processes: the times at which its engines are done are in a small
// file that all processes map ($SIMGPU_SHARED), so that the work of one waits for
// that of the others. Memory, streams and handles stay each process's own.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

typedef struct SimShared {
    pthread_mutex_t lock; // survives a process that is killed while it holds it
    uint64_t engine_free[SIM_MAX_DEVICES][SIM_ENGINES];
} SimShared;

static SimShared *shared; // NULL: this process has the GPU to itself

static void init_lock(SimShared *fresh)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

// Maps the file. The first process, decided by the file's lock, fills it.
static SimShared *map_file(int fd)
{
    SimShared *map = MAP_FAILED;
    flock(fd, LOCK_EX);
    // Asked like this, because fstat got a new version in glibc 2.33.
    off_t size = lseek(fd, 0, SEEK_END);
    bool fresh = size >= 0 && size < (off_t)sizeof *map;
    if (!fresh || ftruncate(fd, sizeof *map) == 0)
        map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED && fresh)
        init_lock(map);
    flock(fd, LOCK_UN);
    return map == MAP_FAILED ? NULL : map;
}

void shared_init(void)
{
    const char *path = getenv("SIMGPU_SHARED");
    if (!path || !*path)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    shared = fd >= 0 ? map_file(fd) : NULL;
    if (fd >= 0)
        close(fd);
    if (!shared) {
        fprintf(stderr, "simgpu: cannot share the GPU through %s\n", path);
        abort(); // a GPU that is not shared after all would be another truth
    }
    for (int i = 0; i < sim_config.devices; i++)
        sim_devices[i].engine_free = shared->engine_free[i];
}

void shared_lock(void)
{
    if (shared && pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&shared->lock); // times are whole words: nothing to mend
}

void shared_unlock(void)
{
    if (shared)
        pthread_mutex_unlock(&shared->lock);
}
