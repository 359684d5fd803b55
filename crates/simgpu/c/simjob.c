// SPDX-License-Identifier: Apache-2.0
// simjob: options, processes, and the report. The parent loads no library:
// each child loads its own copy, so that a tracer sees separate processes.
#define _GNU_SOURCE
#include "simjob.h"

#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: simjob --cudart PATH [--cudart PATH2 ...] [--procs N] [--threads N]\n"
    "              [--calls N] [--rate CALLS_PER_S] [--kernel-ns NS] [--mix launch|mixed]\n"
    "              [--hold] [--linger SEC]\n"
    "              [--reenter | --oom [--chunk BYTES] | --exit-in-call | --tour]\n"
    "       simjob MODE ..., see simjob help\n";

uint64_t clock_ns(int clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("simjob: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

uint64_t share(uint64_t total, int parts, int index)
{
    uint64_t n = (uint64_t)parts, i = (uint64_t)index;
    return total / n + (i < total % n ? 1 : 0);
}

uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end)
        die("not a number: %s", text);
    return value;
}

static void set_option(Options *options, int option, const char *value)
{
    switch (option) {
    case 'l':
        if (options->copies == MAX_COPIES)
            die("too many --cudart");
        options->cudart[options->copies++] = value;
        break;
    case 'p': options->procs = (int)number(value); break;
    case 't': options->threads = (int)number(value); break;
    case 'c': options->calls = number(value); break;
    case 'r': options->rate = number(value); break;
    case 'k': options->kernel_ns = number(value); break;
    case 'b': options->chunk = number(value); break;
    case 's': options->linger_s = (int)number(value); break;
    case 'h': options->hold = true; break;
    case 'm':
        if (strcmp(value, "mixed") && strcmp(value, "launch"))
            die("--mix is launch or mixed");
        options->mixed = strcmp(value, "mixed") == 0;
        break;
    case 'R': options->mode = MODE_REENTER; break;
    case 'O': options->mode = MODE_OOM; break;
    case 'X': options->mode = MODE_EXIT_IN_CALL; break;
    case 'T': options->mode = MODE_TOUR; break;
    default: fputs(usage, stderr); exit(2);
    }
}

static Options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"cudart", 1, 0, 'l'}, {"procs", 1, 0, 'p'},   {"threads", 1, 0, 't'},
        {"calls", 1, 0, 'c'},  {"rate", 1, 0, 'r'},    {"kernel-ns", 1, 0, 'k'},
        {"chunk", 1, 0, 'b'},  {"linger", 1, 0, 's'},  {"hold", 0, 0, 'h'},
        {"mix", 1, 0, 'm'},    {"reenter", 0, 0, 'R'}, {"oom", 0, 0, 'O'},
        {"tour", 0, 0, 'T'},   {"exit-in-call", 0, 0, 'X'}, {0, 0, 0, 0},
    };
    Options options = {.procs = 1, .threads = 1, .calls = 1000000, .chunk = 64u << 20};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        set_option(&options, option, optarg);
    if (!options.copies || optind != argc) {
        fputs(usage, stderr);
        exit(2);
    }
    if (options.procs < 1 || options.procs > MAX_PROCS || options.threads < 1 ||
        options.threads > 1024 || options.chunk == 0)
        die("--procs, --threads or --chunk out of range");
    return options;
}

void *resolve(void *handle, const char *name)
{
    void *symbol = dlsym(handle, name);
    if (!symbol)
        die("%s", dlerror());
    return symbol;
}

Api load_api(const char *path)
{
    Api api = {.handle = dlopen(path, RTLD_NOW)};
    if (!api.handle)
        die("%s", dlerror());
#define X(name) api.name = (__typeof__(api.name))resolve(api.handle, #name);
    SIMJOB_FUNCTIONS(X)
#undef X
    api.simgpu_set_hook =
        (__typeof__(api.simgpu_set_hook))resolve(api.handle, "simgpu_set_hook");
    return api;
}

void *open_beside(const char *path, const char *name)
{
    char beside[4096];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    snprintf(beside, sizeof beside, "%.*s%s", folder, path, name);
    void *handle = dlopen(beside, RTLD_NOW);
    if (!handle)
        die("%s", dlerror());
    return handle;
}

typedef struct Pipes {
    int ready[2]; // children write a byte when they can start, or are blocked
    int go[2];    // children start when the parent closes its end
} Pipes;

