// SPDX-License-Identifier: Apache-2.0
// simjob's plays about where libraries come from and when: late, unloaded and
// loaded again, twice in one process, and in a program executed by another.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "simjob_plays.h"

void play_late(Play *play)
{
    uint64_t opened = clock_ns(CLOCK_MONOTONIC);
    Api api = load_api(play->cudart[0]);
    Burst burst = {.api = &api};
    uint64_t first = clock_ns(CLOCK_MONOTONIC);
    burst_calls(play, &burst, play->calls);
    uint64_t last = clock_ns(CLOCK_MONOTONIC), early = play->made;
    // The number of calls is exact, however late the thread gets its turns.
    uint64_t rate = play->rate ? play->rate : 1000, total = play->for_ms * rate / 1000;
    while (play->made - early < total) {
        sleep_ms(1);
        double elapsed = (double)(clock_ns(CLOCK_MONOTONIC) - last) / 1e9;
        uint64_t due = (uint64_t)(elapsed * (double)rate);
        due = due < total ? due : total;
        if (due > play->made - early)
            burst_calls(play, &burst, due - (play->made - early));
    }
    burst_end(play, &burst);
    print_end(play, "late");
    printf(",\"at_once\":%" PRIu64 ",\"opened_ns\":%" PRIu64 ",\"first_ns\":%" PRIu64
           ",\"last_ns\":%" PRIu64 "}\n",
           early, opened, first, last);
}

// Whether a line of this process's memory map ends in the name of a file.
static bool is_mapped(const char *name)
{
    char line[8192];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        die("/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

void play_reload(Play *play)
{
    uint64_t left_mapped = 0;
    for (uint64_t i = 0; i < play->rounds; i++) {
        const char *path = play->cudart[i % (uint64_t)play->copies];
        uint64_t before = play->made;
        Api api = load_api(path);
        Burst burst = {.api = &api};
        burst_calls(play, &burst, play->calls);
        burst_end(play, &burst);
        bool there = is_mapped(path);
        dlclose(api.handle);
        left_mapped += is_mapped("libcudart.so.13") || is_mapped("libcuda.so.1");
        printf("round %" PRIu64 " %s %" PRIu64 "\n", i, path, play->made - before);
        if (!there)
            die("%s was not mapped under its name", path);
    }
    print_end(play, "reload");
    printf(",\"left_mapped\":%" PRIu64 "}\n", left_mapped);
    if (left_mapped)
        exit(1);
}

void play_twocopies(Play *play)
{
    if (play->copies != 2)
        die("twocopies wants two --cudart");
    Api first = load_api(play->cudart[0]), second = load_api(play->cudart[1]);
    if ((void *)first.cudaMalloc == (void *)second.cudaMalloc)
        die("both paths are one library");
    if ((void *)first.cuLaunchKernel != (void *)second.cuLaunchKernel)
        die("there are two drivers");
    Burst one = {.api = &first}, other = {.api = &second};
    uint64_t by_first = 0, by_second = 0;
    for (uint64_t i = 0; i < play->calls; i++) {
        burst_calls(play, &one, 1);
        burst_calls(play, &other, 2);
    }
    burst_calls(play, &other, 1);
    by_first = one.step + (one.block != NULL);
    by_second = other.step + (other.block != NULL);
    burst_end(play, &one);
    burst_end(play, &other);
    print_end(play, "twocopies");
    printf(",\"first\":%" PRIu64 ",\"second\":%" PRIu64 "}\n", by_first, by_second);
}

void play_execs(Play *play)
{
    Api api = load_api(play->cudart[0]);
    Burst burst = {.api = &api};
    burst_calls(play, &burst, play->calls);
    burst_end(play, &burst);
    print_end(play, "execs");
    printf("}\n");
    fflush(stdout);
    if (play->rest[0])
        execvp(play->rest[0], play->rest);
    char calls[32];
    snprintf(calls, sizeof calls, "%" PRIu64, play->calls);
    const char *other = play->cudart[play->copies - 1];
    if (!play->rest[0])
        execl("/proc/self/exe", play->self, "late", "--cudart", other, "--calls", calls,
              "--for-ms", "0", (char *)NULL);
    die("exec: %s", strerror(errno));
}
