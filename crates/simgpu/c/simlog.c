// SPDX-License-Identifier: Apache-2.0
// Truth log and the per-thread call depth. The hot path is plain stores into
// a mapped file; system calls happen once per thread and once per chunk.
#define _GNU_SOURCE
#include "simlog.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define CHUNK_BYTES (1u << 20)
#define RECORDS_OFFSET ((uint32_t)((sizeof(SimLogHeader) + PAGE - 1) / PAGE * PAGE))

_Static_assert(sizeof(SimRecord) == 64, "the reader relies on 64-byte records");
_Static_assert(sizeof(SimDetailRecord) == 64 && sizeof(SimTextRecord) == 64, "so do these");
_Static_assert(offsetof(SimDetailRecord, kind) == offsetof(SimRecord, kind), "one place");
_Static_assert(offsetof(SimTextRecord, kind) == offsetof(SimRecord, kind), "for the kind");
_Static_assert(offsetof(SimLogHeader, counters) == 512, "counters follow the fixed part");
_Static_assert(CHUNK_BYTES % sizeof(SimRecord) == 0, "records must not straddle chunks");

__thread SimThread sim_thread;
enum SimLogLevel sim_log_level;

static char log_dir[4096];
static pthread_key_t thread_key;

static const char *const function_names[FN_COUNT] = {
#define FN(name) #name,
#define FN_AS(id, symbol) #symbol,
#include "functions.def"
#undef FN
#undef FN_AS
};

uint64_t sim_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}


static void unmap_log(SimThread *thread)
{
    if (!thread->header)
        return;
    if (thread->chunk_end)
        munmap((char *)thread->chunk_end - CHUNK_BYTES, CHUNK_BYTES);
    munmap(thread->header, RECORDS_OFFSET);
    close(thread->log_fd);
    thread->header = NULL;
    thread->next = thread->chunk_end = NULL;
}

static void thread_ended(void *arg)
{
    SimThread *thread = arg;
    unmap_log(thread);
    // A call from a later destructor of this thread must not reopen the file.
    thread->log_failed = true;
    sim_thread_release_streams(thread);
}

void sim_thread_at_exit(void)
{
    pthread_setspecific(thread_key, &sim_thread);
}

// A forked child shares its parent's mapping, and must not write into it.
static void forked_child(void)
{
    unmap_log(&sim_thread);
    sim_thread.log_failed = false;
}

// A library that is unloaded leaves nothing behind that would be called or
// written to later. Other threads' mappings stay: they hold whole records.
__attribute__((destructor)) static void log_end(void)
{
    pthread_key_delete(thread_key);
    unmap_log(&sim_thread);
}

__attribute__((constructor)) static void log_init(void)
{
    pthread_key_create(&thread_key, thread_ended);
    const char *dir = getenv("SIMGPU_LOG");
    if (!dir || !*dir || strlen(dir) >= sizeof log_dir - 64)
        return;
    strcpy(log_dir, dir);
    mkdir(log_dir, 0755); // if it is not there; failure shows when a file is made
    const char *level = getenv("SIMGPU_LOG_LEVEL");
    sim_log_level = level && strcmp(level, "counts") == 0 ? LOG_COUNTS : LOG_FULL;
    pthread_atfork(NULL, NULL, forked_child);
}

