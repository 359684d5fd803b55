// SPDX-License-Identifier: Apache-2.0
// hostjob: disk, page faults, memory, network.
#define _GNU_SOURCE
#include "hostjob.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)
#define FILE_BYTES (64 * MIB)

// Creates the file and returns it, with none of its pages in the page cache.
static int cold_file(const Options *options, int flags)
{
    if (!options->path)
        die("this mode needs --path FILE");
    int fd = (int)must(open(options->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), options->path);
    char *part = malloc(MIB);
    if (!part)
        die("no memory");
    for (unsigned done = 0; done < FILE_BYTES; done += MIB) {
        memset(part, (int)(done / MIB) + 1, MIB);
        if (write(fd, part, MIB) != MIB)
            die("%s: %s", options->path, strerror(errno));
    }
    free(part);
    must(fsync(fd), "fsync");
    must(-posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "posix_fadvise");
    close(fd);
    return (int)must(open(options->path, O_RDONLY | O_CLOEXEC | flags, 0), options->path);
}

// ---- reads ----

static void read_at_random(const Options *options, int fd, uint64_t count, size_t size)
{
    static struct { uint64_t begin, end; } reads[10000];
    if (count > sizeof reads / sizeof *reads)
        die("--count out of range");
    char *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffer == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    uint64_t random = 1;
    Mark begin = mark();
    for (uint64_t i = 0; i < count; i++) {
        off_t at = (off_t)(next_random(&random) % (FILE_BYTES / size) * size);
        reads[i].begin = clock_ns(CLOCK_MONOTONIC);
        if (pread(fd, buffer, size, at) != (ssize_t)size)
            die("%s: %s", options->path, strerror(errno));
        reads[i].end = clock_ns(CLOCK_MONOTONIC);
    }
    Mark end = mark();
    tell_window("reader", getpid(), gettid(), &begin, &end);
    for (uint64_t i = 0; i < count; i++)
        tell("{\"what\":\"read\",\"bytes\":%zu,\"begin\":%" PRIu64 ",\"end\":%" PRIu64 "}", size, reads[i].begin,
             reads[i].end);
}

void run_disk(const Options *options)
{
    int fd = cold_file(options, O_DIRECT);
    hold(options);
    read_at_random(options, fd, or_else(options->count, 50), or_else(options->kib, 1024) * 1024);
}

// Reads every part once, in order: the page cache never has the next one.
void run_buffered(const Options *options)
{
    int fd = cold_file(options, 0);
    static char part[MIB];
    memset(part, 1, sizeof part);
    hold(options);
    Mark begin = mark();
    uint64_t bytes = 0;
    ssize_t length;
    while ((length = read(fd, part, sizeof part)) > 0)
        bytes += (uint64_t)length;
    Mark end = mark();
    if (bytes != FILE_BYTES)
        die("%s: %" PRIu64 " bytes", options->path, bytes);
    tell_window("reader", getpid(), gettid(), &begin, &end);
    tell("{\"what\":\"buffered\",\"bytes\":%" PRIu64 "}", bytes);
}

// ---- major faults ----

void run_faults(const Options *options)
{
    int fd = cold_file(options, 0);
    volatile const char *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    must(madvise((void *)map, FILE_BYTES, MADV_RANDOM), "madvise");
    uint64_t count = or_else(options->count, 200), random = 1;
    long page = sysconf(_SC_PAGESIZE);
    hold(options);
    Mark begin = mark();
    unsigned sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (unsigned)map[next_random(&random) % (FILE_BYTES / (unsigned long)page) * (unsigned long)page];
    Mark end = mark();
    tell_window("faulter", getpid(), gettid(), &begin, &end);
    tell("{\"what\":\"faults\",\"map\":%" PRIu64 ",\"bytes\":%u,\"sum\":%u}", (uint64_t)(uintptr_t)map, FILE_BYTES,
         sum);
}

// ---- the lock of the address space ----

typedef struct Slow {
    uint64_t begin, end;
} Slow;

