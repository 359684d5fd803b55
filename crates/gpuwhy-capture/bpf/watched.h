/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Scheduler state of each traced thread and each CPU, and the records about them. Times are CLOCK_MONOTONIC ns. Only traced
 * threads have storage, so for all others the whole cost is one read of task->bpf_storage. */
#pragma once

#define MAX_CPUS 1024

/* The numbers are those of gpuwhy-model's host.rs. */
enum reason {
	PREEMPTED = 0,
	YIELDED = 1,
	ASLEEP = 2,
	UNINTERRUPTIBLE = 3,
	THROTTLED = 4,
	STOPPED = 5,
	NEW = 6,
};

enum wait {
	WAIT_NOTHING = 0,
	WAIT_OTHER = 1,
	WAIT_PIPE = 2,
	WAIT_SOCKET = 3,
	WAIT_EVENTFD = 4,
	WAIT_EPOLL = 5,
	WAIT_TIMERFD = 6,
	WAIT_FILE = 7,
	WAIT_BLOCK_DEVICE = 8,
	WAIT_GPU = 9,
	WAIT_CHAR_DEVICE = 10,
	WAIT_FUTEX = 11,
	WAIT_PAGE_FAULT = 12,
	WAIT_SLEEP = 13,
	WAIT_POLL = 14,
	WAIT_CHILD = 15,
	WAIT_SIGNAL = 16,
	WAIT_MMAP_LOCK = 17,
	WAIT_RECLAIM = 18,
	WAIT_IO_URING = 19,
	WAIT_ANON_FILE = 20,
	WAIT_AIO = 21,
};

enum woken_by {
	BY_NOBODY = 0,
	BY_THREAD = 1,
	BY_TIMER = 2,
	BY_DISK = 3,
	BY_NETWORK = 4,
	BY_INTERRUPT = 5,
};

#define OFF_IO_WAIT 1
#define OFF_UNFINISHED 2
#define OFF_TIMEOUT 4
#define OFF_HOLDER 8
#define OFF_KERNEL_HOLDER 16

/* One time off CPU, sent when the thread runs again. It includes the previous user of that CPU, which saves a separate
 * record. */
struct off_record {
	__u64 start_ns;
	__u64 duration_ns;
	__u64 ready_ns;
	__u64 object;
	__u64 timeout_ns;
	__u64 stack;
	__u64 holder_since_ns;
	char holder_comm[16];
	__u32 holder_tgid;
	__u32 holder_tid;
	__u32 tgid;
	__u32 tid;
	__u32 waker_tgid;
	__u32 waker_tid;
	__u32 file;
	__u16 left_cpu;
	__u16 cpu;
	__s16 syscall;
	__u8 reason;
	__u8 wait;
	__u8 woken_by;
	__u8 flags;
	__u16 unused;
};

#define RUN_KERNEL 1

/* A thread ran on a CPU for which a traced thread waited. */
struct run_record {
	__u64 start_ns;
	__u64 duration_ns;
	char comm[16];
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 flags;
};

/* A thread that waited for a CPU was moved to another. */
struct moved_record {
	__u64 start_ns;
	__u64 duration_ns;
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 unused;
};

#define SUMS_ENDED 1
/* The scheduler is not followed: only pages are counted. */
#define SUMS_NO_TIMES 2

/* A thread's sums so far. */
struct sums_record {
	__u64 born_ns;
	__u64 since_ns;
	__u64 at_ns;
	__u64 on_cpu_ns;
	__u64 ready_ns;
	__u64 blocked_ns;
	__u64 throttled_ns;
	__u64 switches;
	__u64 page_allocations;
	__u64 page_bytes;
	char comm[16];
	__u32 tgid;
	__u32 tid;
	__u32 flags;
	__u32 unused;
	__u64 unused2; /* no other record is of this size */
};

enum state {
	STATE_UNKNOWN = 0, /* adopted, and nothing was seen of it yet */
	STATE_RUNNING = 1,
	STATE_READY = 2,
	STATE_BLOCKED = 3,
	STATE_ENDED = 4,
};

