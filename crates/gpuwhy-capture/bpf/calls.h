/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Entering and leaving a traced function. One call of the program is one record, named by the outermost
 * function it called: what a CUDA library calls inside is followed only where it tells something. */
#pragma once

static __always_inline void fill(struct record *r, const struct frame *f, __u64 end_ns, __u32 tgid, __u32 tid,
				 __s32 ret, __u8 device, __u8 more_flags, __u64 stack)
{
	r->start_ns = f->start_ns;
	r->duration_ns = end_ns - f->start_ns;
	r->arg0 = f->arg0;
	r->arg1 = f->flags & FLAG_CALLER ? f->caller : f->arg1;
	r->stream = f->stream;
	r->tgid = tgid;
	r->tid = tid;
	r->ret = ret;
	r->op = f->op;
	r->device = device;
	r->flags = f->flags | more_flags;
	r->stack = stack;
}

static __always_inline void no_room(const struct frame *f)
{
	if (!(f->flags & FLAG_INNER)) /* inner calls are none of the program's */
		count_loss(LOSS_RING_FULL, f->op);
}

static __always_inline void emit(const struct frame *f, __u64 end_ns, __u32 tgid, __u32 tid, __s32 ret, __u8 device,
				 __u8 more_flags, __u64 stack)
{
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		no_room(f);
		return;
	}
	fill(r, f, end_ns, tgid, tid, ret, device, more_flags, stack);
	/* gpuwhy empties the ring on a timer: a wake-up for each call would cost more than the call. */
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* A transfer, with its number and the other rank. */
static __always_inline void emit_transfer(const struct frame *f, __u64 end_ns, __u32 tgid, __u32 tid, __s32 ret,
					  __u8 device, __u8 more_flags, __u64 stack)
{
	struct long_record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		no_room(f);
		return;
	}
	fill(&r->call, f, end_ns, tgid, tid, ret, device, more_flags, stack);
	r->weight = 1;
	r->sequence = (__u32)f->more;
	r->peer = (__s32)(f->more >> 32);
	r->unused = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* A record about a thread or process instead of a call: its name travels in arg0 and arg1. */
static __always_inline void emit_life(__u16 op, struct task_struct *task, __u64 since_ns)
{
	struct record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r)
		return; /* names are a courtesy; /proc is asked too */
	__builtin_memset(r, 0, sizeof(*r));
	r->start_ns = bpf_ktime_get_ns();
	r->duration_ns = since_ns;
	bpf_probe_read_kernel_str(&r->arg0, 16, task->group_leader->comm);
	r->tgid = task->tgid;
	r->tid = task->pid;
	r->ret = task->real_parent->tgid;
	r->op = op;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* A target's thread's state, made at its first call; NULL for a bystander. Only targets have one, so for
 * all but the first call this is the whole filter. */
static __always_inline struct thread *thread_state(struct task_struct *task, __u32 op)
{
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);

	if (t || !is_target(task->tgid))
		return t;
	t = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		count_loss(LOSS_MAP_FULL, op);
		return NULL;
	}
	t->device = DEVICE_UNKNOWN;
	t->born_ns = task->start_time;
	emit_life(OP_THREAD, task, task->start_time);
	/* When every process that uses CUDA is traced, this is how its first thread is known; gpuwhy adopts the rest. */
	if (host && all_processes && task->tgid != own_tgid && !watched_of(task))
		adopt(task, bpf_ktime_get_ns());
	return t;
}

/* The n-th open call. The mask is written out as an instruction because the compiler, having seen the
 * bounds checked earlier, would drop it, and the verifier, having forgotten them, would refuse. */
static __always_inline struct frame *frame_at(struct thread *t, __u64 n)
{
	asm volatile("%0 &= 15" : "+r"(n));
	return &t->frames[n];
}

/* Whose code a call came from. UNNAMED is memory without a file: the kernel's own trampoline for return
 * probes, or code made at run time. */
enum caller {
	CALLER_OTHER = 0,
	CALLER_RUNTIME,
	CALLER_DRIVER,
	CALLER_NCCL,
	CALLER_LINKED_IN, /* a file that has the runtime built in */
	CALLER_UNNAMED,
	CALLER_UNKNOWN,
};

struct vma_question {
	enum caller answer;
};