#define MAX_SLOW 1000
static Slow slow[MAX_SLOW];
static int slow_calls;
static volatile bool populated;

// Holds the lock for reading, for as long as it takes to fill the memory.
static void populate(Thread *thread)
{
    for (uint64_t i = or_else(thread->options->count, 20); i > 0; i--) {
        void *memory = mmap(NULL, 128 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            die("mmap: %s", strerror(errno));
        madvise(memory, 128 * MIB, MADV_NOHUGEPAGE);
        must(madvise(memory, 128 * MIB, MADV_POPULATE_WRITE), "madvise");
        munmap(memory, 128 * MIB);
    }
    populated = true;
}

// Wants it for writing.
static void map_and_unmap(Thread *thread)
{
    (void)thread;
    while (!populated) {
        uint64_t begin = clock_ns(CLOCK_MONOTONIC);
        void *memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint64_t end = clock_ns(CLOCK_MONOTONIC);
        if (end - begin > 500000 && slow_calls < MAX_SLOW)
            slow[slow_calls++] = (Slow){begin, end};
        munmap(memory, 4096);
        sleep_ns(100000);
    }
}

void run_mmaplock(const Options *options)
{
    static Thread threads[2];
    start_thread(&threads[0], options, "populate", populate);
    start_thread(&threads[1], options, "map-unmap", map_and_unmap);
    end_threads(threads, 2);
    for (int i = 0; i < slow_calls; i++)
        tell("{\"what\":\"slow\",\"tid\":%d,\"begin\":%" PRIu64 ",\"end\":%" PRIu64 "}", (int)threads[1].tid,
             slow[i].begin, slow[i].end);
}

// ---- out of memory: to be run where memory is limited ----

void run_oom(const Options *options)
{
    uint64_t limit = or_else(options->count, 256) * MIB; // gives up here unless stopped before
    pid_t pid = (pid_t)must(fork(), "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        name_thread("glutton");
        for (uint64_t i = 0; i < limit / MIB; i++) {
            char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED)
                _exit(1);
            memset(memory, 1, MIB);
        }
        _exit(0);
    }
    reap(pid);
}

// ---- retransmits: connections that a full queue does not let in ----

static unsigned sent_again(const int *clients, int count)
{
    unsigned sum = 0;
    for (int i = 0; i < count; i++) {
        struct tcp_info info = {0};
        socklen_t length = sizeof info;
        must(getsockopt(clients[i], IPPROTO_TCP, TCP_INFO, &info, &length), "getsockopt");
        sum += info.tcpi_total_retrans;
    }
    return sum;
}

// A listener whose queue is full drops what more comes, so the sender must send its SYN again after a second.
static void retransmit(int family)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    if (family == AF_INET)
        v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        v6->sin6_addr = in6addr_loopback;
    socklen_t size = family == AF_INET ? sizeof *v4 : sizeof *v6;
    int listening = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, size)) {
        tell("{\"what\":\"no network\",\"family\":%d}", family == AF_INET ? 4 : 6);
        return;
    }
    must(listen(listening, 0), "listen");
    must(getsockname(listening, (struct sockaddr *)&address, &size), "getsockname");
    int clients[4];
    for (int i = 0; i < 4; i++) {
        clients[i] = (int)must(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
        if (connect(clients[i], (struct sockaddr *)&address, size) && errno != EINPROGRESS)
            die("connect: %s", strerror(errno));
    }
    while (!sent_again(clients, 4))
        sleep_ns(100000000);
    // All processes do it at nearly the same time, then pause for two seconds.
    sleep_ns(100000000);
    unsigned count = sent_again(clients, 4);
    tell("{\"what\":\"retransmits\",\"family\":%d,\"port\":%d,\"count\":%u}", family == AF_INET ? 4 : 6,
         ntohs(family == AF_INET ? v4->sin_port : v6->sin6_port), count);
    for (int i = 0; i < 4; i++)
        close(clients[i]);
    close(listening);
}

void run_retransmit(const Options *options)
{
    (void)options;
    retransmit(AF_INET);
    retransmit(AF_INET6);
}
