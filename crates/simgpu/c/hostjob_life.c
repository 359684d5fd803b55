// SPDX-License-Identifier: Apache-2.0
// hostjob: processes that come, become something else, and go.
#define _GNU_SOURCE
#include "hostjob.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- a storm of forks: each child's end is known from its number ----

static _Noreturn void ends(unsigned number)
{
    if (number % 5 == 2)
        kill(getpid(), SIGKILL);
    _exit((int)(number % 256));
}

static _Noreturn void storm_child(unsigned number)
{
    if (number % 4 == 1) {
        pid_t grandchild = (pid_t)must(fork(), "fork");
        if (grandchild == 0)
            ends(number + 101);
        reap(grandchild);
    }
    ends(number);
}

void run_forkstorm(const Options *options)
{
    unsigned count = (unsigned)or_else(options->count, 300);
    pid_t *children = calloc(count, sizeof *children);
    if (!children)
        die("no memory");
    for (unsigned i = 0; i < count; i++) {
        children[i] = (pid_t)must(fork(), "fork");
        if (children[i] == 0)
            storm_child(i);
    }
    for (unsigned i = 0; i < count; i++)
        reap(children[i]);
    free(children);
}

// ---- exec: the process goes on as `hostjob sleep`, with the same number ----

static void become_a_sleeper(const Options *options)
{
    char count[24];
    snprintf(count, sizeof count, "%" PRIu64, or_else(options->count, 4));
    const char *truth = options->truth ? options->truth : "/dev/null";
    tell("{\"what\":\"exec\",\"pid\":%d,\"tid\":%d,\"time\":%" PRIu64 "}", (int)getpid(), (int)gettid(),
         clock_ns(CLOCK_MONOTONIC));
    // By its own path: the kernel names the thread after what was executed.
    char self[4096];
    self[must(readlink("/proc/self/exe", self, sizeof self - 1), "readlink")] = 0;
    execl(self, "sleeper", "sleep", "--count", count, "--ms", "10", "--truth", truth, NULL);
    die("cannot exec");
}

static void thread_becomes_a_sleeper(Thread *thread)
{
    become_a_sleeper(thread->options);
}

// A sibling that the exec must end.
static void thread_sleeps(Thread *thread)
{
    (void)thread;
    sleep_ns(60000000000u);
}

void run_exec(const Options *options)
{
    if (strcmp(options->variant, "thread"))
        become_a_sleeper(options);
    static Thread threads[2];
    start_thread(&threads[0], options, "sibling", thread_sleeps);
    // It replaces the first thread and takes its id.
    start_thread(&threads[1], options, "execer", thread_becomes_a_sleeper);
    pthread_join(threads[1].handle, NULL);
}