// Thread ids recur, so a second file of the same ids gets a number.
static int create_log_file(int pid, int tid)
{
    char path[sizeof log_dir + 64];
    for (int n = 0; n < 10000; n++) {
        if (n == 0)
            snprintf(path, sizeof path, "%s/%d.%d.simlog", log_dir, pid, tid);
        else
            snprintf(path, sizeof path, "%s/%d.%d.%d.simlog", log_dir, pid, tid, n);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static void fill_header(SimLogHeader *header, int pid, int tid)
{
    header->pid = (uint32_t)pid;
    header->tid = (uint32_t)tid;
    header->records_offset = RECORDS_OFFSET;
    header->record_bytes = sizeof(SimRecord);
    header->counters_offset = offsetof(SimLogHeader, counters);
    header->counter_bytes = sizeof(SimCounter);
    header->functions = FN_COUNT;
    header->level = sim_log_level;
    for (unsigned i = 0; i < FN_COUNT; i++)
        strncpy(header->counters[i].name, function_names[i],
                sizeof header->counters[i].name - 1);
    // Last: a file without the magic is one whose header was never finished.
    memcpy(header->magic, "SIMLOG1", 8);
}

static void open_log(void)
{
    SimThread *thread = &sim_thread;
    int pid = getpid(), tid = (int)syscall(SYS_gettid);
    thread->log_failed = true; // until everything below has worked
    sim_thread_at_exit();
    int fd = create_log_file(pid, tid);
    if (fd < 0 || ftruncate(fd, RECORDS_OFFSET) != 0) {
        fprintf(stderr, "simgpu: no truth log for thread %d in %s\n", tid, log_dir);
        return;
    }
    void *map = mmap(NULL, RECORDS_OFFSET, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return;
    }
    fill_header(map, pid, tid);
    thread->log_fd = fd;
    thread->header = map;
    thread->log_failed = false;
}

// Maps the file's next chunk, in place of the one that is full.
static bool next_chunk(SimThread *thread)
{
    off_t offset = (off_t)(RECORDS_OFFSET + thread->header->records * sizeof(SimRecord));
    if (thread->chunk_end)
        munmap((char *)thread->chunk_end - CHUNK_BYTES, CHUNK_BYTES);
    thread->next = thread->chunk_end = NULL;
    if (ftruncate(thread->log_fd, offset + CHUNK_BYTES) != 0)
        return false;
    char *map =
        mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, thread->log_fd, offset);
    if (map == MAP_FAILED)
        return false;
    thread->next = (SimRecord *)map;
    thread->chunk_end = (SimRecord *)(map + CHUNK_BYTES);
    return true;
}

static void append(SimThread *thread, const void *record)
{
    if (thread->next == thread->chunk_end && !next_chunk(thread)) {
        fprintf(stderr, "simgpu: cannot grow the truth log\n");
        abort(); // a truth log with holes would be worse than none
    }
    memcpy(thread->next++, record, sizeof(SimRecord));
    __atomic_store_n(&thread->header->records, thread->header->records + 1, __ATOMIC_RELEASE);
}

static void append_text(SimThread *thread, const SimCall *call)
{
    const char *rest = call->text;
    for (size_t left = strlen(rest); left;) {
        SimTextRecord record = {.kind = REC_TEXT, .function = call->function};
        record.bytes = (uint32_t)(left < sizeof record.text ? left : sizeof record.text);
        memcpy(record.text, rest, record.bytes);
        append(thread, &record);
        rest += record.bytes;
        left -= record.bytes;
    }
}

static void append_detail(SimThread *thread, const SimCall *call)
{
    SimDetailRecord record = {
        .kind = REC_DETAIL,
        .function = call->function,
        .detail = call->detail->kind,
    };
    memcpy(record.values, call->detail->values, sizeof record.values);
    memcpy(record.numbers, call->detail->numbers, sizeof record.numbers);
    append(thread, &record);
}

void simgpu_enter(SimCall *call)
{
    SimThread *thread = &sim_thread;
    unsigned depth = thread->depth++;
    call->depth = (uint8_t)depth;
    if (depth < SIM_MAX_DEPTH)
        thread->open[depth] = call->function;
    if (sim_log_level == LOG_NONE)
        return;
    if (!thread->header) {
        if (thread->log_failed)
            return;
        open_log();
        if (!thread->header)
            return;
    }
    if (sim_log_level == LOG_FULL)
        call->t_enter = sim_now();
    if (depth < SIM_MAX_DEPTH)
        thread->header->open[depth] = (SimOpenCall){call->t_enter, call->function};
    thread->header->open_depth = thread->depth;
}

int simgpu_leave(SimCall *call, int result)
{
    SimThread *thread = &sim_thread;
    thread->depth--;
    SimLogHeader *header = thread->header;
    if (!header)
        return result;
    uint64_t t_exit = sim_log_level == LOG_FULL ? sim_now() : 0;
    SimCounter *counter = &header->counters[call->function];
    if (call->depth == 0) {
        counter->calls_outer++;
        counter->errors_outer += result != 0;
        counter->bytes_outer += result == 0 ? call->bytes : 0;
        counter->ns_outer += t_exit - call->t_enter;
    } else {
        counter->calls_inner++;
    }
    if (sim_log_level == LOG_FULL) {
        if (call->text)
            append_text(thread, call);
        if (call->detail)
            append_detail(thread, call);
        SimRecord record = {
            .kind = REC_CALL,
            .t_enter = call->t_enter,
            .t_exit = t_exit,
            .bytes = call->bytes,
            .pointer = call->pointer,
            .stream = call->stream,
            .ret = result,
            .function = call->function,
            .depth = call->depth,
            .device = (int8_t)sim_current_device(),
            .direction = call->direction,
        };
        append(thread, &record);
    }
    header->open_depth = thread->depth;
    return result;
}

static uint16_t innermost(const SimThread *thread)
{
    return thread->depth && thread->depth <= SIM_MAX_DEPTH ? thread->open[thread->depth - 1]
                                                           : UINT16_MAX;
}

void simlog_busy(int device, unsigned engine, uint64_t start, uint64_t end, uint64_t stream,
                 uint64_t bytes)
{
    SimThread *thread = &sim_thread;
    if (sim_log_level != LOG_FULL || !thread->header)
        return;
    SimRecord record = {
        .kind = REC_BUSY,
        .t_enter = start,
        .t_exit = end,
        .bytes = bytes,
        .stream = stream,
        .function = innermost(thread),
        .depth = (uint8_t)thread->depth,
        .device = (int8_t)device,
        .direction = (uint8_t)engine,
    };
    append(thread, &record);
}

void simlog_memory(unsigned kind, unsigned memory, int device, uint64_t pointer,
                   uint64_t bytes)
{
    SimThread *thread = &sim_thread;
    if (sim_log_level != LOG_FULL || !thread->header)
        return;
    uint64_t now = sim_now();
    SimRecord record = {
        .kind = (uint8_t)kind,
        .t_enter = now,
        .t_exit = now,
        .bytes = bytes,
        .pointer = pointer,
        .function = innermost(thread),
        .depth = (uint8_t)thread->depth,
        .device = (int8_t)device,
        .memory = (uint8_t)memory,
    };
    append(thread, &record);
}
