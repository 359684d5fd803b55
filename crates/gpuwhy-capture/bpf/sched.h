/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Every traced thread's time, state by state. A thread is running, ready (could run, has no CPU) or blocked; the
 * scheduler's tracepoints move it from one to the next, under the lock of its run queue, so that nothing is
 * missed or counted twice. */
#pragma once

#define TASK_INTERRUPTIBLE 0x1
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_STOPPED 0x4
#define TASK_TRACED 0x8
#define TASK_DEAD 0x80
#define PF_KTHREAD 0x00200000

#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3
#define TIMER_SOFTIRQ 1
#define BLOCK_SOFTIRQ 4
#define IRQ_POLL_SOFTIRQ 5
#define HRTIMER_SOFTIRQ 8

static __always_inline __u32 cpu_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	return BPF_CORE_READ((struct task_struct___old *)task, cpu);
}

static __always_inline __u32 state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ((struct task_struct___old *)task, state);
}

static __always_inline bool is_throttled(struct task_struct *task)
{
	if (bpf_core_field_exists(task->throttled))
		return task->throttled;
	if (bpf_core_field_exists(task->se.cfs_rq) && bpf_core_field_exists(struct cfs_rq, throttle_count))
		return BPF_CORE_READ(task, se.cfs_rq, throttle_count) > 0;
	return false;
}

/* How long a thread that is about to run was ready, as the scheduler has it. */
static __always_inline __u64 queued_for(struct task_struct *task)
{
	__u64 since, now;

	if (!bpf_core_field_exists(task->sched_info.last_queued) || !bpf_core_field_exists(task->se.cfs_rq) ||
	    !bpf_core_field_exists(struct cfs_rq, rq))
		return 0;
	since = task->sched_info.last_queued;
	now = BPF_CORE_READ(task, se.cfs_rq, rq, clock);
	return since && since < now ? now - since : 0;
}

static __always_inline void note_figures(struct watched *w, struct task_struct *task)
{
	w->exec_ns = task->se.sum_exec_runtime;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		w->delay_ns = task->sched_info.run_delay;
}

static __always_inline void copy_comm(char *to, struct task_struct *task)
{
	__builtin_memcpy(to, task->comm, 16);
}

/* Threads often have names that do not say which program they belong to ("opt cgu.07" of rustc). */
static __always_inline void copy_process_comm(char *to, struct task_struct *task)
{
	__builtin_memcpy(to, task->group_leader->comm, 16);
}

static __always_inline void emit_sums(struct watched *w, struct task_struct *task, __u64 now, __u32 flags, __u32 tid)
{
	struct sums_record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	/* A time that began after `now` (a switch on another CPU since then) is nothing yet. */
	__u64 on = w->state == STATE_RUNNING && now > w->on_since_ns ? now - w->on_since_ns : 0;
	__u64 off = w->state == STATE_BLOCKED && now > w->out_ns ? now - w->out_ns : 0;
	__u64 ready = w->state == STATE_READY && now > w->ready_ns ? now - w->ready_ns : 0;

	if (!r) {
		count_loss(LOSS_EVIDENCE_LOST, kernel_ops + OP_SCHED_SWITCH);
		return;
	}
	if (w->state == STATE_READY && w->ready_ns > w->out_ns)
		off = w->ready_ns - w->out_ns;
	r->born_ns = w->born_ns;
	r->since_ns = w->since_ns;
	r->at_ns = now;
	r->on_cpu_ns = w->on_cpu_ns + on;
	r->ready_ns = w->ready_sum_ns + ready;
	r->blocked_ns = w->blocked_ns + off;
	r->throttled_ns = w->throttled_ns + (w->reason == THROTTLED ? ready : 0);
	r->switches = w->switches;
	r->page_allocations = w->page_allocations;
	r->page_bytes = w->page_bytes;
	copy_comm(r->comm, task);
	r->tgid = task->tgid;
	r->tid = tid;
	r->flags = flags | (sched ? 0 : SUMS_NO_TIMES);
	r->unused = 0;
	r->unused2 = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline void emit_run(struct task_struct *task, __u64 since, __u64 now, __u32 cpu)
{
	struct run_record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_loss(LOSS_EVIDENCE_LOST, kernel_ops + OP_SCHED_SWITCH);
		return;
	}
	r->start_ns = since;
	r->duration_ns = now - since;
	copy_process_comm(r->comm, task);
	r->tgid = task->tgid;
	r->tid = task->pid;
	r->cpu = cpu;
	r->flags = task->flags & PF_KTHREAD ? RUN_KERNEL : 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* Sends a time off CPU, with who had that CPU before, and since when, if that is to be told. */
static __always_inline bool emit_off(struct watched *w, struct task_struct *task, __u64 now, __u32 cpu, __u64 ready,
				     struct task_struct *holder, __u64 holder_since, __u8 more_flags)
{
	struct off_record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		count_loss(LOSS_RING_FULL, kernel_ops + OP_SCHED_SWITCH);
		return false;
	}
	r->start_ns = w->out_ns;
	r->duration_ns = now - w->out_ns;
	r->ready_ns = ready;
	r->object = w->object;
	r->timeout_ns = w->timeout_ns;
	r->stack = w->stack;
	r->tgid = task->tgid;
	r->tid = task->pid;
	r->waker_tgid = w->waker_tgid;
	r->waker_tid = w->waker_tid;
	r->file = w->file;
	r->left_cpu = w->left_cpu;
	r->cpu = cpu;
	r->syscall = w->syscall;
	r->reason = w->reason;
	r->wait = w->wait;
	/* A device's interrupt that ends a wait for I/O is the disk's. */
	r->woken_by = w->woken_by == BY_INTERRUPT && (w->flags & OFF_IO_WAIT) ? BY_DISK : w->woken_by;
	r->flags = w->flags | more_flags;
	r->unused = 0;
	if (holder) {
		r->flags |= OFF_HOLDER | (holder->flags & PF_KTHREAD ? OFF_KERNEL_HOLDER : 0);
		r->holder_since_ns = holder_since;
		r->holder_tgid = holder->tgid;
		r->holder_tid = holder->pid;
		copy_process_comm(r->holder_comm, holder);
	} else {
		r->holder_since_ns = 0;
		r->holder_tgid = 0;
		r->holder_tid = 0;
		__builtin_memset(r->holder_comm, 0, sizeof(r->holder_comm));
	}
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return true;
}

