// SPDX-License-Identifier: Apache-2.0
// Reads truth logs while they grow: when a kernel ran on which device, and who
// holds how much device memory. Kernels that follow each other without a gap
// become one span at once, so little is kept, and that for half a minute only.
#define _GNU_SOURCE
#include "nvml_truth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "simlog.h"

#define MAX_LOGS 4096
#define READ_RECORDS 1024
#define KEEP_NS 30000000000ull

typedef struct Span {
    uint64_t start, end;
    int device;
} Span;

// One thread's log, read up to `records`.
typedef struct Log {
    char name[64];
    int fd;
    unsigned pid;
    uint64_t offset, records;
    long long bytes; // allocated less freed by this thread: may be negative
    Span *spans;
    size_t count, capacity;
} Log;

static Log logs[MAX_LOGS];
static unsigned log_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Spans of one thread come in the order of their starts for each device.
static void add_span(Log *log, const SimRecord *record)
{
    for (size_t i = log->count; i-- > 0 && log->count - i <= SIM_MAX_DEVICES;) {
        Span *span = &log->spans[i];
        if (span->device != record->device)
            continue;
        if (record->t_enter < span->start || record->t_enter > span->end)
            break;
        span->end = record->t_exit > span->end ? record->t_exit : span->end;
        return;
    }
    if (log->count == log->capacity) {
        log->capacity = log->capacity ? log->capacity * 2 : 256;
        log->spans = realloc(log->spans, log->capacity * sizeof *log->spans);
        if (!log->spans)
            abort();
    }
    log->spans[log->count++] = (Span){record->t_enter, record->t_exit, record->device};
}

static void forget_old(Log *log, uint64_t before)
{
    size_t kept = 0;
    for (size_t i = 0; i < log->count; i++)
        if (log->spans[i].end >= before)
            log->spans[kept++] = log->spans[i];
    log->count = kept;
}

static void take(Log *log, const SimRecord *record)
{
    bool on_device = record->memory != MEM_HOST && record->memory != MEM_MANAGED;
    if (record->kind == REC_BUSY && record->direction == SIM_COMPUTE)
        add_span(log, record);
    else if (record->kind == REC_ALLOC && on_device)
        log->bytes += (long long)record->bytes;
    else if (record->kind == REC_FREE && on_device)
        log->bytes -= (long long)record->bytes;
}

static void read_new(Log *log)
{
    static SimRecord records[READ_RECORDS]; // under the lock
    uint64_t there = 0;
    if (pread(log->fd, &there, sizeof there, offsetof(SimLogHeader, records)) != sizeof there)
        return;
    while (log->records < there) {
        uint64_t wanted = there - log->records < READ_RECORDS ? there - log->records : READ_RECORDS;
        off_t at = (off_t)(log->offset + log->records * sizeof *records);
        ssize_t got = pread(log->fd, records, wanted * sizeof *records, at);
        if (got < (ssize_t)sizeof *records)
            return;
        uint64_t whole = (uint64_t)got / sizeof *records;
        for (uint64_t i = 0; i < whole; i++)
            take(log, &records[i]);
        log->records += whole;
    }
}

// A log whose header is not finished yet is met again at the next look.
static void meet(const char *folder, const char *name)
{
    char path[4096];
    SimLogHeader header;
    for (unsigned i = 0; i < log_count; i++)
        if (!strcmp(logs[i].name, name))
            return;
    if (log_count == MAX_LOGS || strlen(name) >= sizeof logs->name)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (pread(fd, &header, 512, 0) != 512 || memcmp(header.magic, "SIMLOG1", 8)) {
        close(fd);
        return;
    }
    Log *log = &logs[log_count++];
    *log = (Log){.fd = fd, .pid = header.pid, .offset = header.records_offset};
    strcpy(log->name, name);
}

static void look(const char *folder)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name);
        if (length > 7 && !strcmp(entry->d_name + length - 7, ".simlog"))
            meet(folder, entry->d_name);
    }
    if (dir)
        closedir(dir);
    for (unsigned i = 0; i < log_count; i++) {
        read_new(&logs[i]);
        forget_old(&logs[i], now > KEEP_NS ? now - KEEP_NS : 0);
    }
}

static int by_start(const void *a, const void *b)
{
    const Span *left = a, *right = b;
    return left->start < right->start ? -1 : left->start > right->start;
}

// With the lock held: the spans of a device that touch a time, of all threads or
// of those of one process.
static Span *gather(int device, unsigned pid, uint64_t from, uint64_t to, size_t *count)
{
    size_t all = 0;
    for (unsigned i = 0; i < log_count; i++)
        all += logs[i].count;
    Span *found = malloc((all + 1) * sizeof *found);
    *count = 0;
    for (unsigned i = 0; found && i < log_count; i++) {
        if (pid && logs[i].pid != pid)
            continue;
        for (size_t j = 0; j < logs[i].count; j++) {
            const Span *span = &logs[i].spans[j];
            if (span->device == device && span->end > from && span->start < to)
                found[(*count)++] = *span;
        }
    }
    if (found)
        qsort(found, *count, sizeof *found, by_start);
    return found;
}

uint64_t truth_busy_ns(const char *folder, int device, unsigned pid, uint64_t from, uint64_t to)
{
    size_t count;
    uint64_t busy = 0, reached = from;
    pthread_mutex_lock(&lock);
    look(folder);
    Span *spans = gather(device, pid, from, to, &count);
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < count; i++) {
        uint64_t start = spans[i].start > reached ? spans[i].start : reached;
        uint64_t end = spans[i].end < to ? spans[i].end : to;
        if (end > start) {
            busy += end - start;
            reached = end;
        }
    }
    free(spans);
    return busy;
}

static bool seen_before(unsigned index)
{
    for (unsigned i = 0; i < index; i++)
        if (logs[i].pid == logs[index].pid)
            return true;
    return false;
}

unsigned truth_processes(const char *folder, unsigned room, unsigned *pids, unsigned long long *bytes)
{
    unsigned there = 0;
    pthread_mutex_lock(&lock);
    look(folder);
    for (unsigned i = 0; i < log_count; i++) {
        if (seen_before(i) || (kill((pid_t)logs[i].pid, 0) != 0 && errno == ESRCH))
            continue;
        long long sum = 0;
        for (unsigned j = i; j < log_count; j++)
            sum += logs[j].pid == logs[i].pid ? logs[j].bytes : 0;
        if (there < room) {
            pids[there] = logs[i].pid;
            bytes[there] = sum > 0 ? (unsigned long long)sum : 0;
        }
        there++;
    }
    pthread_mutex_unlock(&lock);
    return there;
}
