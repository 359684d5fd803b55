// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* gpuwhy's eBPF programs. The headers:
 *   kernel.h    the kernel types read        arch_*.h   where an architecture keeps arguments
 *   cookie.h    how a function is read       state.h    maps, loss counters, the ring's record
 *   decode.h    reading arguments            calls.h    entering and leaving a call
 *   rare.h      communicators, names, graphs burst.h    calls that are only counted
 *   torch.h     PyTorch's allocator         traps.h    costs of probes
 *   watched.h   state of threads             waits.h    what a thread waits for
 *   sched.h     running, ready, blocked      host.h     memory and I/O
 *   python.h    CPython's frames             stacks.h   when they are read, and their records
 *   programs_host.h  the programs on the kernel's tracepoints
 * Everything is inlined into few programs: below, three flavours of the same probe, for kernels from 6.13 (session),
 * 6.6 (multi) and 5.15 (plain), and the life of processes. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#if defined(__TARGET_ARCH_x86)
#include "arch_x86.h"
#elif defined(__TARGET_ARCH_arm64)
#include "arch_arm64.h"
#else
#error "no arch_*.h for this architecture"
#endif

#include "cookie.h"
#include "state.h"
#include "traps.h"
#include "decode.h"
#include "rare.h"
#include "stacks.h"
#include "watched.h"
#include "waits.h"
#include "sched.h"
#include "burst.h"
#include "calls.h"
#include "torch.h"
#include "host.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int session(struct pt_regs *ctx)
{
	return bpf_session_is_return() ? leave(ctx, false) : enter(ctx, false);
}

SEC("uprobe.session")
int session_rare(struct pt_regs *ctx)
{
	return bpf_session_is_return() ? leave(ctx, true) : enter(ctx, true);
}

SEC("uprobe.multi")
int multi_enter(struct pt_regs *ctx)
{
	enter(ctx, false);
	return 0;
}

SEC("uretprobe.multi")
int multi_leave(struct pt_regs *ctx)
{
	return leave(ctx, false);
}

SEC("uprobe.multi")
int multi_enter_rare(struct pt_regs *ctx)
{
	enter(ctx, true);
	return 0;
}

SEC("uretprobe.multi")
int multi_leave_rare(struct pt_regs *ctx)
{
	return leave(ctx, true);
}

SEC("uprobe")
int plain_enter(struct pt_regs *ctx)
{
	enter(ctx, false);
	return 0;
}

SEC("uretprobe")
int plain_leave(struct pt_regs *ctx)
{
	return leave(ctx, false);
}

SEC("uprobe")
int plain_enter_rare(struct pt_regs *ctx)
{
	enter(ctx, true);
	return 0;
}

SEC("uretprobe")
int plain_leave_rare(struct pt_regs *ctx)
{
	return leave(ctx, true);
}

SEC("uprobe.multi")
int multi_torch(struct pt_regs *ctx)
{
	return tensor_reported(ctx);
}

SEC("uprobe")
int plain_torch(struct pt_regs *ctx)
{
	return tensor_reported(ctx);
}

/* A target's children are targets, and its threads are watched from their start. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid, one = 1, parent_tgid = parent->tgid;
	bool is_thread = tgid == parent_tgid, follow;
	struct watched *w;
	__u64 now;

	/* gpuwhy may be a descendant of what it traces; what it starts it marks itself. */
	if (parent_tgid == own_tgid)
		return 0;
	if (stacks && !is_thread)
		inherit_python(parent_tgid, tgid);
	follow = bpf_map_lookup_elem(&targets, &parent_tgid);
	if (!all_processes && !is_thread && follow && bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY))
		count_loss(LOSS_MAP_FULL, NO_OP);
	if (!host || host_end_ns || !(follow || watched_of(parent)))
		return 0;
	now = bpf_ktime_get_ns();
	w = watch(child, now);
	if (w)
		w->out_ns = now;
	if (!is_thread) {
		tell(OP_PROCESS_FORK, now, now, parent_tgid, parent->pid, tgid, 0, 0);
		emit_life(OP_FORK, child, now);
	}
	return 0;
}

/* exec: everything known about the threads is invalid. The thread that called exec continues with the id of its
 * process. */
static __always_inline void watched_execs(struct task_struct *task, __u64 now)
{
	struct watched *w = watched_of(task);

	if (!w || host_end_ns)
		return;
	tell(OP_PROCESS_EXEC, now, now, task->tgid, task->pid, 0, 0, 0);
	w->python.tstate = 0;
	if (w->tid == task->pid)
		return;
	if (w->state == STATE_RUNNING)
		w->on_cpu_ns += now - w->on_since_ns;
	w->on_since_ns = now;
	renumber(w, task, now);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 tgid = task->tgid;
	struct thread *t;

	if (!is_target(task->tgid))
		return 0;
	if (stacks)
		bpf_map_delete_elem(&py_processes, &tgid);
	if (host)
		watched_execs(task, now);
	t = bpf_task_storage_get(&threads, task, 0, all_processes ? 0 : BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t)
		return 0;
	end_burst(t, tgid, task->pid);
	__builtin_memset(t->caller, 0, sizeof(t->caller));
	t->depth = 0;
	t->context_depth = 0;
	t->chosen = false;
	t->device = DEVICE_UNKNOWN;
	t->burst.cookie = 0;
	t->born_ns = now;
	t->python.tstate = 0;
	emit_life(OP_EXEC, task, now);
	return 0;
}

#define SIGNAL_GROUP_EXIT 4

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);
	struct signal_struct *signal = task->signal;
	__u32 tgid = task->tgid, code;
	struct watched *w = NULL;
	__u64 now;

	if (t && (t->depth || t->burst.counted))
		emit_unfinished(t, tgid, task->pid);
	if (host && !host_end_ns)
		w = watched_of(task);
	now = bpf_ktime_get_ns();
	if (w && !sched) /* else its last switch tells */
		emit_sums(w, task, now, SUMS_ENDED, task->pid);
	/* A thread's exit is not its process's: only the last one's is. */
	if (signal->live.counter > 0)
		return 0;
	if (stacks)
		bpf_map_delete_elem(&py_processes, &tgid);
	if (w) {
		code = signal->flags & SIGNAL_GROUP_EXIT ? signal->group_exit_code : task->exit_code;
		tell(OP_PROCESS_EXIT, now, now, tgid, task->pid, code >> 8 & 0xff, code & 0x7f, 0);
	}
	if (!t && !w && (all_processes || !bpf_map_lookup_elem(&targets, &tgid)))
		return 0;
	bpf_map_delete_elem(&targets, &tgid);
	emit_life(OP_EXIT, task, 0);
	return 0;
}

/* Run once, when tracing ends: what is still open. */
SEC("iter/task")
int still_open(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread *t;

	if (!task || task->tgid == own_tgid)
		return 0;
	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t && (t->depth || t->burst.counted))
		emit_unfinished(t, task->tgid, task->pid);
	return 0;
}

#include "programs_host.h"
