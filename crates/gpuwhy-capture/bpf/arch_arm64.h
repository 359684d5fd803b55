/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where AAPCS64 keeps a call's arguments and return address. Compiles; not yet run on such a machine. */
#pragma once

#define SP_DELTA_AT_RETURN 0

#define REGISTER_SLOTS 8
#define STACK_SLOTS 3

struct input {
	__u64 sp;
	__u64 reg[REGISTER_SLOTS];
	struct {
		__u64 return_address;
		__u64 slot[STACK_SLOTS];
	} stack;
};

static __always_inline void read_registers(struct pt_regs *ctx, struct input *in)
{
	in->sp = PT_REGS_SP(ctx);
	in->stack.return_address = PT_REGS_RET(ctx);
	in->reg[0] = PT_REGS_PARM1(ctx);
	in->reg[1] = PT_REGS_PARM2(ctx);
	in->reg[2] = PT_REGS_PARM3(ctx);
	in->reg[3] = PT_REGS_PARM4(ctx);
	in->reg[4] = PT_REGS_PARM5(ctx);
	in->reg[5] = PT_REGS_PARM6(ctx);
	in->reg[6] = PT_REGS_PARM7(ctx);
	in->reg[7] = PT_REGS_PARM8(ctx);
}

static __always_inline bool read_stack(struct input *in)
{
	return bpf_probe_read_user(in->stack.slot, sizeof(in->stack.slot), (void *)in->sp) == 0;
}

/* A struct larger than 16 bytes is passed by reference: the slot holds its address. */
static __always_inline __u64 by_value_address(const struct input *in, __u32 slot, __u32 offset)
{
	(void)offset;
	return in->reg[(slot - 1) & (REGISTER_SLOTS - 1)];
}

/* The slot of the argument after such a struct, which is in slot n. */
#define SLOT_AFTER_BY_VALUE(n) ((n) + 1)

/* The system call a task is in, -1 outside of one, and its n-th argument. */
static __always_inline __s32 syscall_of(const struct pt_regs *regs)
{
	return BPF_CORE_READ((const struct pt_regs___entry *)regs, syscallno);
}

static __always_inline __u64 syscall_arg(const struct pt_regs *regs, __u32 n)
{
	if (n == 0)
		return BPF_CORE_READ((const struct pt_regs___entry *)regs, orig_x0);
	return regs->regs[n & 3];
}

static __always_inline __u64 user_ip(const struct pt_regs *regs)
{
	return regs->pc;
}

/* pthread_self() of a thread, give or take a constant. */
static __always_inline __u64 thread_pointer_of(struct task_struct *task)
{
	return task->thread.uw.tp_value;
}
