// SPDX-License-Identifier: Apache-2.0
// hostjob: options, the truth file, and what the modes share.
#define _GNU_SOURCE
#include "hostjob.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int truth_fd = -1;
static Mark started; // the first thread's, when it could go on, in case it is not observed before

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
    fputs("hostjob: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

long must(long result, const char *what)
{
    if (result < 0)
        die("%s: %s", what, strerror(errno));
    return result;
}

void tell(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (truth_fd < 0)
        return;
    if (length < 0 || length >= (int)sizeof line - 1)
        die("a line of truth is too long");
    line[length++] = '\n';
    if (write(truth_fd, line, (size_t)length) != length)
        die("cannot write the truth: %s", strerror(errno));
}

void hold(const Options *options)
{
    char byte;
    if (options->wait && (write(STDOUT_FILENO, "ready\n", 6) != 6 || read(STDIN_FILENO, &byte, 1) < 0))
        die("cannot wait: %s", strerror(errno));
    started = mark();
}

void pin(int cpu)
{
    if (cpu < 0)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    must(sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

void name_thread(const char *name)
{
    must(prctl(PR_SET_NAME, name), "prctl");
}

void sleep_ns(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
        ;
}

void spin_ns(uint64_t cpu_ns)
{
    uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
    do {
        // Mostly in user mode: the clock is a system call.
        for (volatile int i = 0; i < 20000; i++)
            ;
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end);
}

uint64_t or_else(uint64_t given, uint64_t usual)
{
    return given ? given : usual;
}

void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    return memory;
}

uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

// ---- the kernel's figures ----

// Reads a small file of /proc; false when it is not there.
static bool read_proc(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

// Kernels without CONFIG_SCHED_INFO have no schedstat: zeros then, which the tests take for "not known".
static void read_schedstat(const char *path, uint64_t *on_cpu_ns, uint64_t *delay_ns)
{
    char text[128];
    *on_cpu_ns = *delay_ns = 0;
    if (read_proc(path, text, sizeof text))
        sscanf(text, "%" SCNu64 " %" SCNu64, on_cpu_ns, delay_ns);
}

static struct rusage thread_usage(void)
{
    struct rusage usage;
    must(getrusage(RUSAGE_THREAD, &usage), "getrusage");
    return usage;
}

static uint64_t read_bytes_so_far(void)
{
    char text[512];
    uint64_t bytes = 0;
    const char *at;
    if (read_proc("/proc/thread-self/io", text, sizeof text) && (at = strstr(text, "\nread_bytes: ")))
        sscanf(at, "\nread_bytes: %" SCNu64, &bytes);
    return bytes;
}

Mark mark(void)
{
    Mark now;
    struct rusage before, after;
    do {
        before = thread_usage();
        now.read_bytes = read_bytes_so_far();
        // Asking for the CPU clock brings the figure in schedstat up to date, which else lags by up to a tick.
        now.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        now.ns = clock_ns(CLOCK_MONOTONIC);
        read_schedstat("/proc/thread-self/schedstat", &now.on_cpu_ns, &now.delay_ns);
        after = thread_usage();
    } while (before.ru_nvcsw != after.ru_nvcsw || before.ru_nivcsw != after.ru_nivcsw);
    now.voluntary = after.ru_nvcsw;
    now.involuntary = after.ru_nivcsw;
    now.major_faults = after.ru_majflt;
    return now;
}

void tell_window(const char *name, pid_t pid, pid_t tid, const Mark *begin, const Mark *end)
{
    tell("{\"what\":\"window\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"begin\":%" PRIu64 ",\"end\":%" PRIu64
         ",\"cpu_ns\":%" PRIu64 ",\"on_cpu_ns\":%" PRIu64 ",\"delay_ns\":%" PRIu64 ",\"read_bytes\":%" PRIu64
         ",\"voluntary\":%" PRId64 ",\"involuntary\":%" PRId64 ",\"major_faults\":%" PRId64
         ",\"life_on_cpu_ns\":%" PRIu64 ",\"life_delay_ns\":%" PRIu64 "}",
         name, (int)pid, (int)tid, begin->ns, end->ns, end->cpu_ns - begin->cpu_ns, end->on_cpu_ns - begin->on_cpu_ns,
         end->delay_ns - begin->delay_ns, end->read_bytes - begin->read_bytes, end->voluntary - begin->voluntary,
         end->involuntary - begin->involuntary, end->major_faults - begin->major_faults, end->on_cpu_ns,
         end->delay_ns);
}

// ---- threads and processes ----

static void *thread_main(void *argument)
{
    Thread *thread = argument;
    name_thread(thread->name);
    __atomic_store_n(&thread->tid, gettid(), __ATOMIC_RELEASE);
    thread->begin = mark();
    thread->body(thread);
    while (sem_wait(&thread->turn))
        ;
    thread->end = mark();
    return NULL;
}

void start_thread(Thread *thread, const Options *options, const char *name, void (*body)(Thread *))
{
    thread->options = options;
    thread->body = body;
    snprintf(thread->name, sizeof thread->name, "%s", name);
    sem_init(&thread->turn, 0, 0);
    errno = pthread_create(&thread->handle, NULL, thread_main, thread);
    if (errno)
        die("pthread_create: %s", strerror(errno));
}

void end_threads(Thread *threads, int count)
{
    for (int i = 0; i < count; i++) {
        sem_post(&threads[i].turn);
        pthread_join(threads[i].handle, NULL);
        tell_window(threads[i].name, getpid(), threads[i].tid, &threads[i].begin, &threads[i].end);
    }
}

int reap(pid_t pid)
{
    // Not yet waited for, a dead process still has its final figures in /proc.
    siginfo_t info;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT))
        if (errno != EINTR)
            die("waitid: %s", strerror(errno));
    char path[64];
    uint64_t on_cpu_ns, delay_ns;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    read_schedstat(path, &on_cpu_ns, &delay_ns);
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    struct rusage usage;
    int status;
    must(wait4(pid, &status, 0, &usage), "wait4");
    tell("{\"what\":\"process\",\"pid\":%d,\"parent\":%d,\"code\":%d,\"signal\":%d,\"reaped\":%" PRIu64
         ",\"life_on_cpu_ns\":%" PRIu64 ",\"life_delay_ns\":%" PRIu64 "}",
         (int)pid, (int)getpid(), WIFEXITED(status) ? WEXITSTATUS(status) : 0,
         WIFSIGNALED(status) ? WTERMSIG(status) : 0, now, on_cpu_ns, delay_ns);
    return status;
}

char thread_state(pid_t tid, long *syscall)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    const char *end;
    if (!read_proc(path, text, sizeof text) || !(end = strrchr(text, ')')))
        return 0;
    char state = end[2];
    if (syscall) {
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)tid);
        // "running" while it runs; -1 when it sleeps outside of a system call.
        if (!read_proc(path, text, sizeof text) || sscanf(text, "%ld", syscall) != 1)
            *syscall = -1;
    }
    return state;
}

