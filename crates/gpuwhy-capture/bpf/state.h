/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs keep: who is traced, each thread's open calls, live allocations, contexts, loss. What is kept
 * of threads as the scheduler sees them is in watched.h. */
#pragma once

#define MAX_DEPTH 16
#define CALLER_CACHE 8
#define CONTEXT_STACK 4
#define DEVICE_UNKNOWN 0xff

/* Record flags, as gpuwhy-capture's record.rs reads them. */
#define FLAG_INNER 1
#define FLAG_UNFINISHED 2
#define FLAG_ARG0 4
#define FLAG_ARG1 8
#define FLAG_STREAM 16
/* A call followed for what it tells about devices, not reported. */
#define FLAG_QUIET 32
/* Whether the runtime made this driver call could not be told here: arg1 holds the return address instead. */
#define FLAG_CALLER 64

/* A rank's number of a transfer in `more`; told only where its communicator was seen being made. */
#define FLAG_SEQUENCE 128

/* Records that are no calls carry one of these as their op. */
#define OP_EXEC 0x3fe
#define OP_EXIT 0x3fd
#define OP_FORK 0x3fc
#define OP_THREAD 0x3fb

/* Causes of loss; gpuwhy-model's loss.rs numbers them the same. */
enum loss {
	LOSS_RING_FULL = 0,
	LOSS_MAP_FULL = 1,
	LOSS_TOO_DEEP = 2,
	LOSS_NO_RETURN = 5,
	LOSS_LIVE_MAP_FULL = 6,
	LOSS_ARG_UNREADABLE = 7,
	LOSS_CALLER_UNKNOWN = 8,
	LOSS_EVIDENCE_LOST = 9,
	LOSS_STACK_UNREADABLE = 10,
	LOSS_STACK_TRUNCATED = 11,
	LOSS_CAUSES = 15,
};
#define LOSS_OPS 512
/* Where no op can be named. */
#define NO_OP (LOSS_OPS - 1)

/* What the kernel tells, counted from `kernel_ops`; gpuwhy-model's ops.rs has them in the same order. */
enum kernel_op {
	OP_SCHED_SWITCH = 0,
	OP_SCHED_WAKEUP = 1,
	OP_PROCESS_FORK = 2,
	OP_PROCESS_EXEC = 3,
	OP_PROCESS_EXIT = 4,
	OP_OOM_KILL = 5,
	OP_BLOCK_IO = 6,
	OP_MAJOR_FAULT = 7,
	OP_TCP_RETRANSMIT = 8,
	OP_DIRECT_RECLAIM = 9,
	OP_COMPACTION = 10,
	OP_MMAP_LOCK = 11,
	OP_CPU_SAMPLE = 12,
};

/* One record in the ring. Times are CLOCK_MONOTONIC ns. */
struct record {
	__u64 start_ns;
	__u64 duration_ns;
	__u64 arg0;
	__u64 arg1;
	__u64 stream;
	__u32 tgid;
	__u32 tid;
	__s32 ret;
	__u16 op;
	__u8 device;
	__u8 flags;
	__u64 stack; /* number of the Python stack, 0 for none */
};

/* A call with more to tell. */
struct long_record {
	struct record call;
	__u32 weight; /* calls it stands for */
	__u32 sequence;
	__s32 peer; /* rank, -1 for none */
	__u32 unused;
};

/* What is remembered of a thread's Python. */
struct py_memory {
	__u64 tstate;
	__u64 retry_ns; /* not before this is it looked for again */
	__u64 pause_ns; /* doubled each time in vain */
};

/* A call that has been entered and not yet left. */
struct frame {
	__u64 start_ns;
	__u64 sp; /* at entry: pairs the return with its entry */
	__u64 cookie;
	__u64 arg0;
	__u64 arg1;
	__u64 stream;
	__u64 caller; /* return address, where FLAG_CALLER says so */
	__u64 more; /* of rare functions: a name's address, or a transfer's sequence and peer */
	__u32 op;
	__u32 flags;
};

/* A communicator that is being made. */
struct new_communicator {
	__u64 id;
	__u64 parent;
	__u32 ranks;
	__u32 rank;
	__s32 color;
	__s32 key;
};

/* The thread's newest outermost call, and how many like it followed that were only counted. */
struct burst {
	__u64 cookie; /* 0 where no burst can begin */
	__u64 stream;
	__u64 first_ns; /* when it began */
	__u64 start_ns; /* of the newest, counted ones included */
	__u64 duration_ns;
	__u64 stack;
	__u32 op;
	__u32 counted;
};

