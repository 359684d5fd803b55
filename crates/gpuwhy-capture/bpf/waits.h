/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a thread that leaves the CPU waits for: read from its current system call and the file that call uses, at switch-out,
 * when both are unchanged since the call. */
#pragma once

#define SYSCALLS 512

/* Kinds of system calls, by what their arguments say of a wait; gpuwhy-capture's syscalls.rs numbers them the
 * same. */
enum syscall_kind {
	CALL_OTHER = 0,
	CALL_FILE = 1, /* the first argument is a file */
	CALL_FUTEX = 2,
	CALL_SLEEP = 3, /* (const timespec *) */
	CALL_CLOCK_SLEEP = 4, /* (clock, flags, const timespec *) */
	CALL_POLL = 5, /* (pollfd *, n, ms) */
	CALL_PPOLL = 6, /* (pollfd *, n, const timespec *) */
	CALL_SELECT = 7,
	CALL_EPOLL = 8, /* (file, events, n, ms) */
	CALL_CHILD = 9,
	CALL_SIGNAL = 10,
	CALL_YIELD = 11,
	CALL_IO_URING = 12,
	CALL_AIO = 13,
};

const volatile __u8 syscall_kinds[SYSCALLS] = {};

#define FUTEX_WAIT 0
#define FUTEX_WAIT_BITSET 9
#define FUTEX_CLOCK_REALTIME 0x100
#define TIMER_ABSTIME 1
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1

#define S_IFMT 0xf000
#define S_IFIFO 0x1000
#define S_IFCHR 0x2000
#define S_IFBLK 0x6000
#define PIPEFS_MAGIC 0x50495045
#define SOCKFS_MAGIC 0x534f434b
#define ANON_INODE_MAGIC 0x09041934
#define PIDFS_MAGIC 0x50494446

struct timespec {
	__s64 seconds;
	__s64 nanoseconds;
};

struct pollfd {
	int fd;
	short events;
	short revents;
};

/* The first eight characters of a file's name, as a number. */
#define NAME8(a, b, c, d, e, f, g, h)                                                                                  \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 | (__u64)(f) << 40 |    \
	 (__u64)(g) << 48 | (__u64)(h) << 56)

static __always_inline __u64 name8(struct file *file)
{
	const unsigned char *from = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	__u64 name = 0;

	bpf_probe_read_kernel(&name, sizeof(name), from);
	return name;
}

static __always_inline __u8 anonymous_kind(struct file *file)
{
	switch (name8(file)) {
	case NAME8('[', 'e', 'v', 'e', 'n', 't', 'f', 'd'):
		return WAIT_EVENTFD;
	case NAME8('[', 'e', 'v', 'e', 'n', 't', 'p', 'o'):
		return WAIT_EPOLL;
	case NAME8('[', 't', 'i', 'm', 'e', 'r', 'f', 'd'):
		return WAIT_TIMERFD;
	case NAME8('[', 'i', 'o', '_', 'u', 'r', 'i', 'n'):
		return WAIT_IO_URING;
	}
	return WAIT_ANON_FILE;
}

/* NVIDIA's first device node has a number of its own (195), the others' are given out at run time: all are
 * known by their names. */
static __always_inline __u8 char_device_kind(struct file *file, __u32 device)
{
	const __u64 nvidia = NAME8('n', 'v', 'i', 'd', 'i', 'a', 0, 0);

	if (device >> 20 == 195 || (name8(file) & 0xffffffffffff) == nvidia)
		return WAIT_GPU;
	return WAIT_CHAR_DEVICE;
}

static __always_inline void describe_file(struct watched *w, struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL, **files;
	struct inode *inode;
	struct socket *socket;
	__u64 magic;
	__u16 mode;

	w->wait = WAIT_OTHER;
	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd) || !file)
		return;
	inode = BPF_CORE_READ(file, f_inode);
	magic = BPF_CORE_READ(inode, i_sb, s_magic);
	mode = BPF_CORE_READ(inode, i_mode) & S_IFMT;
	w->object = BPF_CORE_READ(inode, i_ino);
	if (magic == PIPEFS_MAGIC || mode == S_IFIFO) {
		w->wait = WAIT_PIPE;
	} else if (magic == SOCKFS_MAGIC) {
		socket = BPF_CORE_READ(file, private_data);
		w->wait = WAIT_SOCKET;
		w->file = BPF_CORE_READ(socket, sk, __sk_common.skc_family);
	} else if (magic == ANON_INODE_MAGIC) {
		w->wait = anonymous_kind(file);
	} else if (magic == PIDFS_MAGIC) {
		w->wait = WAIT_CHILD;
	} else if (mode == S_IFCHR) {
		w->file = BPF_CORE_READ(inode, i_rdev);
		w->wait = char_device_kind(file, w->file);
	} else if (mode == S_IFBLK) {
		w->file = BPF_CORE_READ(inode, i_rdev);
		w->wait = WAIT_BLOCK_DEVICE;
	} else {
		w->wait = WAIT_FILE;
		w->file = magic;
	}
}

static __always_inline void set_timeout(struct watched *w, __s64 ns)
{
	w->timeout_ns = ns > 0 ? ns : 0;
	w->flags |= OFF_TIMEOUT;
}