struct watched {
	/* Running: since when. */
	__u64 on_since_ns;
	/* The scheduler's own figures of its time on a CPU and ready, when it last left one. */
	__u64 exec_ns;
	__u64 delay_ns;
	__u32 tid; /* changes when a thread other than the first execs */
	/* Off: since when, since when ready, since when ready on the CPU it waits for now. */
	__u64 out_ns;
	__u64 ready_ns;
	__u64 piece_ns;
	/* What the thread waits for, as in off_record. */
	__u64 object;
	__u64 timeout_ns;
	__u64 stack;
	__u32 file;
	__u32 waker_tgid;
	__u32 waker_tid;
	__u16 left_cpu;
	__u16 cpu;
	__s16 syscall;
	__u8 state;
	__u8 reason;
	__u8 wait;
	__u8 woken_by;
	__u8 flags;
	__u8 counted; /* whether it is one of its CPU's `waiting` */
	/* Sums. */
	__u64 since_ns;
	__u64 born_ns;
	__u64 on_cpu_ns;
	__u64 ready_sum_ns;
	__u64 blocked_ns;
	__u64 throttled_ns;
	__u64 switches;
	__u64 page_allocations;
	__u64 page_bytes;
	/* The page fault it waits in: where in the program, since when. */
	__u64 fault_ip;
	__u64 fault_ns;
	/* Since when it waits for its address space's lock, makes free memory, compacts; 0 when not. */
	__u64 lock_ns;
	__u64 reclaim_ns;
	__u64 compact_ns;
	struct py_memory python;
};

/* Which interrupts a CPU is handling, as bits. */
#define IN_SOFTIRQ 1
#define IN_IRQ 2
#define IN_TIMER 4

struct cpu_state {
	__u64 since_ns; /* when the task that runs now began to, or somebody traced to wait for it; 0: nobody asked */
	__u32 waiting; /* traced threads ready to run here */
	__u32 wanted; /* whether any was since the last switch */
	__u32 interrupts;
	__u32 softirq; /* which */
} __attribute__((aligned(64))); /* a cache line of its own */

/* Written by the CPU itself but for `waiting` and `wanted`. */
struct cpu_state cpus[MAX_CPUS];

/* Whether anything of the host's side is recorded, and whether the scheduler is followed. */
const volatile bool host = true;
const volatile bool sched = true;
/* How sched_switch passes the state: 0 not at all, 1 as its second argument (5.18), 2 as its last. */
const volatile __u32 switch_shape = 2;
const volatile __u32 page_shift = 12;
/* The argument of mark_victim: the task (from 6.8), or its pid. */
const volatile bool oom_victim_is_task = true;
/* CLOCK_REALTIME less CLOCK_MONOTONIC, ns, kept up to date: some deadlines are on the wall clock. */
volatile __s64 realtime_offset_ns = 0;
/* Processes found by adopt_threads. */
volatile __u32 adopted = 0;
/* When tracing of the scheduler ended; 0 before. Later events are ignored. */
volatile __u64 host_end_ns = 0;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct watched);
} watched SEC(".maps");

/* A traced thread's state; NULL for anybody else. */
static __always_inline struct watched *watched_of(struct task_struct *task)
{
	if (!task->bpf_storage)
		return NULL;
	return bpf_task_storage_get(&watched, task, 0, 0);
}

static __always_inline struct cpu_state *cpu_at(__u32 cpu)
{
	return &cpus[cpu & (MAX_CPUS - 1)];
}

/* Starts to watch a thread; the caller gives its state. */
static __always_inline struct watched *watch(struct task_struct *task, __u64 now)
{
	struct watched *w = bpf_task_storage_get(&watched, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!w) {
		count_loss(LOSS_MAP_FULL, kernel_ops + OP_SCHED_SWITCH);
		return NULL;
	}
	if (!w->since_ns) {
		w->since_ns = now;
		w->born_ns = task->start_time;
		w->tid = task->pid;
	}
	return w;
}

/* A record of the kind calls have, about something the kernel did for or to a thread. */
static __always_inline void tell(__u32 op, __u64 start_ns, __u64 end_ns, __u32 tgid, __u32 tid, __u64 arg0, __u64 arg1,
				 __s32 ret)
{
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_loss(LOSS_RING_FULL, kernel_ops + op);
		return;
	}
	r->start_ns = start_ns;
	r->duration_ns = end_ns - start_ns;
	r->arg0 = arg0;
	r->arg1 = arg1;
	r->stream = 0;
	r->tgid = tgid;
	r->tid = tid;
	r->ret = ret;
	r->op = kernel_ops + op;
	r->device = DEVICE_UNKNOWN;
	r->flags = FLAG_ARG0 | FLAG_ARG1;
	r->stack = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}
