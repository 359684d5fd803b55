// SPDX-License-Identifier: Apache-2.0
// simjob MODE: options, and what the plays share.
#define _GNU_SOURCE
#include "simjob_plays.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: simjob MODE [--cudart PATH ...] [OPTION ...]   ($SIMJOB_CUDART: another PATH)\n"
    "  late       --wait-ms N --calls N --for-ms N --rate N: no library for a while, then calls at once\n"
    "  reload     --rounds N --calls N: loads and unloads one PATH after the other, N times\n"
    "  twocopies  --calls N: N calls of the first PATH, 2N + 1 of the second, in turn, and the frees due\n"
    "  execs      --calls N [-- PROGRAM ...]: calls, then executes the program or itself\n"
    "  windows    --window-ms N --for-ms N (0: until stdin ends) --rate N --work N --call launch|event\n"
    "  nccl       --rounds N\n"
    "  torch      --rounds N\n"
    "  graphs     --kernel-ns N\n"
    "  modules    --rounds N\n"
    "Any: --hold says \"ready PID\" and waits for a line first.\n";

static const struct {
    const char *name;
    void (*run)(Play *play);
} plays[] = {
    {"late", play_late},       {"reload", play_reload}, {"twocopies", play_twocopies},
    {"execs", play_execs},     {"windows", play_windows}, {"nccl", play_nccl},
    {"torch", play_torch},     {"graphs", play_graphs}, {"modules", play_modules},
};

static _Noreturn void refuse(void)
{
    fputs(usage, stderr);
    exit(2);
}

static void hold(void)
{
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    // Not getchar: it would take what the play itself may want to read.
    char byte = 0;
    while (byte != '\n' && read(0, &byte, 1) == 1)
        ;
}

static void set_option(Play *play, int option, const char *value, bool *held)
{
    switch (option) {
    case 'l':
        if (play->copies == MAX_COPIES)
            die("too many --cudart");
        play->cudart[play->copies++] = value;
        break;
    case 'c': play->calls = number(value); break;
    case 'n': play->rounds = number(value); break;
    case 'w': play->wait_ms = number(value); break;
    case 'f': play->for_ms = number(value); break;
    case 'r': play->rate = number(value); break;
    case 'W': play->window_ms = number(value); break;
    case 'u': play->work = number(value); break;
    case 'k': play->kernel_ns = number(value); break;
    case 'C': play->events = strcmp(value, "event") == 0; break;
    case 'h': *held = true; break;
    default: refuse();
    }
}

static Play parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"cudart", 1, 0, 'l'},  {"calls", 1, 0, 'c'},     {"rounds", 1, 0, 'n'},
        {"wait-ms", 1, 0, 'w'}, {"for-ms", 1, 0, 'f'},    {"rate", 1, 0, 'r'},
        {"work", 1, 0, 'u'},    {"window-ms", 1, 0, 'W'}, {"kernel-ns", 1, 0, 'k'},
        {"call", 1, 0, 'C'},    {"hold", 0, 0, 'h'},      {0, 0, 0, 0},
    };
    Play play = {.calls = 100, .rounds = 3, .window_ms = 50, .for_ms = 1000};
    bool held = false;
    int option;
    while ((option = getopt_long(argc, argv, "+", known, NULL)) != -1)
        set_option(&play, option, optarg, &held);
    if (!play.copies && getenv("SIMJOB_CUDART"))
        play.cudart[play.copies++] = getenv("SIMJOB_CUDART");
    if (!play.copies || !play.window_ms)
        refuse();
    play.rest = argv + optind;
    if (held)
        hold();
    return play;
}

int play(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof plays / sizeof plays[0]; i++) {
        if (strcmp(argv[1], plays[i].name))
            continue;
        Play play = parse(argc - 1, argv + 1);
        play.self = argv[0];
        sleep_ms(play.wait_ms);
        plays[i].run(&play);
        return 0;
    }
    refuse();
}

void made(Play *play, const char *name, int error)
{
    play->made++;
    if (error)
        die("%s failed with error %d", name, error);
}

void burst_calls(Play *play, Burst *burst, uint64_t calls)
{
    const Api *api = burst->api;
    dim3 one = {1, 1, 1};
    if (!burst->kernel)
        burst->kernel = api->simgpuKernel("simjob_burst", play->kernel_ns);
    for (uint64_t i = 0; i < calls; i++) {
        switch (burst->step++ % 4) {
        case 0: made(play, "cudaMalloc", api->cudaMalloc(&burst->block, 4096)); break;
        case 1:
            made(play, "cudaLaunchKernel",
                 api->cudaLaunchKernel(burst->kernel, one, one, NULL, 0, NULL));
            break;
        case 2: made(play, "cudaStreamSynchronize", api->cudaStreamSynchronize(NULL)); break;
        default:
            made(play, "cudaFree", api->cudaFree(burst->block));
            burst->block = NULL;
        }
    }
}

void burst_end(Play *play, Burst *burst)
{
    if (burst->block)
        made(play, "cudaFree", burst->api->cudaFree(burst->block));
    burst->block = NULL;
}

void print_end(const Play *play, const char *mode)
{
    printf("{\"mode\":\"%s\",\"pid\":%d,\"calls\":%" PRIu64, mode, (int)getpid(), play->made);
}

void sleep_ms(uint64_t ms)
{
    struct timespec rest = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&rest, &rest) && errno == EINTR)
        ;
}
