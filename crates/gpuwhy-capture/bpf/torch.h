/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What PyTorch's caching allocator reports at every tensor's allocation and free, and when there is no memory left. Read
 * at entry alone: a C++ exception may cross these functions, and would not survive a return probe. */
#pragma once

/* c10::DeviceType of a GPU: CUDA, which ROCm calls itself, too. */
#define TORCH_CUDA 1

enum torch_op { TORCH_ALLOC = 0, TORCH_FREE = 1, TORCH_OUT_OF_MEMORY = 2 };

struct tensor_record {
	__u64 at_ns;
	__u64 bytes;
	__u64 address;
	__u64 allocated; /* of the device in this process, after it */
	__u64 reserved;
	__u64 stack;
	__u32 tgid;
	__u32 tid;
	__u32 op;
	__u32 device;
	__u64 unused; /* no other record is as long */
};

/* Followed less closely, the stack of every so many bytes of a thread is taken: of large tensors always, of small ones now and
 * then. It is where PyTorch's allocator divides small from large. */
#define BYTES_A_STACK (1 << 20)

/* Whether to ask where it was. A free needs no answer: what it frees was allocated somewhere. */
static __always_inline bool wants_python(struct thread *t, __u32 op, __u64 bytes, bool sampled)
{
	if (op != torch_ops)
		return op != torch_ops + TORCH_FREE;
	if (!sampled)
		return true;
	t->unseen_bytes += bytes;
	if (t->unseen_bytes < BYTES_A_STACK)
		return false;
	t->unseen_bytes = 0;
	return true;
}

static __always_inline int tensor_reported(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 op = COOKIE_OP(bpf_get_attach_cookie(ctx));
	bool refused = op != torch_ops;
	struct tensor_record *r;
	struct input in = {};
	struct limit *limit;
	struct thread *t;
	__u64 now, stack = 0;
	__s64 bytes;
	__u32 device;
	bool sampled;

	limit = limit_of(task->tgid, op);
	if (is_muted(limit))
		return 0;
	sampled = limit && limit->mode == MODE_SAMPLED;
	read_registers(ctx, &in);
	device = refused ? in.reg[3] : in.reg[4];
	if ((device & 0xff) != TORCH_CUDA)
		return 0;
	t = thread_state(task, op);
	if (!t || stopping)
		return 0;
	now = bpf_ktime_get_ns();
	bytes = refused ? in.reg[0] : in.reg[1];
	if (!refused && bytes < 0) {
		bytes = -bytes;
		op = torch_ops + TORCH_FREE;
	}
	count_trap(task->tgid, refused ? op : torch_ops, false);
	if (wants_python(t, op, bytes, sampled))
		stack = stack_of_call(&t->python, task, now);
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_loss(LOSS_RING_FULL, op);
		return 0;
	}
	r->at_ns = now;
	r->bytes = bytes;
	r->address = refused ? 0 : in.reg[0];
	r->allocated = refused ? in.reg[1] : in.reg[2];
	r->reserved = refused ? in.reg[2] : in.reg[3];
	r->stack = stack;
	r->tgid = task->tgid;
	r->tid = task->pid;
	r->op = op;
	r->device = device >> 8 & 0xff;
	r->unused = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	time_trap(refused ? op : torch_ops, now);
	return 0;
}
