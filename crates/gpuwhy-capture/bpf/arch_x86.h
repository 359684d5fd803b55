/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where the System V x86-64 ABI keeps a call's arguments and return address. Read at the function's first
 * instruction (or just past endbr64), before anything is pushed. */
#pragma once

/* The stack pointer at return, less the one at entry: `ret` has popped the return address. */
#define SP_DELTA_AT_RETURN 8

#define REGISTER_SLOTS 6
/* Argument slots beyond the registers, all within the few words read at once. */
#define STACK_SLOTS 3

/* The arguments of a call, copied out of the context once: compilers may compute addresses inside the
 * context, which the verifier refuses. */
struct input {
	__u64 sp;
	__u64 reg[REGISTER_SLOTS];
	/* Read only where wanted: the return address, and above it the first arguments on the stack. */
	struct {
		__u64 return_address;
		__u64 slot[STACK_SLOTS];
	} stack;
};

static __always_inline void read_registers(struct pt_regs *ctx, struct input *in)
{
	in->sp = PT_REGS_SP(ctx);
	in->reg[0] = PT_REGS_PARM1(ctx);
	in->reg[1] = PT_REGS_PARM2(ctx);
	in->reg[2] = PT_REGS_PARM3(ctx);
	in->reg[3] = PT_REGS_PARM4(ctx);
	in->reg[4] = PT_REGS_PARM5(ctx);
	in->reg[5] = PT_REGS_PARM6(ctx);
}

/* One read for everything on the stack: each costs some 50 ns. */
static __always_inline bool read_stack(struct input *in)
{
	return bpf_probe_read_user(&in->stack, sizeof(in->stack), (void *)in->sp) == 0;
}

/* A struct larger than 16 bytes is passed by value on the stack; `offset` counts the by-value bytes
 * before it. */
static __always_inline __u64 by_value_address(const struct input *in, __u32 slot, __u32 offset)
{
	(void)slot;
	return in->sp + 8 + offset;
}

/* The slot of the argument after such a struct that would be in slot n: the struct takes none. */
#define SLOT_AFTER_BY_VALUE(n) (n)

/* The system call a task is in, -1 outside of one, and its n-th argument. */
static __always_inline __s32 syscall_of(const struct pt_regs *regs)
{
	return (__s32)regs->orig_ax;
}

static __always_inline __u64 syscall_arg(const struct pt_regs *regs, __u32 n)
{
	switch (n) {
	case 0:
		return regs->di;
	case 1:
		return regs->si;
	case 2:
		return regs->dx;
	default:
		return regs->r10;
	}
}

static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
	return regs->ip;
}

/* pthread_self() of a thread. */
static __always_inline __u64 thread_pointer_of(struct task_struct *task)
{
	return task->thread.fsbase;
}