static __always_inline void begin_waiting_for(struct watched *w, __u32 cpu, __u64 now)
{
	struct cpu_state *c = cpu_at(cpu);

	w->cpu = cpu;
	w->piece_ns = now;
	w->counted = true;
	__sync_fetch_and_add(&c->waiting, 1);
	c->wanted = 1;
	if (!c->since_ns)
		c->since_ns = now;
}

static __always_inline void end_waiting(struct watched *w)
{
	if (!w->counted)
		return;
	w->counted = false;
	__sync_fetch_and_add(&cpu_at(w->cpu)->waiting, -1);
}

static __always_inline void forget_wait(struct watched *w)
{
	w->object = 0;
	w->timeout_ns = 0;
	w->file = 0;
	w->waker_tgid = 0;
	w->waker_tid = 0;
	w->woken_by = BY_NOBODY;
	w->flags = 0;
	w->wait = WAIT_NOTHING;
}

static __always_inline __u8 reason_of_block(__u32 state)
{
	if (state & (TASK_STOPPED | TASK_TRACED))
		return STOPPED;
	return state & TASK_UNINTERRUPTIBLE ? UNINTERRUPTIBLE : ASLEEP;
}

/* A traced thread leaves the CPU. */
static __always_inline void leave_cpu(struct watched *w, struct task_struct *task, __u64 now, __u32 cpu, bool preempt,
				      __u32 state)
{
	const struct pt_regs *regs;

	if (w->state == STATE_RUNNING)
		w->on_cpu_ns += now - w->on_since_ns;
	else if (w->state == STATE_UNKNOWN) /* it ran since it was adopted */
		w->on_cpu_ns += now - w->since_ns;
	w->out_ns = now;
	w->left_cpu = cpu;
	note_figures(w, task);
	if (state & TASK_DEAD) {
		w->state = STATE_ENDED;
		emit_sums(w, task, now, SUMS_ENDED, task->pid);
		return;
	}
	regs = (const struct pt_regs *)bpf_task_pt_regs(task);
	if (preempt || !state) {
		forget_wait(w);
		w->ready_ns = now;
		w->state = STATE_READY;
		w->reason = note_syscall(w, regs) == CALL_YIELD && !preempt ? YIELDED : PREEMPTED;
		if (is_throttled(task)) {
			w->reason = THROTTLED;
			w->cpu = cpu;
		} else {
			begin_waiting_for(w, cpu, now);
		}
	} else {
		/* The waker may have come first: it is kept until the next wait begins. */
		w->object = 0;
		w->timeout_ns = 0;
		w->file = 0;
		w->flags = 0;
		w->state = STATE_BLOCKED;
		w->reason = reason_of_block(state);
		describe_wait(w, task, regs, true, now);
	}
	/* The longest part comes last: until then a report would find the sums ahead of the state. */
	w->stack = stack_of_moment(&w->python, task, now);
}

