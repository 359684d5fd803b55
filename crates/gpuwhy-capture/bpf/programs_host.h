/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The programs on the kernel's own tracepoints. Those marked `?` are loaded where the kernel has the tracepoint. */
#pragma once

/* Its arguments differ between kernels, and are therefore read one by one: see switch_shape. */
SEC("?tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	if (switch_shape == 2)
		return switched((struct task_struct *)ctx[1], (struct task_struct *)ctx[2], ctx[0], ctx[3]);
	if (switch_shape == 1)
		return switched((struct task_struct *)ctx[2], (struct task_struct *)ctx[3], ctx[0], ctx[1]);
	return switched((struct task_struct *)ctx[1], (struct task_struct *)ctx[2], ctx[0],
			state_of((struct task_struct *)ctx[1]));
}

SEC("?tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	return waking(task);
}

SEC("?tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return woken(task);
}

SEC("?tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	return woken_first(task);
}

SEC("?tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to)
{
	return moved(task, to);
}

/* Which interrupts a CPU is handling: a wake-up there does not come from the current thread. */
SEC("?tp_btf/softirq_entry")
int BPF_PROG(on_softirq, unsigned int which)
{
	struct cpu_state *c = cpu_at(bpf_get_smp_processor_id());

	c->softirq = which;
	c->interrupts |= IN_SOFTIRQ;
	return 0;
}

SEC("?tp_btf/softirq_exit")
int BPF_PROG(on_softirq_end, unsigned int which)
{
	cpu_at(bpf_get_smp_processor_id())->interrupts &= ~IN_SOFTIRQ;
	return 0;
}

SEC("?tp_btf/irq_handler_entry")
int BPF_PROG(on_irq, int irq, struct irqaction *action)
{
	cpu_at(bpf_get_smp_processor_id())->interrupts |= IN_IRQ;
	return 0;
}

SEC("?tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_end, int irq, struct irqaction *action, int ret)
{
	cpu_at(bpf_get_smp_processor_id())->interrupts &= ~IN_IRQ;
	return 0;
}

SEC("?tp_btf/hrtimer_expire_entry")
int BPF_PROG(on_timer, struct hrtimer *timer)
{
	cpu_at(bpf_get_smp_processor_id())->interrupts |= IN_TIMER;
	return 0;
}

SEC("?tp_btf/hrtimer_expire_exit")
int BPF_PROG(on_timer_end, struct hrtimer *timer)
{
	cpu_at(bpf_get_smp_processor_id())->interrupts &= ~IN_TIMER;
	return 0;
}

SEC("?tp_btf/block_io_start")
int BPF_PROG(on_block_start, struct request *request)
{
	return request_begins(request);
}

/* This tracepoint does not exist before 6.5; mostly the thread that makes a request also issues it. */
SEC("?tp_btf/block_rq_issue")
int BPF_PROG(on_block_issue, struct request *request)
{
	return request_begins(request);
}

/* The error is a byte before 5.16 and an int from then on; it is passed on unchanged. */
SEC("?tp_btf/block_rq_complete")
int on_block_end(__u64 *ctx)
{
	return request_ends((struct request *)ctx[0], (__s32)ctx[1], (__u32)ctx[2]);
}

SEC("?tp_btf/contention_begin")
int BPF_PROG(on_contention, void *lock, unsigned int flags)
{
	return contention_begins((__u64)lock, flags);
}

SEC("?tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock, int ret)
{
	return contention_ends((__u64)lock);
}

SEC("?tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_reclaim)
{
	return reclaim_begins();
}

SEC("?tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_reclaim_end, unsigned long pages)
{
	return reclaim_ends(pages);
}

/* The same on behalf of a cgroup's limit. */
SEC("?tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(on_cgroup_reclaim)
{
	return reclaim_begins();
}

SEC("?tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(on_cgroup_reclaim_end, unsigned long pages)
{
	return reclaim_ends(pages);
}

SEC("?tp_btf/mm_compaction_begin")
int BPF_PROG(on_compaction)
{
	return compaction_begins();
}

SEC("?tp_btf/mm_compaction_end")
int BPF_PROG(on_compaction_end)
{
	return compaction_ends();
}

SEC("?tp_btf/mm_page_alloc")
int BPF_PROG(on_pages, struct page *page, unsigned int order)
{
	return pages_given(page, order);
}

SEC("?tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, const struct sock *sock)
{
	return retransmitted(sock);
}

/* Told of every victim: it may be what the job's processes were talking to. Before 6.8 only its number is known. */
SEC("?tp_btf/mark_victim")
int on_oom_kill(__u64 *ctx)
{
	__u64 now = bpf_ktime_get_ns(), resident = 0;
	struct task_struct *victim;
	__u32 tgid;

	if (oom_victim_is_task) {
		victim = (struct task_struct *)ctx[0];
		tgid = victim->tgid;
		resident = resident_pages(BPF_CORE_READ(victim, mm)) << page_shift;
	} else {
		tgid = (__u32)ctx[0];
	}
	tell(OP_OOM_KILL, now, now, tgid, tgid, resident, 0, 0);
	return 0;
}

/* On a software event of every CPU that counts page faults which needed the disk. */
SEC("?perf_event")
int on_major_fault(struct bpf_perf_event_data *ctx)
{
	return major_fault_ends(ctx->addr);
}

/* On a timer of every CPU: which thread runs there, and at which line. */
SEC("?perf_event")
int on_sample(struct bpf_perf_event_data *ctx)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);
	struct record *r;
	__u64 now, stack;

	if (!w)
		return 0;
	now = bpf_ktime_get_ns();
	stack = stack_of_moment(&w->python, current, now);
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_loss(LOSS_RING_FULL, kernel_ops + OP_CPU_SAMPLE);
		return 0;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->start_ns = now;
	r->duration_ns = ctx->sample_period; /* what it stands for */
	r->tgid = current->tgid;
	r->tid = current->pid;
	r->op = kernel_ops + OP_CPU_SAMPLE;
	r->device = DEVICE_UNKNOWN;
	r->stack = stack;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Run after targets are chosen: starts to watch their existing threads and those of their children. Run repeatedly until it
 * finds nothing new, because a child may be listed before its parent. */
SEC("?iter/task")
int adopt_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 tgid, parent, one = 1;

	if (!task)
		return 0;
	tgid = task->tgid;
	if (!bpf_map_lookup_elem(&targets, &tgid)) {
		parent = task->real_parent->tgid;
		if (tgid == own_tgid || !bpf_map_lookup_elem(&targets, &parent))
			return 0;
		if (bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY)) {
			count_loss(LOSS_MAP_FULL, NO_OP);
			return 0;
		}
		adopted++;
	}
	adopt(task, bpf_ktime_get_ns());
	return 0;
}

/* Run every second, and once more when tracing has ended: each thread's sums, and then what is still off. */
SEC("?iter/task")
int report_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct watched *w;
	struct cpu_state *c;
	__u64 now;
	__u32 cpu;

	if (!task)
		return 0;
	w = watched_of(task);
	if (!w && !host_end_ns && watched_of(task->group_leader)) {
		/* The kernel's own helpers of a process (io_uring's workers) are made without a fork. */
		adopt(task, bpf_ktime_get_ns());
		return 0;
	}
	if (!w) {
		/* Another thread that holds a CPU a traced thread waits for, until the end. */
		cpu = cpu_of(task);
		c = cpu_at(cpu);
		if (host_end_ns && task->on_cpu && task->pid && c->wanted && c->since_ns && c->since_ns < host_end_ns)
			emit_run(task, c->since_ns, host_end_ns, cpu);
		return 0;
	}
	now = host_end_ns ? host_end_ns : bpf_ktime_get_ns();
	if ((sched && w->state == STATE_UNKNOWN) || w->state == STATE_ENDED || now < w->since_ns)
		return 0;
	if (host_end_ns && w->state != STATE_RUNNING)
		w->switches++; /* the one it does not come back from */
	emit_sums(w, task, now, 0, task->pid);
	if (!host_end_ns || !sched)
		return 0;
	if (w->state == STATE_BLOCKED)
		w->woken_by = BY_NOBODY; /* who is noted there came before the wait */
	if (w->state != STATE_RUNNING && now >= w->out_ns)
		emit_off(w, task, now, w->cpu, w->state == STATE_READY && now > w->ready_ns ? now - w->ready_ns : 0, NULL,
			 0, OFF_UNFINISHED);
	else if (w->state == STATE_RUNNING && cpu_at(cpu_of(task))->wanted && now > w->on_since_ns)
		emit_run(task, w->on_since_ns, now, cpu_of(task));
	return 0;
}
