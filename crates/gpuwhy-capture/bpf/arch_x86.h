/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where the System V x86-64 ABI keeps a call's arguments and return address. Read at the function's first
 * instruction (or just past endbr64), before anything is pushed. */
#pragma once

/* The stack pointer at return, less the one at entry: `ret` has popped the return address. */
#define SP_DELTA_AT_RETURN 8

#define REGISTER_SLOTS 6

/* What a call was entered with, copied out of the context once: compilers like to compute addresses
 * inside the context, which the verifier refuses. */
struct input {
	__u64 sp;
	__u64 reg[REGISTER_SLOTS];
};

static __always_inline void read_input(struct pt_regs *ctx, struct input *in)
{
	in->sp = PT_REGS_SP(ctx);
	in->reg[0] = PT_REGS_PARM1(ctx);
	in->reg[1] = PT_REGS_PARM2(ctx);
	in->reg[2] = PT_REGS_PARM3(ctx);
	in->reg[3] = PT_REGS_PARM4(ctx);
	in->reg[4] = PT_REGS_PARM5(ctx);
	in->reg[5] = PT_REGS_PARM6(ctx);
}

/* Argument slots beyond the registers lie above the return address. */
static __always_inline __u64 stack_slot_address(const struct input *in, __u32 n)
{
	return in->sp + 8 + 8 * (__u64)(n - REGISTER_SLOTS - 1);
}

/* A struct larger than 16 bytes is passed by value on the stack; `offset` counts the by-value bytes
 * before it. */
static __always_inline __u64 by_value_address(const struct input *in, __u32 slot, __u32 offset)
{
	(void)slot;
	return in->sp + 8 + offset;
}

static __always_inline bool return_address(const struct input *in, __u64 *address)
{
	return bpf_probe_read_user(address, sizeof(*address), (void *)in->sp) == 0;
}