/* The sums so far are those of the number the thread had until `at`. */
static __always_inline void renumber(struct watched *w, struct task_struct *task, __u64 at)
{
	__u8 state = w->state;

	w->state = STATE_UNKNOWN; /* whatever is under way goes to the new number */
	emit_sums(w, task, at, SUMS_ENDED, w->tid);
	w->state = state;
	w->tid = task->pid;
	w->since_ns = at;
	w->on_cpu_ns = 0;
	w->ready_sum_ns = 0;
	w->blocked_ns = 0;
	w->throttled_ns = 0;
	w->switches = 0;
	w->page_allocations = 0;
	w->page_bytes = 0;
}

/* A traced thread gets a CPU. `holder`, if any, had it since `since` while somebody traced waited. Returns whether
 * that was told. */
static __always_inline bool take_cpu(struct watched *w, struct task_struct *task, __u64 now, __u32 cpu,
				     struct task_struct *holder, __u64 since)
{
	bool told = false;
	__u64 ready;

	end_waiting(w);
	if (w->tid != task->pid)
		renumber(w, task, w->state == STATE_RUNNING ? w->on_since_ns : w->out_ns);
	if (w->state == STATE_UNKNOWN) { /* adopted while it was off, and not understood then */
		w->blocked_ns += now - w->since_ns;
	} else if (w->state == STATE_RUNNING) { /* its leaving was not told: see found_running */
		ready = task->se.sum_exec_runtime - w->exec_ns;
		if (ready > now - w->on_since_ns)
			ready = now - w->on_since_ns;
		w->on_cpu_ns += ready;
		w->blocked_ns += now - w->on_since_ns - ready;
	} else {
		/* No wake-up was seen: it came before the thread was adopted, or from where nothing is seen. */
		if (w->state != STATE_READY) {
			ready = queued_for(task);
			w->ready_ns = ready < now - w->out_ns ? now - ready : now;
		}
		ready = now - w->ready_ns;
		w->blocked_ns += w->ready_ns - w->out_ns;
		w->ready_sum_ns += ready;
		if (w->reason == THROTTLED)
			w->throttled_ns += ready;
		w->switches++;
		told = emit_off(w, task, now, cpu, ready, holder, since, 0);
	}
	w->state = STATE_RUNNING;
	w->on_since_ns = now;
	forget_wait(w);
	return told;
}

/* A thread leaves a CPU that it was not seen to get. Some machines do not let everybody be seen: a switch away from
 * a task that is hidden is told to nobody. When it got the CPU follows from how long the scheduler says it ran. */
static __always_inline void found_running(struct watched *w, struct task_struct *task, __u64 now, __u32 cpu)
{
	__u64 from = w->state == STATE_READY ? w->ready_ns : w->out_ns;
	__u64 ran = task->se.sum_exec_runtime - w->exec_ns, ready = 0, at;

	at = ran < now - from ? now - ran : from;
	if (w->state == STATE_BLOCKED) {
		if (bpf_core_field_exists(task->sched_info.run_delay))
			ready = task->sched_info.run_delay - w->delay_ns;
		w->ready_ns = ready < at - w->out_ns ? at - ready : w->out_ns;
		w->state = STATE_READY;
		begin_waiting_for(w, cpu, w->ready_ns);
	}
	take_cpu(w, task, at, cpu, NULL, 0);
}

static __always_inline int switched(struct task_struct *prev, struct task_struct *next, bool preempt, __u32 state)
{
	__u32 cpu = bpf_get_smp_processor_id(), wanted;
	struct cpu_state *c = cpu_at(cpu);
	struct task_struct *holder;
	struct watched *w, *p;
	__u64 now, since;

	c->interrupts = 0; /* no switch happens inside one */
	/* Nobody's business, which is most switches of a machine: not even the clock is read. If somebody traced comes to
	 * wait here, the run counts from then. */
	if (!prev->bpf_storage && !next->bpf_storage && !c->wanted && !c->waiting) {
		c->since_ns = 0;
		return 0;
	}
	now = bpf_ktime_get_ns();
	since = c->since_ns;
	c->since_ns = now;
	if (host_end_ns)
		return 0;
	wanted = c->wanted;
	c->wanted = 0;
	p = watched_of(prev);
	if (p) {
		if (p->state == STATE_READY || p->state == STATE_BLOCKED)
			found_running(p, prev, now, cpu);
		if (p->state == STATE_RUNNING)
			since = p->on_since_ns;
	}
	/* Whoever ran while a traced thread waited here is told of, in that thread's record if it is next. The idle task
	 * holds nobody back. */
	holder = wanted && since && prev->pid ? prev : NULL;
	w = watched_of(next);
	if (w && take_cpu(w, next, now, cpu, holder, since))
		holder = NULL;
	if (holder)
		emit_run(holder, since, now, cpu);
	if (p)
		leave_cpu(p, prev, now, cpu, preempt, state);
	if (c->waiting)
		c->wanted = 1;
	if (p || w) {
		count_entry(NO_OP);
		time_trap(NO_OP, now);
	}
	return 0;
}

