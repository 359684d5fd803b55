/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Python stacks at the return of a call, at a switch and at a sample. A known call site costs a few reads and has a number.
 * A new one is walked immediately, with the names and line tables of new code, so that it is right even if the process ends
 * right after. */
#pragma once

#define PY_FUNCTION __noinline
#define read_user(to, size, from) bpf_probe_read_user(to, size, (void *)(from))
#include "python.h"

/* When to look again whether a thread, or a process, runs Python by now, ns: a new thread soon does. */
#define PY_FIRST_PAUSE_NS 20000
#define PY_LAST_PAUSE_NS 20000000

/* Ring records. The length of a stack record depends on its frames, so both are distinguished by their first word. */
#define STACK_RECORD 0x6b636174735f7970ULL /* "py_stack" */
#define CODE_RECORD 0x65646f635f797070ULL /* "ppy_code" */

struct stack_record {
	__u64 kind;
	__u64 key;
	__u32 tgid;
	__u32 tid;
	struct py_stack stack;
};

struct code_record {
	__u64 kind;
	__u32 tgid;
	__u32 version;
	struct py_code code;
};

/* Room to work in, and what to work on. */
struct py_room {
	__u64 process; /* tells a process from another that had its number before */
	__u32 most_codes; /* told of at a time */
	__u32 codes; /* told of this time; not in a register, see py_push */
	struct py_scratch scratch;
	struct stack_record stack;
	struct code_record code;
};

struct code_key {
	__u64 code;
	__u64 process;
	__u64 check;
};

/* With interrupts off, only so much is done at a time. */
#define MOST_CODES_AT_ONCE 16

#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000

const volatile bool stacks = true;

/* Processes that run Python, put here by gpuwhy, and for children by their fork. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct py_process);
} py_processes SEC(".maps");

/* For calls, which may be interrupted by anything: each thread has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct py_room);
} thread_rooms SEC(".maps");

/* For switches and samples, which run with interrupts off and so never meet each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct py_room);
} cpu_rooms SEC(".maps");

/* Call sites and code already reported to gpuwhy. Evicted ones are reported again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u8);
} known_sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct code_key);
	__type(value, __u8);
} known_codes SEC(".maps");

/* Number of reported call sites, and of samples of threads that ran no Python. */
__u64 stacks_found;
__u64 stacks_none;

/* Tells of a code object's names and lines. A function of its own, so that the verifier looks at it once. */
__noinline int tell_code(struct py_process *p, struct py_room *room, __u64 code, __u32 check, __u32 tgid)
{
	__u32 size;

	if (!p || !room)
		return 0;
	room->code.kind = CODE_RECORD;
	room->code.tgid = tgid;
	room->code.version = p->at.version;
	py_read_code(p, &room->scratch, code, &room->code.code);
	room->code.code.check = check; /* what its frames are known by */
	size = 16 + py_code_size(&room->code.code);
	if (size > sizeof(room->code))
		size = sizeof(room->code);
	return bpf_ringbuf_output(&ring, &room->code, size, BPF_RB_NO_WAKEUP) ? 0 : 1;
}

__noinline int walk_stack(struct py_process *p, struct py_room *room, __u64 tstate)
{
	if (!p || !room)
		return 0;
	py_walk(p, &room->scratch, tstate, &room->stack.stack);
	return room->stack.stack.count;
}

/* Walks a new call site and reports it, its code first. Returns whether gpuwhy knows it now; if not, it is walked again the
 * next time. */
__noinline int tell_stack(struct py_process *p, struct py_room *room, __u64 tstate, __u64 key, __u64 ids)
{
	__u32 tgid = ids >> 32, count, size;
	__u8 one = 1;

	if (!p || !room)
		return 0;
	walk_stack(p, room, tstate);
	if (room->stack.stack.status == PY_UNREADABLE)
		count_loss(LOSS_STACK_UNREADABLE, NO_OP);
	else if (room->stack.stack.status == PY_TRUNCATED)
		count_loss(LOSS_STACK_TRUNCATED, NO_OP);
	count = room->stack.stack.count;
	if (!count)
		return 0;
	*(volatile __u32 *)&room->codes = 0;
	for (__u32 i = 0; i < PY_MAX_FRAMES; i++) {
		struct code_key known = { .process = room->process };
		__u32 codes = *(volatile __u32 *)&room->codes;

		if (i >= count)
			break;
		known.code = room->stack.stack.frames[i].code;
		known.check = room->stack.stack.frames[i].check;
		if (bpf_map_lookup_elem(&known_codes, &known))
			continue;
		if (codes >= room->most_codes)
			continue; /* gpuwhy reads it from the process, if that still waits here */
		*(volatile __u32 *)&room->codes = codes + 1;
		if (!tell_code(p, room, known.code, known.check, tgid)) {
			count_loss(LOSS_EVIDENCE_LOST, NO_OP);
			return 0;
		}
		bpf_map_update_elem(&known_codes, &known, &one, BPF_ANY);
	}
	room->stack.kind = STACK_RECORD;
	room->stack.key = key;
	room->stack.tgid = tgid;
	room->stack.tid = (__u32)ids;
	size = sizeof(room->stack) - (PY_MAX_FRAMES - (count & (2 * PY_MAX_FRAMES - 1))) * sizeof(struct py_frame);
	if (size > sizeof(room->stack))
		size = sizeof(room->stack);
	if (bpf_ringbuf_output(&ring, &room->stack, size, BPF_RB_NO_WAKEUP)) {
		count_loss(LOSS_EVIDENCE_LOST, NO_OP);
		return 0;
	}
	bpf_map_update_elem(&known_sites, &key, &one, BPF_ANY);
	return 1;
}

