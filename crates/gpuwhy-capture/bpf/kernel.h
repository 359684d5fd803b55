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
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0 };
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
};

struct task_struct {
	int pid;
	int tgid;
	__u64 start_time; /* CLOCK_MONOTONIC ns */
	char comm[16];
	struct signal_struct *signal;
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

struct file {
	struct path f_path;
};

struct vm_area_struct {
	struct file *vm_file;
};

struct linux_binprm;

struct bpf_iter__task {
	struct task_struct *task;
};

#pragma clang attribute pop
