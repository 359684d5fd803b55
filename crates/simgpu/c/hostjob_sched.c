// SPDX-License-Identifier: Apache-2.0
// hostjob: sleeping, spinning, yielding, and being kept from the CPU.
#define _GNU_SOURCE
#include "hostjob.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Forks a process that dies with its parent; returns 0 in it, as fork does.
static pid_t forked(const char *name)
{
    pid_t pid = (pid_t)must(fork(), "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        name_thread(name);
    }
    return pid;
}

// ---- sleep ----

void run_sleep(const Options *options)
{
    pin(options->cpu);
    uint64_t rounds = or_else(options->count, 10), each_ns = or_else(options->ms, 50) * 1000000;
    tell("{\"what\":\"sleeper\",\"pid\":%d,\"tid\":%d,\"count\":%" PRIu64 ",\"each_ns\":%" PRIu64 "}", (int)getpid(),
         (int)gettid(), rounds, each_ns);
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t begin = clock_ns(CLOCK_MONOTONIC);
        sleep_ns(each_ns);
        uint64_t end = clock_ns(CLOCK_MONOTONIC);
        tell("{\"what\":\"sleep\",\"begin\":%" PRIu64 ",\"end\":%" PRIu64 "}", begin, end);
    }
}

// ---- two hogs and a victim on one CPU ----

#define HOGS 2

typedef struct Hogs {
    volatile int running; // hogs that have the CPU to themselves and are at it
    volatile int stop;
} Hogs;

static void hog(Hogs *hogs, int cpu)
{
    pin(cpu);
    __atomic_add_fetch(&hogs->running, 1, __ATOMIC_RELEASE);
    while (!hogs->stop)
        for (volatile int i = 0; i < 20000; i++)
            ;
    _exit(0);
}

// The victim asks for the hogs' CPU clocks itself: while it runs, they do not, so the figures are final.
static uint64_t cpu_time_of(pid_t pid)
{
    clockid_t clock;
    errno = clock_getcpuclockid(pid, &clock);
    if (errno)
        die("clock_getcpuclockid: %s", strerror(errno));
    return clock_ns(clock);
}

static void victim(const Options *options, const pid_t *hogs)
{
    pin(options->cpu);
    uint64_t before[HOGS], after[HOGS];
    // A switch between the readings would make them disagree: then again.
    Mark begin, again;
    do {
        begin = mark();
        for (int i = 0; i < HOGS; i++)
            before[i] = cpu_time_of(hogs[i]);
        again = mark();
    } while (again.involuntary != begin.involuntary);
    spin_ns(or_else(options->ms, 500) * 1000000);
    Mark end;
    do {
        end = mark();
        for (int i = 0; i < HOGS; i++)
            after[i] = cpu_time_of(hogs[i]);
        again = mark();
    } while (again.involuntary != end.involuntary);
    tell_window("victim", getpid(), gettid(), &begin, &end);
    for (int i = 0; i < HOGS; i++)
        tell("{\"what\":\"hog\",\"pid\":%d,\"cpu_ns\":%" PRIu64 ",\"name\":\"hog-%d\"}", (int)hogs[i],
             after[i] - before[i], i);
    _exit(0);
}

void run_hogs(const Options *options)
{
    Options pinned = *options;
    if (pinned.cpu < 0)
        pinned.cpu = 0;
    Hogs *shared = shared_memory(sizeof *shared);
    pid_t hogs[HOGS];
    for (int i = 0; i < HOGS; i++) {
        char name[16];
        snprintf(name, sizeof name, "hog-%d", i);
        hogs[i] = forked(name);
        if (hogs[i] == 0)
            hog(shared, pinned.cpu);
    }
    while (__atomic_load_n(&shared->running, __ATOMIC_ACQUIRE) < HOGS)
        sleep_ns(1000000);
    pid_t pid = forked("victim");
    if (pid == 0)
        victim(&pinned, hogs);
    reap(pid);
    shared->stop = 1;
    for (int i = 0; i < HOGS; i++)
        reap(hogs[i]);
}

// ---- spin ----

void run_spin(const Options *options)
{
    pin(options->cpu);
    spin_ns(or_else(options->ms, 200) * 1000000);
}

// ---- threads made before and after the start ----

// A gate that is opened once, for threads that exist before the start.
static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate = PTHREAD_COND_INITIALIZER;
static bool gate_open;