static long look_at_vma(struct task_struct *task, struct vm_area_struct *vma, struct vma_question *question)
{
	static const char runtime[] = "libcudart", driver[] = "libcuda.so", nccl[] = "libnccl";
	char name[sizeof(driver)] = {};
	bool is_runtime = true, is_driver = true, is_nccl = true;
	const unsigned char *from;

	question->answer = CALLER_UNNAMED;
	if (!vma->vm_file)
		return 0;
	from = BPF_CORE_READ(vma, vm_file, f_path.dentry, d_name.name);
	bpf_probe_read_kernel_str(name, sizeof(name), from);
	for (__u32 i = 0; i < sizeof(runtime) - 1; i++)
		is_runtime &= name[i] == runtime[i];
	for (__u32 i = 0; i < sizeof(driver) - 1; i++)
		is_driver &= name[i] == driver[i];
	for (__u32 i = 0; i < sizeof(nccl) - 1; i++)
		is_nccl &= name[i] == nccl[i];
	question->answer = is_runtime ? CALLER_RUNTIME : is_driver ? CALLER_DRIVER : is_nccl ? CALLER_NCCL : CALLER_OTHER;
	if (question->answer == CALLER_OTHER) {
		__u64 inode = BPF_CORE_READ(vma, vm_file, f_inode, i_ino);

		if (bpf_map_lookup_elem(&linked_in, &inode))
			question->answer = CALLER_LINKED_IN;
	}
	return 0;
}

/* The few call sites there are get looked up once a thread. A lookup that fails (the address space is being
 * changed) is not remembered, and tried again when the call returns; gpuwhy then looks in /proc, as it always does on
 * kernels that have no such lookup. A process that is gone by then has none. */
static __always_inline enum caller who_called(__u64 address, struct thread *t, struct task_struct *task)
{
	struct vma_question question = {};
	__u32 i;

	i = (address ^ address >> 7) & (CALLER_CACHE - 1);
	if (t->caller[i] == address)
		return t->caller_is[i];
	if (!find_callers || !bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_find_vma) ||
	    bpf_find_vma(task, address, look_at_vma, &question, 0))
		return CALLER_UNKNOWN;
	t->caller[i] = address;
	t->caller_is[i] = question.answer;
	return question.answer;
}

/* What a CUDA library does inside a call is followed where it tells of devices and names. */
static __always_inline bool tells_more(__u32 shape)
{
	return (shape >= SET_DEVICE && shape <= DROP_CONTEXT) || shape == NAMED;
}

/* Whether the call's probe was removed while it was open: then its return is not seen. */
static __always_inline bool is_gone(const struct frame *f)
{
	return gone[COOKIE_OP(f->cookie) & (LOSS_OPS - 1)];
}

/* Forgets calls that cannot be open any more because the stack is already back above them: the program
 * jumped out of them. One at the very same place may still be open: a function that jumps into another as its
 * last act shares its return address with it. */
__noinline __u32 drop_stale(struct thread *t, __u64 sp)
{
	__u32 depth;

	if (!t)
		return 0;
	depth = t->depth;
	for (int i = 0; i < MAX_DEPTH; i++) {
		struct frame *f = frame_at(t, depth - 1);
		bool gone = is_gone(f);

		if (!depth || (f->sp >= sp && !gone))
			break;
		if (!(f->flags & FLAG_QUIET) && !gone)
			count_loss(LOSS_NO_RETURN, f->op);
		depth--;
	}
	t->depth = depth;
	return depth;
}

/* Whether something in the program's stack is wanted: who called, or an argument. */
static __always_inline bool wants_stack(__u64 cookie, __u32 depth)
{
	__u32 stream = COOKIE_STREAM(cookie), shape = COOKIE_SHAPE(cookie);

	if (!COOKIE_RUNTIME(cookie) || depth)
		return true;
	return (stream > REGISTER_SLOTS && stream != STREAM_IN_CONFIG) || shape == COPY_2D ||
	       COOKIE_A(cookie) > REGISTER_SLOTS || COOKIE_B(cookie) > REGISTER_SLOTS;
}