struct thread {
	struct frame frames[MAX_DEPTH];
	struct burst burst;
	struct new_communicator communicator;
	/* Return addresses already looked up, and whose they are. */
	__u64 caller[CALLER_CACHE];
	__u8 caller_is[CALLER_CACHE];
	struct py_memory python;
	/* When the thread, or the program it now runs, began. */
	__u64 born_ns;
	/* Of tensors that were allocated since a stack was read. */
	__u64 unseen_bytes;
	__u32 depth;
	__u8 device;
	/* Whether the thread ever chose a device or context: until then CUDA's default holds. */
	__u8 chosen;
	/* Whether it was seen making a call. */
	__u8 called;
	__u8 context_depth;
	__u8 context_device[CONTEXT_STACK];
};

struct live_key {
	__u64 address;
	__u32 tgid;
	__u32 is_handle;
};

struct context_key {
	__u64 context;
	__u32 tgid;
	__u32 unused;
};

/* Set before loading. */
const volatile bool all_processes = true;
const volatile bool all_layers = false;
/* Off, gpuwhy looks up callers itself, as on kernels before 5.17. */
const volatile bool find_callers = true;
const volatile __u32 own_tgid = 0;
/* Op number of the first thing the kernel tells. */
const volatile __u32 kernel_ops = 0;

/* Op number of the first thing PyTorch's allocator tells. */
const volatile __u32 torch_ops = 0;

/* Ops whose probes are removed: calls that were open then are not seen to return. */
volatile __u8 gone[LOSS_OPS];
/* How many limits there are: while there are none, no probe pays for looking one up. */
volatile __u32 limited = 0;
/* Whether switches and samples get no Python stacks. */
volatile bool no_switch_stacks = false;

/* The latest moment at which a library that was already mapped got its probes: what a thread born
 * before it did until then is not known. */
volatile __u64 ready_ns = 0;

/* Set when tracing ends: open calls may return, no new ones are followed. */
volatile bool stopping = false;

/* Set while gpuwhy calls a function of its own to learn what a probe costs. */
volatile bool calibrating = false;

/* Events lost, by cause and op. Only touched when something is lost, so plain atomics do. */
__u64 lost[LOSS_CAUSES][LOSS_OPS];

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 524288);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct live_key);
	__type(value, __u64);
} live SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct context_key);
	__type(value, __u32);
} contexts SEC(".maps");

/* Traps, by op, for the governor; under NO_OP, switches of watched threads. Of every so many the time spent is taken. */
struct traps {
	__u64 entered;
	__u64 followed; /* to their return */
	__u64 timed;
	__u64 spent_ns;
};
#define TIME_EVERY 64

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSS_OPS);
	__type(key, __u32);
	__type(value, struct traps);
} traps SEC(".maps");

/* What concerns one op of one process. */
struct process_op {
	__u32 tgid;
	__u32 op; /* that has the probe */
};

/* How closely an op of a process is followed where that is less than fully, as its governor says: see burst.h. User space
 * writes and removes them; 256 processes have room for 64 ops each. */
enum mode { MODE_FULL = 0, MODE_SAMPLED = 1, MODE_MUTED = 2 };
struct limit {
	__u32 mode;
	__u32 unused;
	__u64 muted; /* calls that were not followed: the trap was paid for all the same */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct process_op);
	__type(value, struct limit);
} limits SEC(".maps");

/* Whose traps they are: every 16th counts here, too. User space takes them out, so that they cannot fill up for long. */
struct share {
	__u64 entered;
	__u64 followed;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct process_op);
	__type(value, struct share);
} shares SEC(".maps");

/* Transfers so far of a communicator that was seen being made. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct context_key);
	__type(value, __u32);
} transfers SEC(".maps");

/* Files that have the runtime built in, by inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} linked_in SEC(".maps");

static __always_inline void count_loss(__u32 cause, __u32 op)
{
	__sync_fetch_and_add(&lost[cause][op & (LOSS_OPS - 1)], 1);
}

static __always_inline bool is_target(__u32 tgid)
{
	if (tgid == own_tgid)
		return calibrating;
	if (all_processes)
		return true;
	return bpf_map_lookup_elem(&targets, &tgid) != NULL;
}