static void mixture(Thread *thread)
{
    pthread_mutex_lock(&gate_lock);
    while (!gate_open)
        pthread_cond_wait(&gate, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
    thread->begin = mark(); // in case it is not observed before
    uint64_t rounds = or_else(thread->options->count, 20);
    unsigned kind = (unsigned)thread->number % 4;
    for (uint64_t i = 0; i < rounds; i++) {
        if (kind == 0 || kind == 3)
            spin_ns(2000000);
        if (kind == 1 || kind == 3)
            sleep_ns(1500000);
        if (kind == 2 || kind == 3)
            for (int yields = 0; yields < 50; yields++)
                sched_yield();
        if (kind == 2)
            sleep_ns(100000);
    }
}

static void start_mixtures(Thread *threads, int first, int count, const Options *options, const char *kind)
{
    for (int i = first; i < first + count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%s-%d", kind, i);
        threads[i].number = i;
        start_thread(&threads[i], options, name, mixture);
    }
}

void run_threads(const Options *options)
{
    static Thread threads[MAX_THREADS];
    start_mixtures(threads, 0, options->threads, options, "early");
    for (int i = 0; i < options->threads; i++) {
        while (!__atomic_load_n(&threads[i].tid, __ATOMIC_ACQUIRE))
            sleep_ns(1000000);
        until_asleep(threads[i].tid); // at the gate: nothing happens while it is observed
    }
    hold(options);
    pthread_mutex_lock(&gate_lock);
    gate_open = true;
    pthread_cond_broadcast(&gate);
    pthread_mutex_unlock(&gate_lock);
    start_mixtures(threads, options->threads, options->late, options, "late");
    end_threads(threads, options->threads + options->late);
}

// ---- yield: two threads on one CPU that offer it to each other ----

static pthread_barrier_t both;

static void yielder(Thread *thread)
{
    pin(thread->options->cpu < 0 ? 0 : thread->options->cpu);
    pthread_barrier_wait(&both);
    for (uint64_t i = or_else(thread->options->count, 5000); i > 0; i--)
        sched_yield();
}

void run_yield(const Options *options)
{
    static Thread threads[2];
    pthread_barrier_init(&both, NULL, 2);
    start_thread(&threads[0], options, "yielder-0", yielder);
    start_thread(&threads[1], options, "yielder-1", yielder);
    end_threads(threads, 2);
}

// ---- switches: as many as possible ----

typedef struct Table {
    int to[2][2]; // a pipe to each player
    volatile int stop;
} Table;

static void player(Thread *thread)
{
    Table *table = thread->shared;
    pin(thread->options->cpu < 0 ? 0 : thread->options->cpu);
    int from = table->to[thread->number][0], to = table->to[!thread->number][1];
    uint64_t end = clock_ns(CLOCK_MONOTONIC) + or_else(thread->options->ms, 500) * 1000000;
    char ball = 0;
    if (thread->number == 0)
        must(write(to, &ball, 1), "write");
    while (read(from, &ball, 1) == 1) {
        // The first one to see the end says so with its last ball, so that both end.
        if (table->stop || clock_ns(CLOCK_MONOTONIC) >= end) {
            table->stop = 1;
            must(write(to, &ball, 1), "write");
            return;
        }
        must(write(to, &ball, 1), "write");
    }
}

void run_switches(const Options *options)
{
    static Thread threads[2];
    static Table table;
    must(pipe(table.to[0]), "pipe");
    must(pipe(table.to[1]), "pipe");
    for (int i = 0; i < 2; i++) {
        threads[i].number = i;
        threads[i].shared = &table;
        start_thread(&threads[i], options, i ? "switcher-1" : "switcher-0", player);
    }
    end_threads(threads, 2);
}

// ---- stop: a process that is stopped and continued ----

void run_stop(const Options *options)
{
    Mark *marks = shared_memory(2 * sizeof *marks);
    pid_t pid = forked("stopped");
    if (pid == 0) {
        pin(options->cpu);
        marks[0] = mark();
        for (uint64_t i = or_else(options->count, 5); i > 0; i--)
            raise(SIGSTOP);
        marks[1] = mark();
        tell_window("stopped", getpid(), getpid(), &marks[0], &marks[1]);
        _exit(0);
    }
    for (uint64_t i = or_else(options->count, 5); i > 0; i--) {
        int status;
        must(waitpid(pid, &status, WUNTRACED), "waitpid");
        uint64_t begin = clock_ns(CLOCK_MONOTONIC);
        sleep_ns(5000000);
        uint64_t end = clock_ns(CLOCK_MONOTONIC);
        kill(pid, SIGCONT);
        tell("{\"what\":\"stop\",\"pid\":%d,\"begin\":%" PRIu64 ",\"end\":%" PRIu64 "}", (int)pid, begin, end);
    }
    reap(pid);
}
