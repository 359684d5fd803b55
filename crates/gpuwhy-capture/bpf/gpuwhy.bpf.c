// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* gpuwhy's programs in the kernel. The parts:
 *   kernel.h    the kernel types read        arch_*.h   where an architecture keeps arguments
 *   cookie.h    how a function is read       state.h    maps, loss counters, the ring's record
 *   decode.h    reading arguments            calls.h    entering and leaving a call
 * Everything is inlined into the few programs below: three flavours of the same probe, for kernels from
 * 6.13 (session), 6.6 (multi) and 5.15 (plain), and the life of processes. */
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
#include "decode.h"
#include "calls.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("uprobe.session")
int session(struct pt_regs *ctx)
{
	return bpf_session_is_return() ? leave(ctx) : enter(ctx);
}

SEC("uprobe.multi")
int multi_enter(struct pt_regs *ctx)
{
	enter(ctx);
	return 0;
}

SEC("uretprobe.multi")
int multi_leave(struct pt_regs *ctx)
{
	return leave(ctx);
}

SEC("uprobe")
int plain_enter(struct pt_regs *ctx)
{
	enter(ctx);
	return 0;
}

SEC("uretprobe")
int plain_leave(struct pt_regs *ctx)
{
	return leave(ctx);
}

/* A target's children are targets. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid, one = 1, parent_tgid = parent->tgid;

	if (all_processes || tgid == parent_tgid || !bpf_map_lookup_elem(&targets, &parent_tgid))
		return 0;
	if (bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY))
		count_loss(LOSS_MAP_FULL, NO_OP);
	return 0;
}

/* A new program in an old process: nothing known of its threads holds any more. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct thread *t;

	if (!is_target(task->tgid))
		return 0;
	t = bpf_task_storage_get(&threads, task, 0, all_processes ? 0 : BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t)
		return 0;
	__builtin_memset(t->caller, 0, sizeof(t->caller));
	t->depth = 0;
	t->context_depth = 0;
	t->chosen = false;
	t->device = DEVICE_UNKNOWN;
	t->born_ns = bpf_ktime_get_ns();
	emit_life(OP_EXEC, task, t->born_ns);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct thread *t = bpf_task_storage_get(&threads, task, 0, 0);
	__u32 tgid = task->tgid;

	if (t && t->depth)
		emit_unfinished(t, tgid, task->pid);
	/* A thread's exit is not its process's: only the last one's is. */
	if (task->signal->live.counter > 0)
		return 0;
	if (!t && (all_processes || !bpf_map_lookup_elem(&targets, &tgid)))
		return 0;
	if (!all_processes)
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

	if (!task)
		return 0;
	t = bpf_task_storage_get(&threads, task, 0, 0);
	if (t && t->depth)
		emit_unfinished(t, task->tgid, task->pid);
	return 0;
}