/* Decides whether a call is the program's own. Returns flags for its frame. */
static __always_inline __u32 judge(struct thread *t, __u64 cookie, __u64 sp, __u32 depth, enum caller caller, __u32 *op)
{
	if (depth) {
		/* Inside another traced call: made by a CUDA library, unless the program's own code was called
		 * back from there. At the very same place on the stack it is either the outer call's last jump
		 * (the return address is the trampoline's), or what is left of a call that was jumped out of. */
		if (frame_at(t, depth - 1)->sp == sp)
			return FLAG_INNER;
		/* A runtime that is part of the program looks like the program, whoever is asked. */
		if (COOKIE_LINKED_IN(frame_at(t, depth - 1)->cookie) && caller != CALLER_UNNAMED)
			return FLAG_INNER;
		if (caller == CALLER_UNKNOWN)
			return FLAG_INNER | FLAG_CALLER;
		return caller >= CALLER_RUNTIME && caller <= CALLER_NCCL ? FLAG_INNER : 0;
	}
	if (COOKIE_RUNTIME(cookie))
		return 0;
	if (caller == CALLER_UNKNOWN)
		return FLAG_CALLER;
	/* Programs with the runtime built in leave devices to it: this is one of its functions that is not traced. */
	if (caller == CALLER_LINKED_IN && COOKIE_SHAPE(cookie) >= SET_DEVICE && COOKIE_SHAPE(cookie) <= DROP_CONTEXT)
		return FLAG_INNER;
	if (caller != CALLER_RUNTIME)
		return 0;
	/* Launches are probed at the driver only: report what the program called. Anything else the runtime
	 * does here belongs to a runtime function that is not traced. */
	if (COOKIE_TWIN(cookie) == NO_TWIN)
		return FLAG_INNER;
	*op = COOKIE_TWIN(cookie);
	return 0;
}

/* Whether a driver's call may belong to a call of the runtime that began before its probe was set. A thread is on its way at
 * most once: in the first call that is seen of it. A runtime that is a file of its own is known by its name; one that is part
 * of the program looks like the program, and the call is kept under the driver's name. */
static __always_inline bool is_doubtful(const struct thread *t, __u64 cookie, __u32 depth, enum caller caller)
{
	return !depth && !t->called && caller == CALLER_LINKED_IN && !COOKIE_RUNTIME(cookie) && t->born_ns <= ready_ns;
}

/* Returns 1 when the call's return is of no interest. Helper calls are what a probe's time goes into after
 * the trap itself, so there are few: state, cookie, stack, clock. */
static __always_inline int enter(struct pt_regs *ctx, const bool rare)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 cookie = bpf_get_attach_cookie(ctx), sp;
	__u32 op = COOKIE_OP(cookie), depth, flags;
	struct limit *limit = limit_of(task->tgid, op);
	enum caller caller = CALLER_OTHER;
	struct frame *f, *outer;
	struct input in = {};
	struct thread *t;
	bool sampled;

	if (is_muted(limit))
		return 1;
	sampled = limit && limit->mode == MODE_SAMPLED;
	t = thread_state(task, op);
	if (!t || stopping)
		return 1;
	read_registers(ctx, &in);
	sp = in.sp;
	depth = t->depth;
	if (depth)
		depth = drop_stale(t, sp);
	if (wants_stack(cookie, depth) && !read_stack(&in))
		count_loss(LOSS_ARG_UNREADABLE, op);
	if (depth || !COOKIE_RUNTIME(cookie))
		caller = who_called(in.stack.return_address, t, task);
	if (depth && caller < CALLER_UNNAMED && frame_at(t, depth - 1)->sp == sp)
		depth = drop_stale(t, sp + 1);
	flags = judge(t, cookie, sp, depth, caller, &op);
	if (!flags && is_doubtful(t, cookie, depth, caller))
		count_loss(LOSS_CALLER_UNKNOWN, op);
	t->called = true;
	if ((flags & FLAG_INNER) && !(flags & FLAG_CALLER) && !all_layers) {
		if (!tells_more(COOKIE_SHAPE(cookie))) {
			count_trap(task->tgid, COOKIE_OP(cookie), false);
			return 1;
		}
		flags |= FLAG_QUIET;
	}
	/* The runtime that is built into another library asks for functions' handles at every launch. */
	if (rare && !all_layers && asks_again(cookie)) {
		if (is_named(&in, t, cookie, task->tgid)) {
			count_trap(task->tgid, COOKIE_OP(cookie), false);
			return 1;
		}
		flags |= FLAG_QUIET;
	}
	if (!rare && sampled && !depth && !flags && only_counted(t, &in, cookie, op)) {
		count_trap(task->tgid, COOKIE_OP(cookie), false);
		return 1;
	}
	if (!(flags & (FLAG_INNER | FLAG_QUIET)))
		end_burst(t, task->tgid, task->pid);
	if (depth >= MAX_DEPTH) {
		if (!(flags & FLAG_QUIET))
			count_loss(LOSS_TOO_DEEP, op);
		return 1;
	}
	/* A thread watched since its birth that never chose a device uses device 0, CUDA's rule. */
	if (!t->chosen && t->device == DEVICE_UNKNOWN && t->born_ns > ready_ns &&
	    (COOKIE_RUNTIME(cookie) || caller == CALLER_RUNTIME))
		t->device = 0;
	f = frame_at(t, depth);
	outer = depth ? frame_at(t, depth - 1) : NULL;
	f->sp = sp;
	f->cookie = cookie;
	f->op = op;
	f->flags = flags;
	f->arg0 = 0;
	f->arg1 = 0;
	f->stream = 0;
	f->caller = in.stack.return_address;
	f->more = 0;
	if (rare)
		read_rare_at_entry(&in, t, f, task->tgid);
	else
		read_at_entry(&in, f, outer, task->tgid);
	count_trap(task->tgid, COOKIE_OP(cookie), true);
	t->depth = depth + 1;
	f->start_ns = bpf_ktime_get_ns();
	return 0;
}

