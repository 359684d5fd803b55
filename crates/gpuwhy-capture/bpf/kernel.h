/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The few kernel types gpuwhy reads. Written by hand instead of a 150,000-line vmlinux.h: what is listed
 * here is what the programs depend on, and CO-RE finds the fields wherever a kernel keeps them. */
#pragma once

/* bpf_tracing.h then uses the kernel's own register names (di, si, …). */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

/* Only asked whether the kernel has the helper (5.17). */
enum bpf_func_id {
	BPF_FUNC_find_vma = 180,
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
struct pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};

struct rw_semaphore {
	int unused;
};

struct percpu_counter {
	__s64 count;
};

struct mm_struct {
	struct rw_semaphore mmap_lock;
	struct percpu_counter rss_stat[4]; /* pages of files, anonymous, in swap, shared; 6.2 */
};

struct file;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct rq {
	__u64 clock; /* ns, the scheduler's */
};

struct cfs_rq {
	int throttle_count;
	struct rq *rq;
};

struct sched_info {
	unsigned long long run_delay; /* ns spent ready, so far */
	unsigned long long last_queued; /* when it became ready, by the run queue's clock; 0: it is not */
};

struct sched_entity {
	__u64 sum_exec_runtime; /* ns on a CPU, by the scheduler's clock */
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	__u32 cpu;
};

struct bpf_local_storage;

/* Where the thread pointer is kept. */
#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
};
#endif

struct task_struct {
	struct thread_struct thread;
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	int on_cpu;
	int pid;
	int tgid;
	int exit_code;
	unsigned in_iowait : 1;
	struct sched_entity se;
	struct sched_info sched_info;
	bool throttled; /* by a cgroup's quota, 6.18 */
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	__u64 start_time; /* CLOCK_MONOTONIC ns */
	char comm[16];
	struct files_struct *files;
	struct signal_struct *signal;
	struct bpf_local_storage *bpf_storage;
};

/* Where the CPU of a task was before 5.16, and its state before 5.14. */
struct task_struct___old {
	unsigned int cpu;
	volatile long state;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	__u16 i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	__u32 i_rdev;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
};

struct sock_common {
	__be16 skc_dport;
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct sk_buff;

struct gendisk {
	int major;
	int first_minor;
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
};

struct page;
struct hrtimer;
struct irqaction;

struct vm_area_struct {
	struct file *vm_file;
};

struct linux_binprm;

struct bpf_iter__task {
	struct task_struct *task;
};

#if defined(__TARGET_ARCH_arm64)
struct pt_regs___entry {
	__u64 orig_x0;
	__s32 syscallno;
};
#endif

#pragma clang attribute pop

/* What a program on a perf event is given; part of the kernel's interface to user space. */
struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};