static void child(const Options *options, int process, const Pipes *pipes, Result *result)
{
    close(pipes->ready[0]);
    close(pipes->go[1]);
    Api api = load_api(options->cudart[process % options->copies]);
    char byte = 'r';
    if (write(pipes->ready[1], &byte, 1) != 1 || read(pipes->go[0], &byte, 1) != 0)
        die("lost the parent");
    switch (options->mode) {
    case MODE_LOAD: run_load(options, &api, process, result); break;
    case MODE_REENTER: run_reenter(options, &api, process, result); break;
    case MODE_OOM: run_oom(options, &api, result); break;
    case MODE_TOUR: run_tour(options, &api, result); break;
    case MODE_EXIT_IN_CALL: run_exit_in_call(&api, pipes->ready[1]); break;
    }
    if (options->linger_s)
        sleep((unsigned)options->linger_s);
    exit(0);
}

// Reads one byte per process; end of file means that one has died.
static void wait_for_all(const Options *options, const Pipes *pipes)
{
    char byte;
    for (int i = 0; i < options->procs; i++)
        if (read(pipes->ready[0], &byte, 1) != 1)
            die("a process ended before it was ready");
}

static void start_all(const Options *options, Pipes *pipes, Result *results)
{
    if (pipe(pipes->ready) || pipe(pipes->go))
        die("pipe: %s", strerror(errno));
    for (int i = 0; i < options->procs; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork: %s", strerror(errno));
        if (pid == 0)
            child(options, i, pipes, &results[i]);
        results[i].pid = pid;
    }
    close(pipes->ready[1]);
    close(pipes->go[0]);
    wait_for_all(options, pipes);
    if (options->hold) {
        printf("ready");
        for (int i = 0; i < options->procs; i++)
            printf(" %d", (int)results[i].pid);
        printf("\n");
        fflush(stdout);
        int c;
        while ((c = getchar()) != '\n' && c != EOF)
            ;
    }
    close(pipes->go[1]);
}

static int wait_for_ends(const Options *options, const Result *results)
{
    int failed = 0;
    for (int i = 0; i < options->procs; i++) {
        int status = 0;
        waitpid(results[i].pid, &status, 0);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        bool fine = options->mode == MODE_EXIT_IN_CALL ? killed : status == 0;
        failed |= !fine;
    }
    return failed;
}

static void report(const Options *options, const Result *results)
{
    Result sum = {.start_ns = UINT64_MAX};
    for (int i = 0; i < options->procs; i++) {
        const Result *r = &results[i];
        sum.calls += r->calls;
        sum.setup_calls += r->setup_calls;
        sum.inner_calls += r->inner_calls;
        sum.errors += r->errors;
        sum.wall_ns += r->wall_ns;
        sum.cpu_ns += r->cpu_ns;
        sum.free_bytes += r->free_bytes;
        sum.wanted_bytes += r->wanted_bytes;
        if (r->start_ns < sum.start_ns)
            sum.start_ns = r->start_ns;
        if (r->end_ns > sum.end_ns)
            sum.end_ns = r->end_ns;
    }
    double seconds = sum.end_ns ? (double)(sum.end_ns - sum.start_ns) / 1e9 : 0;
    double per_call = sum.calls ? (double)sum.calls : 1;
    printf("{\"calls\":%" PRIu64 ",\"setup_calls\":%" PRIu64 ",\"inner_calls\":%" PRIu64
           ",\"errors\":%" PRIu64,
           sum.calls, sum.setup_calls, sum.inner_calls, sum.errors);
    printf(",\"seconds\":%.6f,\"ns_per_call\":%.1f,\"cpu_ns_per_call\":%.1f", seconds,
           (double)sum.wall_ns / per_call, (double)sum.cpu_ns / per_call);
    printf(",\"free_bytes\":%" PRIu64 ",\"wanted_bytes\":%" PRIu64 ",\"killed\":%s",
           sum.free_bytes, sum.wanted_bytes,
           options->mode == MODE_EXIT_IN_CALL ? "true" : "false");
    printf(",\"pids\":[");
    for (int i = 0; i < options->procs; i++)
        printf("%s%d", i ? "," : "", (int)results[i].pid);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    if (argc > 1 && argv[1][0] != '-')
        return play(argc, argv);
    Options options = parse(argc, argv);
    Result *results = mmap(NULL, MAX_PROCS * sizeof *results, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    Pipes pipes;
    start_all(&options, &pipes, results);
    if (options.mode == MODE_EXIT_IN_CALL) {
        wait_for_all(&options, &pipes); // each has written from inside its call
        for (int i = 0; i < options.procs; i++)
            kill(results[i].pid, SIGKILL);
    }
    int failed = wait_for_ends(&options, results);
    report(&options, results);
    return failed;
}
