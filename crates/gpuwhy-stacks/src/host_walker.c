// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The kernel's walker of Python frames, run from outside the kernel: the same C, reading another process through
 * process_vm_readv. One call at a time a thread. */
#define _GNU_SOURCE
#include <asm/types.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

static _Thread_local pid_t target;
static _Thread_local __u64 reads;

static int read_user(void *to, size_t size, __u64 address)
{
	struct iovec here = { to, size }, there = { (void *)address, size };

	reads++;
	return size && process_vm_readv(target, &here, 1, &there, 1, 0) != (ssize_t)size;
}

#define PY_FUNCTION static
#include "python.h"

void host_attach(pid_t pid)
{
	target = pid;
	reads = 0;
}

__u64 host_reads(void)
{
	return reads;
}

__u64 host_find_tstate(const struct py_process *p, struct py_scratch *s, __u64 thread_pointer, __u64 cached)
{
	return py_find_tstate(p, s, thread_pointer, cached);
}

void host_walk(const struct py_process *p, struct py_scratch *s, __u64 tstate, struct py_stack *out)
{
	py_walk(p, s, tstate, out);
}

__u64 host_site_hash(const struct py_process *p, struct py_scratch *s, __u64 thread_pointer, __u64 tstate)
{
	return py_site_hash(p, s, thread_pointer, tstate);
}

void host_read_code(const struct py_process *p, struct py_scratch *s, __u64 code, struct py_code *out)
{
	py_read_code(p, s, code, out);
}

__u32 host_code_size(const struct py_code *code)
{
	return py_code_size(code);
}

#define FIELD(type, field) offsetof(struct type, field)

/* Where C has the fields, in the order in which the test lists them for Rust. */
const __u32 host_layout[] = {
	sizeof(struct py_process),
	FIELD(py_process, runtime),
	FIELD(py_process, at),
	sizeof(struct py_offsets),
	FIELD(py_offsets, version),
	FIELD(py_offsets, chain),
	FIELD(py_offsets, lasti),
	FIELD(py_offsets, shim_owner),
	FIELD(py_offsets, kind_shift),
	FIELD(py_offsets, free_threaded),
	FIELD(py_offsets, runtime_interpreters),
	FIELD(py_offsets, interpreter_next),
	FIELD(py_offsets, interpreter_threads),
	FIELD(py_offsets, tstate_prev),
	FIELD(py_offsets, tstate_next),
	FIELD(py_offsets, tstate_interpreter),
	FIELD(py_offsets, tstate_frame),
	FIELD(py_offsets, tstate_thread_id),
	FIELD(py_offsets, cframe_frame),
	FIELD(py_offsets, frame_code),
	FIELD(py_offsets, frame_previous),
	FIELD(py_offsets, frame_lasti),
	FIELD(py_offsets, frame_owner),
	FIELD(py_offsets, frame_tlbc),
	FIELD(py_offsets, frame_bytes),
	FIELD(py_offsets, code_from),
	FIELD(py_offsets, code_bytes),
	FIELD(py_offsets, code_first_line),
	FIELD(py_offsets, code_file),
	FIELD(py_offsets, code_name),
	FIELD(py_offsets, code_qualname),
	FIELD(py_offsets, code_table),
	FIELD(py_offsets, code_first_traceable),
	FIELD(py_offsets, code_bytecode),
	FIELD(py_offsets, code_tlbc),
	FIELD(py_offsets, bytes_size),
	FIELD(py_offsets, bytes_data),
	FIELD(py_offsets, text_length),
	FIELD(py_offsets, text_ascii),
	FIELD(py_offsets, text_compact),
	FIELD(py_offsets, frame_locals),
	sizeof(struct py_frame),
	FIELD(py_frame, code),
	FIELD(py_frame, lasti),
	FIELD(py_frame, check),
	sizeof(struct py_stack),
	FIELD(py_stack, count),
	FIELD(py_stack, status),
	FIELD(py_stack, frames),
	sizeof(struct py_code),
	FIELD(py_code, code),
	FIELD(py_code, check),
	FIELD(py_code, first_line),
	FIELD(py_code, file_bytes),
	FIELD(py_code, name_bytes),
	FIELD(py_code, table_bytes),
	FIELD(py_code, file_width),
	FIELD(py_code, name_width),
	FIELD(py_code, status),
	FIELD(py_code, file),
	FIELD(py_code, name),
	FIELD(py_code, table),
	sizeof(struct py_scratch),
};
const __u32 host_layout_entries = sizeof(host_layout) / sizeof(*host_layout);
