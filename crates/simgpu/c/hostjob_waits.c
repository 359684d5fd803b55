// SPDX-License-Identifier: Apache-2.0
// hostjob: one wait of each kind, ended at a known moment by a known thread.
//
// A kind is prepared by the main thread, then a sleeper blocks in it. The waker looks in /proc until the
// sleeper really sleeps (which also tells the system call it sleeps in), lets 5 ms pass, and ends the wait.
#define _GNU_SOURCE
#include "hostjob.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 5000000

// What sleeper and waker share. `fd[0]` is waited on, `fd[1]` ends the wait.
typedef struct Scene {
    int fd[2];
    pid_t child;
    sem_t child_may_end; // in shared memory
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool said;
    Thread sleeper, waker;
    uint64_t begin, woken, end;
    long syscall;    // the sleeper's, as the waker saw it ...
    uint64_t seen;   // ... at this time
    pid_t waker_tid; // the thread that ends the wait; 0: the waker; -1: a kernel thread
    const struct Kind *kind;
} Scene;

typedef struct Kind {
    const char *name;
    const char *wait; // as gpuwhy calls it
    void (*prepare)(Scene *);
    void (*block)(Scene *);
    void (*wake)(Scene *); // none: a timer does
} Kind;

static void take_byte(Scene *scene)
{
    char bytes[512];
    must(read(scene->fd[0], bytes, sizeof bytes), "read");
}

static void give_byte(Scene *scene)
{
    must(write(scene->fd[1], "x\n", 2), "write");
}

static void make_pipe(Scene *scene)
{
    must(pipe2(scene->fd, O_CLOEXEC), "pipe");
}

// ---- files without a name ----

static void make_eventfd(Scene *scene)
{
    scene->fd[0] = scene->fd[1] = (int)must(eventfd(0, EFD_CLOEXEC), "eventfd");
}

static void give_count(Scene *scene)
{
    uint64_t one = 1;
    must(write(scene->fd[1], &one, sizeof one), "write");
}

static void make_timerfd(Scene *scene)
{
    struct itimerspec after = {.it_value = {.tv_nsec = 2 * PAUSE_NS}};
    scene->fd[0] = (int)must(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), "timerfd_create");
    must(timerfd_settime(scene->fd[0], 0, &after, NULL), "timerfd_settime");
}

static void make_inotify(Scene *scene)
{
    scene->fd[0] = (int)must(inotify_init1(IN_CLOEXEC), "inotify_init1");
    scene->fd[1] = -1;
    must(inotify_add_watch(scene->fd[0], "/proc/self/exe", IN_OPEN), "inotify_add_watch");
}

static void open_watched(Scene *scene)
{
    scene->fd[1] = (int)must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "open");
}

// ---- several files ----

static void poll_it(Scene *scene)
{
    struct pollfd fds = {.fd = scene->fd[0], .events = POLLIN};
    must(poll(&fds, 1, 10000), "poll");
}

static void select_it(Scene *scene)
{
    fd_set fds;
    FD_ZERO(&fds);
    FD_SET(scene->fd[0], &fds);
    must(select(scene->fd[0] + 1, &fds, NULL, NULL, NULL), "select");
}

static void epoll_it(Scene *scene)
{
    int set = (int)must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(set, EPOLL_CTL_ADD, scene->fd[0], &event), "epoll_ctl");
    must(epoll_wait(set, &event, 1, -1), "epoll_wait");
    close(set);
}

// ---- sockets ----

static void make_socketpair(Scene *scene)
{
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, scene->fd), "socketpair");
}

static int listener(struct sockaddr_in *address)
{
    int fd = (int)must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    socklen_t size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(fd, (struct sockaddr *)address, size), "bind");
    must(listen(fd, 4), "listen");
    must(getsockname(fd, (struct sockaddr *)address, &size), "getsockname");
    return fd;
}

static int connected(const struct sockaddr_in *address)
{
    int fd = (int)must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    must(connect(fd, (const struct sockaddr *)address, sizeof *address), "connect");
    return fd;
}

static void make_tcp(Scene *scene)
{
    struct sockaddr_in address;
    int listening = listener(&address);
    scene->fd[1] = connected(&address);
    scene->fd[0] = (int)must(accept(listening, NULL, NULL), "accept");
    close(listening);
}

static void make_listener(Scene *scene)
{
    struct sockaddr_in address;
    scene->fd[0] = listener(&address);
    scene->fd[1] = -1;
}

static void accept_it(Scene *scene)
{
    close((int)must(accept(scene->fd[0], NULL, NULL), "accept"));
}