static __always_inline __u8 in_what_interrupt(const struct cpu_state *c)
{
	if (!c->interrupts)
		return BY_THREAD;
	if (c->interrupts & IN_TIMER)
		return BY_TIMER;
	if (c->interrupts & IN_IRQ)
		return BY_INTERRUPT;
	switch (c->softirq) {
	case NET_TX_SOFTIRQ:
	case NET_RX_SOFTIRQ:
		return BY_NETWORK;
	case BLOCK_SOFTIRQ:
	case IRQ_POLL_SOFTIRQ:
		return BY_DISK;
	case TIMER_SOFTIRQ:
	case HRTIMER_SOFTIRQ:
		return BY_TIMER;
	}
	return BY_INTERRUPT;
}

/* Somebody wakes a traced thread: this runs in the waker's context, sched_wakeup may run elsewhere. It may come
 * before the thread has left its CPU. */
static __always_inline int waking(struct task_struct *task)
{
	struct watched *w = watched_of(task);
	struct task_struct *current;

	if (!w || host_end_ns)
		return 0;
	current = bpf_get_current_task_btf();
	w->waker_tgid = current->tgid;
	w->waker_tid = current->pid;
	w->woken_by = in_what_interrupt(cpu_at(bpf_get_smp_processor_id()));
	return 0;
}

/* It stands in the queue of a CPU now. */
static __always_inline void became_ready(struct watched *w, struct task_struct *task, __u64 now)
{
	w->state = STATE_READY;
	w->ready_ns = now;
	begin_waiting_for(w, cpu_of(task), now);
}

static __always_inline int woken(struct task_struct *task)
{
	struct watched *w = watched_of(task);

	/* One that runs, or is ready, was woken before it had really left. */
	if (w && w->state == STATE_BLOCKED && !host_end_ns)
		became_ready(w, task, bpf_ktime_get_ns());
	return 0;
}

static __always_inline int woken_first(struct task_struct *task)
{
	struct watched *w = watched_of(task);
	__u64 now;

	if (host_end_ns)
		return 0;
	now = bpf_ktime_get_ns();
	if (!w || w->state != STATE_UNKNOWN)
		return 0;
	w->reason = NEW;
	w->syscall = -1;
	became_ready(w, task, now);
	return 0;
}

/* A thread that waits for a CPU is moved to another's queue. */
static __always_inline int moved(struct task_struct *task, __u32 to)
{
	struct watched *w = watched_of(task);
	struct moved_record *r;
	__u64 now;

	if (!w || !w->counted || to == w->cpu || host_end_ns)
		return 0;
	now = bpf_ktime_get_ns();
	end_waiting(w);
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (r) {
		r->start_ns = w->piece_ns;
		r->duration_ns = now - w->piece_ns;
		r->tgid = task->tgid;
		r->tid = task->pid;
		r->cpu = w->cpu;
		r->unused = 0;
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	} else {
		count_loss(LOSS_EVIDENCE_LOST, kernel_ops + OP_SCHED_SWITCH);
	}
	begin_waiting_for(w, to, now);
	return 0;
}

/* Begins to watch a thread that exists already. Nothing is known of how long it has been where it is. The thread goes
 * on meanwhile: whatever its own switches say first stands. */
static __always_inline void adopt(struct task_struct *task, __u64 now)
{
	struct watched *w = watch(task, now);
	__u32 state;

	if (!w || w->state != STATE_UNKNOWN || w->out_ns)
		return;
	note_figures(w, task);
	if (task->on_cpu) {
		w->on_since_ns = now;
		w->state = STATE_RUNNING;
		return;
	}
	state = state_of(task);
	w->out_ns = now;
	w->left_cpu = w->cpu = cpu_of(task);
	w->ready_ns = now;
	w->piece_ns = now;
	if (state & TASK_DEAD)
		return;
	if (!state) {
		w->syscall = -1;
		if (is_throttled(task)) {
			w->reason = THROTTLED;
		} else {
			w->reason = PREEMPTED;
			begin_waiting_for(w, w->cpu, now);
		}
		w->state = STATE_READY;
		return;
	}
	w->reason = reason_of_block(state);
	describe_wait(w, task, (const struct pt_regs *)bpf_task_pt_regs(task), false, now);
	w->state = STATE_BLOCKED;
}
