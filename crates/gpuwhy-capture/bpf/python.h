/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Walks CPython's frames from outside. Compiled as BPF, and for the host to test it against real
 * interpreters. The including file defines __u8 … __u64, __s32, __s64, __always_inline and
 *     read_user(dst, size, address)     0, or nonzero if the memory cannot be read
 * and PY_FUNCTION, which declares a function that the verifier checks only once. Each program calls in order:
 *   1. py_site_hash     given the thread state: were these frames seen before? A few reads
 *   2. py_find_tstate   the thread state (keep it and pass it the next time)
 *   3. py_walk          the frames, one or two reads each
 *   4. py_read_code     names and lines of a code object seen for the first time
 * Nothing here is guessed: user space inspects the process once and writes struct py_process. */
#pragma once

/* Frames kept, innermost first; steps also count the frames that C leaves between them, PyTorch one for every three. */
#define PY_MAX_FRAMES 128
#define PY_MAX_STEPS 192
/* Threads and interpreters looked at in a search. */
#define PY_MAX_SEARCH 256
/* A call site is identified by as many innermost frames, including C frames, as this many reads reach. Fewer would confuse
 * two lines that call the same module: PyTorch has four frames of its own between a line and the module it calls. */
#ifndef PY_SITE_READS
#define PY_SITE_READS 6
#endif
#define PY_SITE_DEPTH 48
/* Up to 3.10 each frame takes one; a caller further out would be taken for another. */
#define PY_SITE_READS_OBJECTS 48

/* Bytes kept of a code object's texts and line table; struct py_code has 4096 bytes in total. */
#define PY_FILE_BYTES 256
#define PY_NAME_BYTES 128
#define PY_TABLE_BYTES 3680

/* Bytes of a thread state read at once. */
#define PY_TSTATE_BYTES 192
#define PY_SCRATCH_BYTES 256
/* Bytes of the frame stack read at once: about ten frames. */
#define PY_WINDOW_BYTES 2048
/* No frame has more before its variables. */
#define PY_FRAME_BYTES 128

enum py_status {
	PY_OK = 0,
	PY_NO_STATE = 1, /* the thread never ran Python, or is not running any now */
	PY_UNREADABLE = 2, /* a page was not there, or what was there is no frame: frames so far are kept */
	PY_TRUNCATED = 3, /* more frames than there is room for: the innermost are kept */
};

/* Where a thread state has its innermost frame. */
enum py_chain {
	PY_CHAIN_DIRECT = 0, /* in a field */
	PY_CHAIN_CFRAME = 1, /* behind a pointer to its C frame: 3.11, 3.12 */
};

/* How a frame stores its position. */
enum py_lasti {
	PY_LASTI_BYTES = 0, /* bytes from the first instruction: up to 3.9 */
	PY_LASTI_UNITS = 1, /* instructions of two bytes: 3.10 */
	PY_LASTI_POINTER = 2, /* the address of an instruction: from 3.11 */
};

/* Offsets in bytes inside CPython's structures; gpuwhy-stacks' offsets.rs has the same struct. */
struct py_offsets {
	__u16 version; /* major << 8 | minor */
	__u8 chain;
	__u8 lasti;
	__u8 shim_owner; /* frames with this owner or a higher one are C's; 0: there are none */
	__u8 kind_shift; /* of a text's kind in its state */
	__u8 free_threaded;
	__u8 unused;
	__u32 runtime_interpreters;
	__u32 interpreter_next;
	__u32 interpreter_threads;
	__u16 tstate_prev;
	__u16 tstate_next;
	__u16 tstate_interpreter;
	__u16 tstate_frame;
	__u16 tstate_thread_id;
	__u16 cframe_frame;
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_lasti;
	__u16 frame_owner;
	__u16 frame_tlbc; /* index of a thread's own copy of the bytecode; 0: there are no copies */
	__u16 frame_bytes; /* how much of a frame is read at once, from its beginning */
	__u16 code_from; /* the part of a code object that is read at once */
	__u16 code_bytes;
	__u16 code_first_line;
	__u16 code_file;
	__u16 code_name;
	__u16 code_qualname; /* same as code_name where there is none */
	__u16 code_table;
	__u16 code_first_traceable; /* in instructions; 0: every frame is complete */
	__u16 code_bytecode;
	__u16 code_tlbc;
	__u16 bytes_size;
	__u16 bytes_data;
	__u16 text_length;
	__u16 text_ascii;
	__u16 text_compact;
	__u16 frame_locals; /* a module's or exec's own variables; 0 in a function's frame */
};

