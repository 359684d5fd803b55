// SPDX-License-Identifier: Apache-2.0
// hostjob: programs whose threads do something exactly known, and say so in a file of JSON lines.
// Times are CLOCK_MONOTONIC nanoseconds; the figures are the kernel's own (rusage, CPU clocks, schedstat).
#ifndef SIMGPU_HOSTJOB_H
#define SIMGPU_HOSTJOB_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct Options {
    const char *mode;
    const char *truth;   // the file the truth is appended to; none: nothing is written
    const char *path;    // a file to make and read
    const char *variant; // of the mode; "" is the usual one
    uint64_t count;      // rounds, reads, children ...; 0: the mode's own
    uint64_t ms;         // time or CPU time; 0: the mode's own
    uint64_t kib;        // size of one read
    int cpu;             // to be pinned to; -1: not pinned
    int threads;
    int late; // threads made after the start
    bool wait;
    char **argv; // as the program was called, for exec
} Options;

// What the kernel has counted for a thread so far.
typedef struct Mark {
    uint64_t ns;
    uint64_t cpu_ns;       // CLOCK_THREAD_CPUTIME_ID
    uint64_t on_cpu_ns;    // schedstat
    uint64_t delay_ns;     // schedstat: ready, but without a CPU
    uint64_t read_bytes;   // from storage, in its name
    int64_t voluntary;     // voluntary switches: the thread blocked
    int64_t involuntary;   // the others, also by sched_yield
    int64_t major_faults;
} Mark;

#define MAX_THREADS 256

// A thread, its part of the truth, and what its mode wants to know.
typedef struct Thread {
    pthread_t handle;
    void (*body)(struct Thread *);
    const Options *options;
    char name[16];
    int number;
    pid_t tid;
    Mark begin, end;
    sem_t turn; // posted when it may end
    void *shared;
    struct Thread *other;
} Thread;

// ---- hostjob.c ----

uint64_t clock_ns(int clock);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Insists on success, which is not negative; returns it.
long must(long result, const char *what);
// Appends one line to the truth; lines of several threads and processes do not mix.
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
// With --wait: says `ready` and waits for a byte.
void hold(const Options *options);
void pin(int cpu); // the calling thread; -1 does nothing
void name_thread(const char *name);
void sleep_ns(uint64_t ns);
void spin_ns(uint64_t cpu_ns); // of this thread's own CPU time
uint64_t or_else(uint64_t given, uint64_t usual);
// Memory that forked processes share.
void *shared_memory(size_t bytes);
// Pseudo-random numbers, the same in every run.
uint64_t next_random(uint64_t *state);

// The calling thread's figures at one moment, with no switch while they were taken.
Mark mark(void);
// One line: what happened to a thread between two marks.
void tell_window(const char *name, pid_t pid, pid_t tid, const Mark *begin, const Mark *end);

void start_thread(Thread *thread, const Options *options, const char *name, void (*body)(Thread *));
// Lets the threads end one after the other, so that none waits for a CPU between its last mark and its
// end, and reports their windows.
void end_threads(Thread *threads, int count);
// Waits for a child, reports its figures, and returns its status as waitpid does.
int reap(pid_t pid);
// The state of a thread of this process as /proc has it; `syscall` (if any) is set to the number of its
// system call when it sleeps in one.
char thread_state(pid_t tid, long *syscall);
// Waits until a thread sleeps in a system call, and returns the call's number.
long until_asleep(pid_t tid);

// ---- modes ----

void run_sleep(const Options *options);
void run_hogs(const Options *options);
void run_spin(const Options *options);
void run_threads(const Options *options);
void run_yield(const Options *options);
void run_switches(const Options *options);
void run_stop(const Options *options);

void run_pingpong(const Options *options);
void run_convoy(const Options *options);

void run_waits(const Options *options);
bool is_wait(const char *kind);

void run_disk(const Options *options);
void run_buffered(const Options *options);
void run_faults(const Options *options);
void run_mmaplock(const Options *options);
void run_oom(const Options *options);
void run_retransmit(const Options *options);

void run_forkstorm(const Options *options);
void run_exec(const Options *options);

#endif