static void connect_to_it(Scene *scene)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    must(getsockname(scene->fd[0], (struct sockaddr *)&address, &size), "getsockname");
    scene->fd[1] = connected(&address);
}

// ---- a terminal: the line goes through a kernel thread ----

static void make_terminal(Scene *scene)
{
    scene->fd[1] = (int)must(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), "posix_openpt");
    must(grantpt(scene->fd[1]), "grantpt");
    must(unlockpt(scene->fd[1]), "unlockpt");
    char name[64];
    must(-ptsname_r(scene->fd[1], name, sizeof name), "ptsname_r");
    scene->fd[0] = (int)must(open(name, O_RDWR | O_NOCTTY | O_CLOEXEC), name);
    scene->waker_tid = -1;
}

// ---- locks and conditions ----

static void wait_for_cond(Scene *scene)
{
    pthread_mutex_lock(&scene->lock);
    while (!scene->said)
        pthread_cond_wait(&scene->cond, &scene->lock);
    pthread_mutex_unlock(&scene->lock);
}

static void signal_cond(Scene *scene)
{
    pthread_mutex_lock(&scene->lock);
    scene->said = true;
    pthread_mutex_unlock(&scene->lock);
    pthread_cond_signal(&scene->cond);
}

static void wait_with_deadline(Scene *scene)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    uint64_t nsec = (uint64_t)deadline.tv_nsec + PAUSE_NS;
    deadline.tv_sec += (time_t)(nsec / 1000000000u);
    deadline.tv_nsec = (long)(nsec % 1000000000u);
    pthread_mutex_lock(&scene->lock);
    if (pthread_cond_timedwait(&scene->cond, &scene->lock, &deadline) != ETIMEDOUT)
        die("no thread signals this condition");
    pthread_mutex_unlock(&scene->lock);
}

static void post(Scene *scene)
{
    sem_post(&scene->child_may_end);
}

static void wait_for_post(Scene *scene)
{
    while (sem_wait(&scene->child_may_end))
        ;
}

// ---- children and signals ----

// The child ends when it may, and so ends the wait itself.
static void make_child(Scene *scene)
{
    scene->child = (pid_t)must(fork(), "fork");
    if (scene->child == 0) {
        while (sem_wait(&scene->child_may_end))
            ;
        _exit(0);
    }
    scene->waker_tid = scene->child;
}

static void wait_for_child(Scene *scene)
{
    must(waitpid(scene->child, NULL, 0), "waitpid");
}

static sigset_t only(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return set;
}

static void wait_for_signal(Scene *scene)
{
    (void)scene;
    sigset_t set = only(SIGUSR1);
    int got;
    sigwait(&set, &got);
}

static void send_signal(Scene *scene)
{
    pthread_kill(scene->sleeper.handle, SIGUSR1);
}

static void ignore_signal(int signal)
{
    (void)signal;
}

static void pause_for_signal(Scene *scene)
{
    (void)scene;
    sigset_t none;
    sigemptyset(&none);
    signal(SIGUSR1, ignore_signal);
    sigsuspend(&none);
}

static void make_signalfd(Scene *scene)
{
    sigset_t set = only(SIGUSR1);
    scene->fd[0] = (int)must(signalfd(-1, &set, SFD_CLOEXEC), "signalfd");
    scene->fd[1] = -1;
}

// ---- the rest ----

static void sleep_a_while(Scene *scene)
{
    (void)scene;
    sleep_ns(2 * PAUSE_NS);
}

static void make_queue(Scene *scene)
{
    scene->child = (pid_t)must(msgget(IPC_PRIVATE, 0600), "msgget");
}

static void take_message(Scene *scene)
{
    struct { long type; char text[1]; } message;
    must(msgrcv(scene->child, &message, sizeof message.text, 0, 0), "msgrcv");
    msgctl(scene->child, IPC_RMID, NULL);
}

static void send_message(Scene *scene)
{
    struct { long type; char text[1]; } message = {.type = 1};
    must(msgsnd(scene->child, &message, sizeof message.text, 0), "msgsnd");
}

// No reads are ever submitted: only the time limit can end it.
static void wait_for_aio(Scene *scene)
{
    (void)scene;
    unsigned long context = 0;
    must(syscall(SYS_io_setup, 1, &context), "io_setup");
    char event[64];
    struct timespec limit = {.tv_nsec = 2 * PAUSE_NS};
    must(syscall(SYS_io_getevents, context, 1, 1, event, &limit), "io_getevents");
    // Not destroyed before the process ends: destroying it would be another wait.
}