/* One process that runs Python. */
struct py_process {
	__u64 runtime; /* address of _PyRuntime */
	struct py_offsets at;
};

/* Where pieces of the program's memory are read into. Not on the stack, because BPF's has 512 bytes. It and what is
 * read must belong to one context: what can interrupt a walk needs its own. */
struct py_scratch {
	__u8 bytes[PY_SCRATCH_BYTES];
	__u8 window[PY_WINDOW_BYTES];
	__u64 window_from; /* where in the program's memory; 0: nothing was read */
	__u64 window_last; /* where in the window the last frame begins: it may not be full */
	__u64 reads; /* of frames */
	__u64 value; /* see py_forget */
};

/* `code` and `check` together name a code object; `lasti` is bytes from its first instruction, negative before it. */
struct py_frame {
	__u64 code;
	__s32 lasti;
	__u32 check;
};

struct py_stack {
	__u32 count;
	__u32 status;
	struct py_frame frames[PY_MAX_FRAMES];
};

/* Names of a code object and the lines of its instructions. Sizes are the full sizes in bytes: what does not fit into the
 * arrays is left out, at the start of a file name and at the end of everything else. */
struct py_code {
	__u64 code;
	__u32 check;
	__s32 first_line;
	__u32 file_bytes;
	__u32 name_bytes;
	__u32 table_bytes;
	__u8 file_width; /* bytes a character: 1 (Latin-1), 2, 4; 0: unreadable */
	__u8 name_width;
	__u8 status;
	__u8 unused;
	__u8 file[PY_FILE_BYTES];
	__u8 name[PY_NAME_BYTES];
	__u8 table[PY_TABLE_BYTES];
};

/* The masks let the verifier see that an offset stays inside; gpuwhy-stacks has checked that they change none. */
static __always_inline __u64 py_word(const struct py_scratch *s, __u32 at)
{
	return *(const __u64 *)(s->bytes + (at & (PY_SCRATCH_BYTES - 8)));
}

static __always_inline __u32 py_half(const struct py_scratch *s, __u32 at)
{
	return *(const __u32 *)(s->bytes + (at & (PY_SCRATCH_BYTES - 4)));
}

/* Returns the same value, but hides it from the verifier: if it knew the value on one path and not on another, it could not
 * merge the paths and would follow each to the end. */
static __always_inline __u64 py_forget(struct py_scratch *s, __u64 value)
{
	*(volatile __u64 *)&s->value = value;
	return *(volatile __u64 *)&s->value;
}