/* A limit in the program's memory: for how long, or until when (on which clock). Readable only in the thread's own
 * context. */
static __always_inline void read_timeout(struct watched *w, __u64 address, bool absolute, bool realtime, __u64 now)
{
	struct timespec limit;
	__s64 ns;

	if (!address || bpf_probe_read_user(&limit, sizeof(limit), (void *)address))
		return;
	ns = limit.seconds * 1000000000 + limit.nanoseconds;
	if (absolute)
		ns -= (__s64)now + (realtime ? realtime_offset_ns : 0);
	set_timeout(w, ns);
}

static __always_inline void describe_futex(struct watched *w, const struct pt_regs *regs, bool is_current, __u64 now)
{
	__u32 op = syscall_arg(regs, 1), command = op & 0x7f;

	w->wait = WAIT_FUTEX;
	w->object = syscall_arg(regs, 0);
	if (is_current && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET))
		read_timeout(w, syscall_arg(regs, 3), command == FUTEX_WAIT_BITSET, op & FUTEX_CLOCK_REALTIME, now);
}

/* Waiting for one of several files: the first one is reported, which is mostly the only one. */
static __always_inline void describe_poll(struct watched *w, struct task_struct *task, const struct pt_regs *regs,
					  bool is_current)
{
	struct pollfd first;

	w->wait = WAIT_POLL;
	if (!is_current || !syscall_arg(regs, 1) ||
	    bpf_probe_read_user(&first, sizeof(first), (void *)syscall_arg(regs, 0)) || first.fd < 0)
		return;
	describe_file(w, task, first.fd);
	if (w->wait == WAIT_OTHER)
		w->wait = WAIT_POLL;
}

static __always_inline void describe_call(struct watched *w, struct task_struct *task, const struct pt_regs *regs,
					  __u32 kind, bool is_current, __u64 now)
{
	__s32 ms;

	switch (kind) {
	case CALL_FILE:
		describe_file(w, task, syscall_arg(regs, 0));
		break;
	case CALL_FUTEX:
		describe_futex(w, regs, is_current, now);
		break;
	case CALL_SLEEP:
		w->wait = WAIT_SLEEP;
		if (is_current)
			read_timeout(w, syscall_arg(regs, 0), false, false, now);
		break;
	case CALL_CLOCK_SLEEP:
		w->wait = WAIT_SLEEP;
		if (is_current && syscall_arg(regs, 0) <= CLOCK_MONOTONIC)
			read_timeout(w, syscall_arg(regs, 2), syscall_arg(regs, 1) & TIMER_ABSTIME,
				     syscall_arg(regs, 0) == CLOCK_REALTIME, now);
		break;
	case CALL_POLL:
	case CALL_PPOLL:
		describe_poll(w, task, regs, is_current);
		ms = syscall_arg(regs, 2);
		if (kind == CALL_PPOLL && is_current)
			read_timeout(w, syscall_arg(regs, 2), false, false, now);
		else if (kind == CALL_POLL && ms >= 0)
			set_timeout(w, (__s64)ms * 1000000);
		break;
	case CALL_EPOLL:
		w->wait = WAIT_EPOLL;
		ms = syscall_arg(regs, 3);
		if (ms >= 0)
			set_timeout(w, (__s64)ms * 1000000);
		break;
	case CALL_SELECT:
		w->wait = WAIT_POLL;
		break;
	case CALL_CHILD:
		w->wait = WAIT_CHILD;
		break;
	case CALL_SIGNAL:
		w->wait = WAIT_SIGNAL;
		break;
	case CALL_IO_URING:
		w->wait = WAIT_IO_URING;
		break;
	case CALL_AIO:
		w->wait = WAIT_AIO;
		break;
	default:
		w->wait = WAIT_OTHER;
	}
}

/* Which system call a thread is in. */
static __always_inline __u32 note_syscall(struct watched *w, const struct pt_regs *regs)
{
	__s32 number = syscall_of(regs);

	w->syscall = number >= 0 && number < SYSCALLS ? number : -1;
	return w->syscall < 0 ? CALL_OTHER : syscall_kinds[w->syscall & (SYSCALLS - 1)];
}

/* `is_current`: whether the program's memory can be read. */
static __always_inline void describe_wait(struct watched *w, struct task_struct *task, const struct pt_regs *regs,
					  bool is_current, __u64 now)
{
	__u32 kind = note_syscall(w, regs);

	if (BPF_CORE_READ_BITFIELD(task, in_iowait))
		w->flags |= OFF_IO_WAIT;
	if (w->syscall >= 0) {
		describe_call(w, task, regs, kind, is_current, now);
	} else {
		w->wait = WAIT_PAGE_FAULT;
		/* Several waits may belong to one fault: it is the same as long as the program does not move. */
		if (w->fault_ip != user_ip(regs)) {
			w->fault_ip = user_ip(regs);
			w->fault_ns = now;
		}
	}
	if (w->lock_ns)
		w->wait = WAIT_MMAP_LOCK;
	else if (w->reclaim_ns || w->compact_ns)
		w->wait = WAIT_RECLAIM;
}