/* Asks again who made a call, where that could not be told when it began. */
static __always_inline void settle_caller(struct thread *t, struct frame *f, struct task_struct *task)
{
	enum caller caller = who_called(f->caller, t, task);
	__u32 op = f->op;

	if (caller == CALLER_UNKNOWN)
		return;
	f->flags = (f->flags & ~FLAG_CALLER) | judge(t, f->cookie, f->sp, 0, caller, &op);
	f->op = op;
	if ((f->flags & FLAG_INNER) && !all_layers)
		f->flags |= FLAG_QUIET;
}

static __always_inline int leave(struct pt_regs *ctx, const bool rare)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u64 sp = PT_REGS_SP(ctx) - SP_DELTA_AT_RETURN;
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);
	__s32 ret = (__s32)PT_REGS_RC(ctx);
	struct frame *f;
	__u64 stack = 0;
	__u32 depth;

	if (!t || !t->depth)
		return 0;
	/* Everything below this call on the stack is gone; what is left on top is this call, or one that
	 * is still open (the return of a call that was not followed). */
	depth = t->depth;
	if (frame_at(t, depth - 1)->sp < sp)
		depth = drop_stale(t, sp);
	if (!depth)
		return 0;
	f = frame_at(t, depth - 1);
	if (f->sp != sp)
		return 0;
	t->depth = depth - 1;
	if (rare)
		read_rare_at_return(t, f, task, ret);
	else
		read_at_return(t, f, depth > 1 ? frame_at(t, depth - 2) : NULL, task->tgid, ret != 0);
	if (depth == 1 && (f->flags & FLAG_CALLER))
		settle_caller(t, f, task);
	if (f->flags & FLAG_QUIET)
		return 0;
	if (!(f->flags & FLAG_INNER))
		stack = stack_of_call(&t->python, task, end_ns);
	if (depth == 1)
		begin_burst(t, f, end_ns, stack, ret);
	if (rare && COOKIE_SHAPE(f->cookie) == TRANSFER)
		emit_transfer(f, end_ns, task->tgid, task->pid, ret, t->device, 0, stack);
	else
		emit(f, end_ns, task->tgid, task->pid, ret, t->device, 0, stack);
	time_trap(COOKIE_OP(f->cookie), end_ns);
	return 0;
}

/* Reports a thread's open calls as unfinished, the outermost first. */
static __always_inline void emit_unfinished(struct thread *t, __u32 tgid, __u32 tid)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 depth = t->depth;

	end_burst(t, tgid, tid);
	for (__u32 i = 0; i < MAX_DEPTH; i++) {
		struct frame *f = frame_at(t, i);
		__u32 shape = COOKIE_SHAPE(f->cookie);

		if (i >= depth)
			break;
		if ((f->flags & FLAG_QUIET) || is_gone(f))
			continue;
		/* The second argument still says where a result was to be written, not what it is. */
		if (!(f->flags & FLAG_ARG1))
			f->arg1 = 0;
		if (shape == ALLOC_PITCH)
			f->stream = 0;
		if (shape == TRANSFER)
			emit_transfer(f, now, tgid, tid, 0, t->device, FLAG_UNFINISHED, 0);
		else
			emit(f, now, tgid, tid, 0, t->device, FLAG_UNFINISHED, 0);
	}
	t->depth = 0;
}
