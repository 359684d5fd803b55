// SPDX-License-Identifier: Apache-2.0
// hostjob: wakeups over pipes and over a lock.
#define _GNU_SOURCE
#include "hostjob.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- ping-pong over two pipes: each read that blocks is ended by the partner ----

typedef struct Game {
    int ping[2], pong[2];
    uint64_t rounds;
    uint64_t pause_ns; // taken by the second player: long ones make the first wait, so that it really blocks
} Game;

static void serve(const Game *game)
{
    char ball = 0;
    for (uint64_t i = 0; i < game->rounds; i++) {
        must(write(game->ping[1], &ball, 1), "write");
        if (read(game->pong[0], &ball, 1) != 1)
            die("the partner is gone");
    }
}

static void answer(const Game *game)
{
    char ball = 0;
    for (uint64_t i = 0; i < game->rounds; i++) {
        if (read(game->ping[0], &ball, 1) != 1)
            die("the partner is gone");
        if (i % 16 == 0)
            sleep_ns(game->pause_ns);
        must(write(game->pong[1], &ball, 1), "write");
    }
}

static void thread_serves(Thread *thread)
{
    serve(thread->shared);
}

static void thread_answers(Thread *thread)
{
    answer(thread->shared);
}

static void play_as_threads(const Options *options, Game *game)
{
    static Thread threads[2];
    threads[0].shared = threads[1].shared = game;
    start_thread(&threads[0], options, "ping", thread_serves);
    start_thread(&threads[1], options, "pong", thread_answers);
    end_threads(threads, 2);
}

static pid_t play_in_process(const char *name, const Game *game, void (*play)(const Game *))
{
    pid_t pid = (pid_t)must(fork(), "fork");
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    name_thread(name);
    Mark begin = mark();
    play(game);
    Mark end = mark();
    tell_window(name, getpid(), getpid(), &begin, &end);
    _exit(0);
}

void run_pingpong(const Options *options)
{
    static Game game;
    game.rounds = or_else(options->count, 2000);
    game.pause_ns = 100000;
    must(pipe(game.ping), "pipe");
    must(pipe(game.pong), "pipe");
    if (!strcmp(options->variant, "threads")) {
        play_as_threads(options, &game);
        return;
    }
    pid_t ping = play_in_process("ping", &game, serve);
    pid_t pong = play_in_process("pong", &game, answer);
    reap(ping);
    reap(pong);
}

// ---- a convoy: every thread wants the same lock, and each waiter is woken by an unlock ----

typedef struct Turn {
    uint64_t asked, got, unlocking, unlocked;
} Turn;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define MAX_TURNS 1000
static Turn turns[MAX_THREADS][MAX_TURNS];

static void take_turns(Thread *thread)
{
    bool spins = !strcmp(thread->options->variant, "spin");
    uint64_t rounds = *(uint64_t *)thread->shared;
    for (uint64_t i = 0; i < rounds; i++) {
        Turn *turn = &turns[thread->number][i];
        turn->asked = clock_ns(CLOCK_MONOTONIC);
        pthread_mutex_lock(&lock);
        turn->got = clock_ns(CLOCK_MONOTONIC);
        if (spins)
            spin_ns(2000000);
        else
            sleep_ns(2000000);
        turn->unlocking = clock_ns(CLOCK_MONOTONIC);
        pthread_mutex_unlock(&lock);
        turn->unlocked = clock_ns(CLOCK_MONOTONIC);
        // The lock is not fair: a thread that asks again at once gets it again.
        sleep_ns(500000);
    }
}

void run_convoy(const Options *options)
{
    static Thread threads[MAX_THREADS];
    static uint64_t rounds;
    rounds = or_else(options->count, 20);
    if (rounds > MAX_TURNS)
        die("--count out of range");
    for (int i = 0; i < options->threads; i++) {
        char name[16];
        snprintf(name, sizeof name, "convoy-%d", i);
        threads[i].number = i;
        threads[i].shared = &rounds;
        start_thread(&threads[i], options, name, take_turns);
    }
    end_threads(threads, options->threads);
    tell("{\"what\":\"lock\",\"object\":%" PRIu64 "}", (uint64_t)(uintptr_t)&lock);
    for (int i = 0; i < options->threads; i++)
        for (uint64_t r = 0; r < rounds; r++) {
            const Turn *turn = &turns[i][r];
            tell("{\"what\":\"turn\",\"tid\":%d,\"asked\":%" PRIu64 ",\"got\":%" PRIu64 ",\"unlocking\":%" PRIu64
                 ",\"unlocked\":%" PRIu64 "}",
                 (int)threads[i].tid, turn->asked, turn->got, turn->unlocking, turn->unlocked);
        }
}