__noinline __u64 find_state(struct py_process *p, struct py_room *room, __u64 thread_pointer, __u64 cached)
{
	if (!p || !room)
		return 0;
	return py_find_tstate(p, &room->scratch, thread_pointer, cached);
}

__noinline __u64 hash_site(struct py_process *p, struct py_room *room, __u64 thread_pointer, __u64 tstate)
{
	if (!p || !room)
		return 0;
	return py_site_hash(p, &room->scratch, thread_pointer, tstate);
}

static __always_inline void look_later(struct py_memory *m, __u64 now)
{
	m->pause_ns = m->pause_ns ? m->pause_ns * 2 : PY_FIRST_PAUSE_NS;
	if (m->pause_ns > PY_LAST_PAUSE_NS)
		m->pause_ns = PY_LAST_PAUSE_NS;
	m->retry_ns = now + m->pause_ns;
}

/* The number of the Python stack the current thread is in; 0 for none. */
static __always_inline __u64 stack_key(struct py_memory *m, struct py_room *room, struct py_process *p,
				       struct task_struct *task, __u64 now)
{
	__u64 thread_pointer = thread_pointer_of(task), hash = 0, key, ids;

	if (m->tstate)
		hash = hash_site(p, room, thread_pointer, m->tstate);
	if (!hash) {
		m->tstate = find_state(p, room, thread_pointer, 0);
		if (m->tstate)
			hash = hash_site(p, room, thread_pointer, m->tstate);
		if (!hash) {
			look_later(m, now);
			__sync_fetch_and_add(&stacks_none, 1);
			return 0;
		}
	}
	m->pause_ns = 0;
	ids = (__u64)task->tgid << 32 | (__u32)task->pid;
	room->process = py_mix(task->group_leader->start_time, task->tgid);
	key = py_mix(hash, room->process);
	if (bpf_map_lookup_elem(&known_sites, &key))
		return key;
	if (!tell_stack(p, room, m->tstate, key, ids))
		return 0;
	__sync_fetch_and_add(&stacks_found, 1);
	return key;
}

static __always_inline struct py_process *python_of(struct py_memory *m, struct task_struct *task, __u64 now)
{
	__u32 tgid = task->tgid;
	struct py_process *p;

	/* The kernel's own helpers of a process have its first thread's thread pointer, and no Python. */
	if (!stacks || now < m->retry_ns || (task->flags & (PF_IO_WORKER | PF_USER_WORKER)))
		return NULL;
	p = bpf_map_lookup_elem(&py_processes, &tgid);
	if (!p)
		look_later(m, now);
	return p;
}

/* At a call's return. */
static __always_inline __u64 stack_of_call(struct py_memory *m, struct task_struct *task, __u64 now)
{
	struct py_process *p = python_of(m, task, now);
	struct py_room *room;

	if (!p)
		return 0;
	room = bpf_task_storage_get(&thread_rooms, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!room)
		return 0;
	room->most_codes = PY_MAX_FRAMES;
	return stack_key(m, room, p, task, now);
}

/* With interrupts off: at a switch, at a sample. */
static __always_inline __u64 stack_of_moment(struct py_memory *m, struct task_struct *task, __u64 now)
{
	struct py_process *p = no_switch_stacks ? NULL : python_of(m, task, now);
	struct py_room *room;
	__u32 zero = 0;

	if (!p)
		return 0;
	room = bpf_map_lookup_elem(&cpu_rooms, &zero);
	if (!room)
		return 0;
	room->most_codes = MOST_CODES_AT_ONCE;
	return stack_key(m, room, p, task, now);
}

/* A child's memory is its parent's, at first. */
static __always_inline void inherit_python(__u32 parent, __u32 child)
{
	struct py_process *p = bpf_map_lookup_elem(&py_processes, &parent);

	if (p && bpf_map_update_elem(&py_processes, &child, p, BPF_ANY))
		count_loss(LOSS_MAP_FULL, NO_OP);
}