static __always_inline __u64 py_mix(__u64 hash, __u64 more)
{
	hash = (hash ^ more) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Whether a thread state belongs to the thread and is alive: a freed one may keep its id for long, but is no longer in the
 * list. */
static __always_inline int py_is_tstate_of(const struct py_process *p, struct py_scratch *s, __u64 tstate,
					   __u64 thread_pointer)
{
	__u64 prev, link_at, link = 0;

	if (!tstate || read_user(s->bytes, PY_TSTATE_BYTES, tstate))
		return 0;
	if (py_word(s, p->at.tstate_thread_id) != thread_pointer)
		return 0;
	prev = py_word(s, p->at.tstate_prev);
	link_at = prev ? prev + p->at.tstate_next : py_word(s, p->at.tstate_interpreter) + p->at.interpreter_threads;
	return !read_user(&link, sizeof(link), link_at) && link == tstate;
}

/* The state of the thread with this thread pointer (x86-64: fsbase, which is pthread_self()), or 0. `cached` is what
 * was found for it before, or 0; if that holds, it takes two reads. */
static __always_inline __u64 py_find_tstate(const struct py_process *p, struct py_scratch *s, __u64 thread_pointer,
					    __u64 cached)
{
	__u64 interpreter = 0, tstate = 0, next_at = p->runtime + p->at.runtime_interpreters;

	if (py_is_tstate_of(p, s, cached, thread_pointer))
		return cached;
	for (__u32 i = 0; i < PY_MAX_SEARCH; i++) {
		if (!tstate) {
			if (read_user(&interpreter, sizeof(interpreter), next_at) || !interpreter)
				return 0;
			next_at = interpreter + p->at.interpreter_next;
			if (read_user(&tstate, sizeof(tstate), interpreter + p->at.interpreter_threads))
				return 0;
			if (!tstate)
				continue;
		}
		if (read_user(s->bytes, PY_TSTATE_BYTES, tstate))
			return 0;
		if (py_word(s, p->at.tstate_thread_id) == thread_pointer)
			return tstate;
		tstate = py_word(s, p->at.tstate_next);
	}
	return 0;
}

/* The innermost frame, which may be C's; 0: no Python is running. */
static __always_inline int py_top_frame(const struct py_process *p, __u64 tstate, __u64 *frame)
{
	*frame = 0;
	if (read_user(frame, sizeof(*frame), tstate + p->at.tstate_frame))
		return PY_UNREADABLE;
	if (p->at.chain == PY_CHAIN_CFRAME && *frame &&
	    read_user(frame, sizeof(*frame), *frame + p->at.cframe_frame))
		return PY_UNREADABLE;
	return PY_OK;
}

static __always_inline int py_read_frame(const struct py_process *p, struct py_scratch *s, __u64 frame)
{
	return read_user(s->bytes, p->at.frame_bytes & (PY_SCRATCH_BYTES - 1), frame);
}

/* Reads a frame and, with it, what lies below it on its page: from 3.11 frames lie on a stack of their own, so that
 * the ones before it are likely there. */
static __always_inline void py_read_window(const struct py_process *p, struct py_scratch *s, __u64 frame)
{
	__u64 from = frame - (PY_WINDOW_BYTES - PY_FRAME_BYTES), size;

	if (from < (frame & ~4095ull))
		from = frame & ~4095ull;
	size = frame - from + p->at.frame_bytes;
	if (size > PY_WINDOW_BYTES)
		size = PY_WINDOW_BYTES;
	s->window_last = frame - from;
	s->window_from = read_user(s->window, size, from) ? 0 : from;
}

/* Makes a frame readable at the offset returned, in scratch and window taken as one; negative if it is not. */
static __always_inline __s64 py_reach_quickly(const struct py_process *p, struct py_scratch *s, __u64 frame)
{
	__u64 at = frame - s->window_from;

	if (s->window_from && at <= s->window_last)
		return py_forget(s, PY_SCRATCH_BYTES + at);
	*(volatile __u64 *)&s->reads += 1;
	if (p->at.lasti == PY_LASTI_POINTER && (!s->window_from || s->window_from - frame < 16384)) {
		py_read_window(p, s, frame);
		return py_forget(s, s->window_from ? PY_SCRATCH_BYTES + s->window_last : ~0ull);
	}
	/* A generator's or C's own is elsewhere, as all are up to 3.10. */
	return py_forget(s, py_read_frame(p, s, frame) ? ~0ull : 0);
}

/* The same as a function of its own: the walk's loop is long, and the verifier follows all that is in it. */
PY_FUNCTION __s64 py_reach_frame(const struct py_process *p, struct py_scratch *s, __u64 frame)
{
	return p && s ? py_reach_quickly(p, s, frame) : -1;
}

static __always_inline __u64 py_frame_word(const struct py_scratch *s, __u32 frame, __u32 at)
{
	return *(const __u64 *)((const __u8 *)s + frame + (at & (PY_FRAME_BYTES - 8)));
}

static __always_inline __u8 py_frame_byte(const struct py_scratch *s, __u32 frame, __u32 at)
{
	return *((const __u8 *)s + frame + (at & (PY_FRAME_BYTES - 1)));
}

/* Where a frame is, in bytes from its first instruction. Free-threaded interpreters give a thread its own copy of the
 * bytecode; copy 0 is the code object's. */
static __always_inline __s32 py_lasti(const struct py_process *p, const struct py_scratch *s, __u32 frame, __u64 code)
{
	__u64 copies = 0, start = code + p->at.code_bytecode, at = py_frame_word(s, frame, p->at.frame_lasti);
	__u32 copy;

	if (p->at.lasti != PY_LASTI_POINTER)
		return (__s32)at << (p->at.lasti & PY_LASTI_UNITS);
	if (p->at.frame_tlbc) {
		copy = (__u32)(py_frame_word(s, frame, p->at.frame_tlbc) >> (p->at.frame_tlbc & 4) * 8);
		if (copy && !read_user(&copies, sizeof(copies), code + p->at.code_tlbc))
			read_user(&start, sizeof(start), copies + 8 + 8 * (__u64)copy);
	}
	return (__s32)(at - start);
}

/* Reads the fields of a code object that distinguish it from a later one at the same address; they also point to its
 * texts. */
static __always_inline int py_read_code_part(const struct py_process *p, struct py_scratch *s, __u64 code)
{
	return read_user(s->bytes, p->at.code_bytes & (PY_SCRATCH_BYTES - 1), code + p->at.code_from);
}

static __always_inline __u32 py_code_check(const struct py_process *p, const struct py_scratch *s)
{
	__u32 from = p->at.code_from;
	__u64 hash = py_half(s, p->at.code_first_line - from);

	hash = py_mix(hash, py_word(s, p->at.code_file - from));
	hash = py_mix(hash, py_word(s, p->at.code_name - from));
	hash = py_mix(hash, py_word(s, p->at.code_table - from));
	return (__u32)(hash ^ hash >> 32);
}

/* Mixes in up to 32 bytes at an address. */
static __always_inline __u64 py_mix_bytes(struct py_scratch *s, __u64 hash, __u64 size, __u64 address)
{
	for (__u32 i = 0; i < 32; i += 8)
		*(__u64 *)(s->bytes + i) = 0;
	if (size > 32)
		size = 32;
	if (read_user(s->bytes, size, address))
		return hash;
	for (__u32 i = 0; i < 32; i += 8)
		hash = py_mix(hash, *(__u64 *)(s->bytes + i));
	return hash;
}

/* The same for code that runs once: the next code object may have the same address and the same text addresses, so the start
 * of the texts counts as well. The fields of the code object were just read. */
PY_FUNCTION __u32 py_content_check(const struct py_process *p, struct py_scratch *s)
{
	__u64 file, table, hash, head[3] = {}, size = 0;
	__u32 from;

	if (!p || !s)
		return 0;
	from = p->at.code_from;
	file = py_word(s, p->at.code_file - from);
	table = py_word(s, p->at.code_table - from);
	hash = py_code_check(p, s);
	if (!read_user(head, sizeof(head), file + p->at.text_length))
		hash = py_mix_bytes(s, py_mix(hash, head[0]), head[0], file + p->at.text_ascii);
	if (!read_user(&size, sizeof(size), table + p->at.bytes_size))
		hash = py_mix_bytes(s, py_mix(hash, size), size, table + p->at.bytes_data);
	return (__u32)(hash ^ hash >> 32);
}

/* A frame whose function has not started: Python itself leaves it out of tracebacks. */
static __always_inline int py_is_incomplete(const struct py_process *p, const struct py_scratch *s, __s32 lasti,
					    __u8 owner)
{
	__u32 first = p->at.code_first_traceable;

	return first && owner != 1 /* a generator's */ && lasti < (__s32)py_half(s, first - p->at.code_from) * 2;
}

/* The count lives in memory that the verifier does not follow: in a register, each way through the loop would make a
 * state of its own. */
static __always_inline int py_push(struct py_stack *out, __u64 code, __s32 lasti, __u32 check)
{
	__u32 n = *(volatile __u32 *)&out->count;

	if (n >= PY_MAX_FRAMES)
		return 0;
	out->frames[n].code = code;
	out->frames[n].lasti = lasti;
	out->frames[n].check = check;
	*(volatile __u32 *)&out->count = n + 1;
	return 1;
}

/* All frames of a thread state, innermost first. One read for the frame (several at once where they lie on a stack),
 * one for its code. */
static __always_inline void py_walk(const struct py_process *p, struct py_scratch *s, __u64 tstate,
				    struct py_stack *out)
{
	__u64 frame = 0;

	s->window_from = 0;
	out->count = 0;
	out->status = PY_NO_STATE;
	if (!tstate)
		return;
	out->status = py_top_frame(p, tstate, &frame);
	if (out->status == PY_OK && !frame)
		out->status = PY_NO_STATE;
	for (__u32 i = 0; i < PY_MAX_STEPS; i++) {
		__u64 code, locals;
		__u32 check;
		__s32 lasti;
		__u8 owner;
		__s64 at;

		if (!frame)
			return;
		at = py_reach_frame(p, s, frame);
		if (at < 0 || at > PY_SCRATCH_BYTES + PY_WINDOW_BYTES - PY_FRAME_BYTES) {
			out->status = PY_UNREADABLE;
			return;
		}
		frame = py_frame_word(s, at, p->at.frame_previous);
		owner = py_frame_byte(s, at, p->at.frame_owner);
		if (p->at.shim_owner && owner >= p->at.shim_owner)
			continue; /* C's own: where C called Python the interpreter puts one, from 3.12 */
		code = py_frame_word(s, at, p->at.frame_code) & ~7ull; /* the low bits say how it is counted (3.14) */
		locals = py_frame_word(s, at, p->at.frame_locals);
		lasti = py_forget(s, py_lasti(p, s, at, code));
		if (py_read_code_part(p, s, code)) {
			out->status = PY_UNREADABLE;
			return;
		}
		if (py_is_incomplete(p, s, lasti, owner))
			continue;
		check = locals ? py_content_check(p, s) : py_code_check(p, s);
		if (!py_push(out, code, lasti, check))
			break;
	}
	out->status = PY_TRUNCATED;
}

/* A hash of the positions of the thread's innermost frames, within one process: equal hashes mean the same call site, except
 * for outer callers that PY_SITE_READS do not reach. `tstate` is the result of an earlier py_find_tstate for the thread.
 * 0: it no longer belongs to the thread, no Python is running, or memory is unreadable. The total depth also counts: up to
 * 3.10 it is in the thread state right after the frame, later the address of the innermost frame represents it, if that is
 * on the stack. */
static __always_inline __u64 py_site_hash(const struct py_process *p, struct py_scratch *s, __u64 thread_pointer,
					  __u64 tstate)
{
	__u64 frame, hash, once = 0;

	/* A freed thread state has no frames, so there is no need to check whether it is alive. */
	if (!tstate || read_user(s->bytes, PY_TSTATE_BYTES, tstate) ||
	    py_word(s, p->at.tstate_thread_id) != thread_pointer)
		return 0;
	frame = py_word(s, p->at.tstate_frame);
	hash = p->at.lasti == PY_LASTI_POINTER ? 1 : py_half(s, p->at.tstate_frame + 8);
	if (p->at.chain == PY_CHAIN_CFRAME && read_user(&frame, sizeof(frame), frame + p->at.cframe_frame))
		return 0;
	if (!frame)
		return 0;
	s->window_from = 0;
	s->reads = 0;
	for (__u32 i = 0; i < PY_SITE_DEPTH; i++) {
		__u64 code, locals;
		__s64 at;

		if (!frame ||
		    *(volatile __u64 *)&s->reads >=
			    (p->at.lasti == PY_LASTI_POINTER ? PY_SITE_READS : PY_SITE_READS_OBJECTS))
			break;
		at = py_reach_quickly(p, s, frame);
		if (at < 0 || at > PY_SCRATCH_BYTES + PY_WINDOW_BYTES - PY_FRAME_BYTES)
			return 0;
		if (!i && p->at.lasti == PY_LASTI_POINTER && !py_frame_byte(s, at, p->at.frame_owner))
			hash = py_mix(hash, frame);
		code = py_frame_word(s, at, p->at.frame_code);
		hash = py_mix(hash, code * 31 + py_frame_word(s, at, p->at.frame_lasti));
		frame = py_frame_word(s, at, p->at.frame_previous);
		if (p->at.shim_owner && py_frame_byte(s, at, p->at.frame_owner) >= p->at.shim_owner)
			continue;
		locals = py_frame_word(s, at, p->at.frame_locals);
		/* Code that is run once (a notebook's cell, exec) dies soon, and the next may get its address. Not so the
		 * outermost, which is the program itself. */
		if (once && !py_read_code_part(p, s, once))
			hash = py_mix(hash, py_content_check(p, s));
		once = py_forget(s, locals ? code & ~7ull : 0);
		hash = py_forget(s, hash);
	}
	return hash;
}

/* Reads the characters of a text as they are in memory. `room` is a constant; what does not fit is left out, at the start if
 * `keep_end`. Returns the width of a character, 0 if the text is unreadable. */
static __always_inline __u8 py_read_text(const struct py_process *p, __u64 text, __u8 *to, __u32 room, int keep_end,
					 __u32 *true_bytes)
{
	struct {
		__u64 length, hash;
		__u32 state, unused;
	} head;
	__u32 bits, width;
	__u64 data, size;

	if (read_user(&head, sizeof(head), text + p->at.text_length))
		return 0;
	bits = head.state >> (p->at.kind_shift & 31);
	width = bits & 7;
	if ((width != 1 && width != 2 && width != 4) || head.length > 1 << 20)
		return 0;
	data = text + (bits & 16 ? p->at.text_ascii : p->at.text_compact);
	if (!(bits & 8) && read_user(&data, sizeof(data), text + p->at.text_compact))
		return 0; /* not compact: its characters are elsewhere */
	size = head.length * width;
	*true_bytes = size;
	if (size > room) {
		data += keep_end ? size - room : 0;
		size = room;
	}
	return read_user(to, size, data) ? 0 : width;
}

static __always_inline int py_read_table(const struct py_process *p, __u64 table, struct py_code *out)
{
	__u64 size = 0;

	if (read_user(&size, sizeof(size), table + p->at.bytes_size) || size > 1 << 30)
		return PY_UNREADABLE;
	out->table_bytes = size;
	if (size > PY_TABLE_BYTES)
		size = PY_TABLE_BYTES;
	return read_user(out->table, size, table + p->at.bytes_data) ? PY_UNREADABLE : PY_OK;
}

/* Everything needed to name a code object's lines after the process is gone. Seven reads. */
static __always_inline void py_read_code(const struct py_process *p, struct py_scratch *s, __u64 code,
					 struct py_code *out)
{
	__u32 from = p->at.code_from;
	__u64 file, name, table;

	out->code = code;
	out->check = 0;
	out->first_line = 0;
	out->file_bytes = 0;
	out->name_bytes = 0;
	out->table_bytes = 0;
	out->file_width = 0;
	out->name_width = 0;
	out->unused = 0;
	out->status = PY_UNREADABLE;
	if (py_read_code_part(p, s, code))
		return;
	out->check = py_code_check(p, s);
	out->first_line = py_half(s, p->at.code_first_line - from);
	file = py_word(s, p->at.code_file - from);
	name = py_word(s, p->at.code_qualname - from);
	table = py_word(s, p->at.code_table - from);
	out->file_width = py_read_text(p, file, out->file, PY_FILE_BYTES, 1, &out->file_bytes);
	out->name_width = py_read_text(p, name, out->name, PY_NAME_BYTES, 0, &out->name_bytes);
	out->status = py_read_table(p, table, out);
}

/* How much of the struct is filled, for a ring record of just that size. */
static __always_inline __u32 py_code_size(const struct py_code *c)
{
	__u32 table = c->table_bytes;

	return sizeof(*c) - PY_TABLE_BYTES + (table < PY_TABLE_BYTES ? table : PY_TABLE_BYTES);
}