long until_asleep(pid_t tid)
{
    long call = -1;
    char state;
    do {
        sleep_ns(200000);
        state = thread_state(tid, &call);
    } while ((state != 'S' && state != 'D') || call < 0);
    return call;
}

// ---- options ----

typedef struct ModeRow {
    const char *name;
    void (*run)(const Options *);
    bool holds_itself; // it has something to do before the start
} ModeRow;

static const ModeRow modes[] = {
    {"sleep", run_sleep, false},       {"hogs", run_hogs, false},
    {"victim", run_hogs, false},       {"spin", run_spin, false},
    {"threads", run_threads, true},    {"yield", run_yield, false},
    {"switches", run_switches, false}, {"stop", run_stop, false},
    {"pingpong", run_pingpong, false}, {"convoy", run_convoy, false},
    {"waits", run_waits, false},       {"disk", run_disk, true},
    {"buffered", run_buffered, true},  {"faults", run_faults, true},
    {"mmaplock", run_mmaplock, false}, {"oom", run_oom, false},
    {"forkstorm", run_forkstorm, false}, {"exec", run_exec, false},
    {"retransmit", run_retransmit, false},
};

static const char usage[] =
    "usage: hostjob MODE [--truth FILE] [--wait] [--count N] [--ms N] [--kib N] [--cpu N] [--threads N]\n"
    "               [--late N] [--variant NAME] [--path FILE]\n"
    "MODE: sleep hogs spin threads yield switches stop pingpong convoy disk buffered faults mmaplock oom\n"
    "      retransmit forkstorm exec waits, or one kind of wait (see hostjob_waits.c)\n";

static _Noreturn void misused(void)
{
    fputs(usage, stderr);
    exit(2);
}

static uint64_t number(const char *text)
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
    case 't': options->truth = value; break;
    case 'p': options->path = value; break;
    case 'v': options->variant = value; break;
    case 'n': options->count = number(value); break;
    case 'm': options->ms = number(value); break;
    case 'k': options->kib = number(value); break;
    case 'c': options->cpu = (int)number(value); break;
    case 'T': options->threads = (int)number(value); break;
    case 'L': options->late = (int)number(value); break;
    case 'w': options->wait = true; break;
    default: misused();
    }
}

static Options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"truth", 1, 0, 't'},   {"wait", 0, 0, 'w'},    {"count", 1, 0, 'n'}, {"ms", 1, 0, 'm'},
        {"kib", 1, 0, 'k'},     {"cpu", 1, 0, 'c'},     {"threads", 1, 0, 'T'}, {"late", 1, 0, 'L'},
        {"variant", 1, 0, 'v'}, {"path", 1, 0, 'p'},    {0, 0, 0, 0},
    };
    Options options = {.cpu = -1, .threads = 4, .variant = "", .argv = argv};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        set_option(&options, option, optarg);
    if (optind + 1 != argc)
        misused();
    options.mode = argv[optind];
    if (options.threads < 1 || options.late < 0 || options.threads + options.late > MAX_THREADS)
        die("--threads or --late out of range");
    return options;
}

int main(int argc, char **argv)
{
    Options options = parse(argc, argv);
    const ModeRow *mode = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(modes[i].name, options.mode))
            mode = &modes[i];
    if (!mode && !is_wait(options.mode))
        misused();
    if (options.truth)
        truth_fd = (int)must(open(options.truth, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), options.truth);
    // Dies with its parent, as it may hold a CPU or memory.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!mode || !mode->holds_itself)
        hold(&options);
    if (mode)
        mode->run(&options);
    else
        run_waits(&options);
    Mark end = mark();
    tell_window("main", getpid(), getpid(), &started, &end);
    return 0;
}