static const Kind kinds[] = {
    {"pipe", "pipe", make_pipe, take_byte, give_byte},
    {"eventfd", "eventfd", make_eventfd, take_byte, give_count},
    {"timerfd", "timerfd", make_timerfd, take_byte, NULL},
    {"inotify", "anonymous file", make_inotify, take_byte, open_watched},
    {"signalfd", "anonymous file", make_signalfd, take_byte, send_signal},
    {"poll", "poll", make_pipe, poll_it, give_byte},
    {"select", "poll", make_pipe, select_it, give_byte},
    {"epoll", "epoll", make_pipe, epoll_it, give_byte},
    {"socket", "socket", make_socketpair, take_byte, give_byte},
    {"tcp", "socket", make_tcp, take_byte, give_byte},
    {"accept", "socket", make_listener, accept_it, connect_to_it},
    {"terminal", "char device", make_terminal, take_byte, give_byte},
    {"cond", "futex", NULL, wait_for_cond, signal_cond},
    {"timedwait", "futex", NULL, wait_with_deadline, NULL},
    {"semaphore", "futex", NULL, wait_for_post, post},
    {"wait", "child", make_child, wait_for_child, post},
    {"sigwait", "signal", NULL, wait_for_signal, send_signal},
    {"sigsuspend", "signal", NULL, pause_for_signal, send_signal},
    {"nanosleep", "sleep", NULL, sleep_a_while, NULL},
    {"queue", "other", make_queue, take_message, send_message},
    {"aio", "aio", NULL, wait_for_aio, NULL},
};

bool is_wait(const char *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind))
            return true;
    return false;
}

static void sleeper(Thread *thread)
{
    Scene *scene = thread->shared;
    scene->begin = clock_ns(CLOCK_MONOTONIC);
    scene->kind->block(scene);
    scene->end = clock_ns(CLOCK_MONOTONIC);
}

static void waker(Thread *thread)
{
    Scene *scene = thread->shared;
    pid_t tid;
    while (!(tid = __atomic_load_n(&scene->sleeper.tid, __ATOMIC_ACQUIRE)))
        sleep_ns(100000);
    // It sleeps in its own wait when it has begun it; before that it cannot sleep in a system call.
    scene->syscall = until_asleep(tid);
    scene->seen = clock_ns(CLOCK_MONOTONIC);
    if (!scene->kind->wake)
        return;
    sleep_ns(PAUSE_NS);
    scene->woken = clock_ns(CLOCK_MONOTONIC);
    scene->kind->wake(scene);
}

// False when the waker came too late to see a wait that the time ended.
static bool run_wait(const Options *options, const Kind *kind)
{
    Scene *scene = shared_memory(sizeof *scene);
    *scene = (Scene){.fd = {-1, -1}, .kind = kind};
    sem_init(&scene->child_may_end, 1, 0);
    pthread_mutex_init(&scene->lock, NULL);
    pthread_cond_init(&scene->cond, NULL);
    if (kind->prepare)
        kind->prepare(scene);
    scene->sleeper.shared = scene->waker.shared = scene;
    start_thread(&scene->sleeper, options, "sleeper", sleeper);
    start_thread(&scene->waker, options, "waker", waker);
    // Each waits for its turn when it is done, the waker first.
    end_threads(&scene->waker, 1);
    end_threads(&scene->sleeper, 1);
    for (int i = 0; i < 2; i++)
        if (scene->fd[i] >= 0)
            close(scene->fd[i]);
    if (scene->seen >= scene->end)
        return false;
    pid_t by = !kind->wake ? 0 : scene->waker_tid ? scene->waker_tid : scene->waker.tid;
    tell("{\"what\":\"wait\",\"kind\":\"%s\",\"wait\":\"%s\",\"syscall\":%ld,\"pid\":%d,\"tid\":%d,\"waker\":%d"
         ",\"by\":\"%s\",\"begin\":%" PRIu64 ",\"woken\":%" PRIu64 ",\"end\":%" PRIu64 "}",
         kind->name, kind->wait, scene->syscall, (int)getpid(), (int)scene->sleeper.tid, (int)by,
         kind->wake ? "thread" : "timer", scene->begin, scene->woken, scene->end);
    return true;
}

void run_waits(const Options *options)
{
    // Only the waiting threads take the signals.
    sigset_t set = only(SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    bool all = !strcmp(options->mode, "waits");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (all || !strcmp(kinds[i].name, options->mode))
            while (!run_wait(options, &kinds[i]))
                ;
}
