/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reading a call's arguments: at entry what is passed in, at return what was handed back. */
#pragma once

static __always_inline bool read_user(void *to, __u32 size, __u64 from, __u32 op)
{
	if (bpf_probe_read_user(to, size, (void *)from) == 0)
		return true;
	count_loss(LOSS_ARG_UNREADABLE, op);
	return false;
}

/* The argument in slot n, counted from 1 as gpuwhy-model's decode.rs does. */
static __always_inline __u64 slot(const struct input *in, __u32 n)
{
	__u32 above = n - REGISTER_SLOTS - 1;

	if (n - 1 < REGISTER_SLOTS)
		return in->reg[n - 1];
	return above < STACK_SLOTS ? in->stack.slot[above] : 0;
}

/* CUDA's codes for a copy's direction. */
enum { HTOH = 0, HTOD = 1, DTOH = 2, DTOD = 3, BY_POINTERS = 4 };

/* The driver's copy structs have the memory type of each side: 1 host, 2 device, 3 array, 4 unified. */
static __always_inline __u64 direction_of(__u32 source, __u32 destination)
{
	if (source == 4 || destination == 4)
		return BY_POINTERS;
	if (source == 1)
		return destination == 1 ? HTOH : HTOD;
	return destination == 1 ? DTOH : DTOD;
}

static __always_inline void set_args(struct frame *f, __u64 arg0, __u64 arg1)
{
	f->arg0 = arg0;
	f->arg1 = arg1;
	f->flags |= FLAG_ARG0 | FLAG_ARG1;
}

/* cudaMemcpy3DParms, cudaMemcpy3DPeerParms: extent, then kind (peers have none: device to device). */
static __noinline void read_copy_3d_runtime(struct frame *f, __u64 params, bool peer)
{
	__u64 extent[3] = {}, source_array = 0, destination_array = 0;
	__u32 kind = DTOD;

	if (!f || !read_user(extent, sizeof(extent), params + (peer ? 144 : 128), f->op) ||
	    !read_user(&source_array, 8, params, f->op) ||
	    !read_user(&destination_array, 8, params + (peer ? 72 : 64), f->op))
		return;
	if (!peer && !read_user(&kind, sizeof(kind), params + 152, f->op))
		return;
	set_args(f, extent[0] * extent[1] * extent[2], kind);
	/* For a CUDA array, the extent is in elements of unknown size. */
	if (source_array || destination_array)
		f->flags &= ~FLAG_ARG0;
}

/* CUDA_MEMCPY2D: 16 source type, 72 destination type, 112 width in bytes, 120 height.
 * CUDA_MEMCPY3D: 32, 120, 176 width in bytes, 184 height, 192 depth; the _PEER one agrees up to the
 * extent, which its two context fields leave in place (they stand where CUDA_MEMCPY3D has "reserved"). */
static __noinline void read_copy_driver(struct frame *f, __u64 params, bool three)
{
	__u64 extent[3] = {0, 0, 1};
	__u32 source = 0, destination = 0;

	if (!f)
		return;
	if (!read_user(&source, 4, params + (three ? 32 : 16), f->op) ||
	    !read_user(&destination, 4, params + (three ? 120 : 72), f->op))
		return;
	if (three ? !read_user(extent, 24, params + 176, f->op) : !read_user(extent, 16, params + 112, f->op))
		return;
	set_args(f, extent[0] * extent[1] * extent[2], direction_of(source, destination));
}

/* cudaMemset3D(cudaPitchedPtr (32 bytes by value), int value, cudaExtent (24 bytes by value)). */
static __always_inline void read_fill_3d(const struct input *in, struct frame *f)
{
	__u64 extent[3] = {};

	if (read_user(extent, sizeof(extent), by_value_address(in, 3, 32), f->op))
		set_args(f, extent[0] * extent[1] * extent[2], (__u32)slot(in, 1));
}

/* The pointer about to be freed still belongs to its allocation now; once the call runs, another
 * thread may be given the same address. So the size is taken, and forgotten, at entry. */
static __always_inline void read_free(struct frame *f, const struct frame *outer, __u32 tgid, __u64 address,
				      bool is_handle)
{
	struct live_key key = {.address = address, .tgid = tgid, .is_handle = is_handle};
	__u64 *bytes;

	f->arg1 = address;
	f->flags |= FLAG_ARG1;
	if (!address) {
		f->flags |= FLAG_ARG0;
		return;
	}
	if (outer && (outer->flags & FLAG_ARG0) && outer->arg1 == address) {
		f->arg0 = outer->arg0; /* cudaFree has taken it; this is the cuMemFree inside */
		f->flags |= FLAG_ARG0;
		return;
	}
	bytes = bpf_map_lookup_elem(&live, &key);
	if (!bytes)
		return;
	f->arg0 = *bytes;
	f->flags |= FLAG_ARG0;
	bpf_map_delete_elem(&live, &key);
}

static __always_inline void read_launch_config(struct frame *f, __u64 config, __u64 function)
{
	__u32 grid[3] = {};
	__u64 stream;

	f->arg0 = function;
	f->flags |= FLAG_ARG0;
	if (read_user(grid, sizeof(grid), config, f->op)) {
		f->arg1 = (__u64)grid[0] * grid[1] * grid[2];
		f->flags |= FLAG_ARG1;
	}
	if (read_user(&stream, sizeof(stream), config + 32, f->op)) {
		f->stream = stream;
		f->flags |= FLAG_STREAM;
	}
}

static __always_inline void read_copy_or_fill(const struct input *in, struct frame *f, __u32 a, __u32 b, __u32 extra)
{
	switch (COOKIE_SHAPE(f->cookie)) {
	case COPY:
		set_args(f, slot(in, a), extra);
		break;
	case COPY_KIND:
		set_args(f, slot(in, a), (__u32)slot(in, b));
		break;
	case COPY_2D:
		set_args(f, slot(in, a) * slot(in, a + 1), (__u32)slot(in, b));
		break;
	case COPY_3D_RUNTIME:
		read_copy_3d_runtime(f, slot(in, 1), extra);
		break;
	case COPY_2D_DRIVER:
		read_copy_driver(f, slot(in, 1), false);
		break;
	case COPY_3D_DRIVER:
		read_copy_driver(f, slot(in, 1), true);
		break;
	case FILL:
		set_args(f, slot(in, a) << extra, (__u32)slot(in, b));
		break;
	case FILL_2D:
		set_args(f, (slot(in, a) * slot(in, a + 1)) << extra, (__u32)slot(in, b));
		break;
	case FILL_3D:
		read_fill_3d(in, f);
		break;
	}
}

/* Fields known at the entry of the call. */
static __always_inline void read_at_entry(const struct input *in, struct frame *f, const struct frame *outer, __u32 tgid)
{
	__u64 cookie = f->cookie;
	__u32 a = COOKIE_A(cookie), b = COOKIE_B(cookie), s = COOKIE_STREAM(cookie);
	__u32 op = f->op, extra = COOKIE_EXTRA(cookie);
	__u64 extent[3] = {};

	if (s && s != STREAM_IN_CONFIG) {
		f->stream = slot(in, s);
		f->flags |= FLAG_STREAM;
	}
	switch (COOKIE_SHAPE(cookie)) {
	case LAUNCH:
		set_args(f, slot(in, 1),
			 (__u64)(__u32)slot(in, 2) * (__u32)slot(in, 3) * (__u32)slot(in, 4));
		break;
	case LAUNCH_DIM3: {
		__u64 xy = slot(in, 2);

		set_args(f, slot(in, 1), (xy & 0xffffffff) * (xy >> 32) * (__u32)slot(in, 3));
		break;
	}
	case LAUNCH_CONFIG:
		read_launch_config(f, slot(in, 1), slot(in, 2));
		break;
	case ALLOC:
		f->arg0 = slot(in, a);
		f->arg1 = slot(in, b); /* where the pointer will be written */
		f->flags |= FLAG_ARG0;
		break;
	case ALLOC_OPAQUE:
		f->arg1 = slot(in, b);
		break;
	case ALLOC_AT:
	case RANGE:
		set_args(f, slot(in, a), slot(in, b));
		break;
	case ALLOC_PITCH:
		f->arg0 = slot(in, 4);   /* height; the pitch is known at return */
		f->arg1 = slot(in, 1);
		f->stream = slot(in, 2); /* where the pitch will be written */
		break;
	case ALLOC_3D:
		if (read_user(extent, sizeof(extent), by_value_address(in, 2, 0), op))
			f->arg0 = extent[1] * extent[2];
		f->arg1 = slot(in, 1);
		break;
	case FREE:
		read_free(f, outer, tgid, slot(in, a), extra);
		break;
	case HANDLE:
	case SET_CONTEXT:
	case DROP_CONTEXT:
		f->arg0 = slot(in, a);
		f->flags |= FLAG_ARG0;
		break;
	case SET_DEVICE:
		f->arg0 = (__u32)slot(in, a);
		f->flags |= FLAG_ARG0;
		break;
	case NEW_CONTEXT:
		f->arg0 = (__u32)slot(in, a);
		f->arg1 = slot(in, b);
		f->flags |= FLAG_ARG0;
		break;
	default:
		read_copy_or_fill(in, f, a, b, extra);
	}
}

static __always_inline void remember_live(const struct frame *f, __u32 tgid, bool is_handle)
{
	struct live_key key = {.address = f->arg1, .tgid = tgid, .is_handle = is_handle};

	if (f->arg1 && bpf_map_update_elem(&live, &key, &f->arg0, BPF_ANY))
		count_loss(LOSS_LIVE_MAP_FULL, f->op);
}

/* The new pointer or handle that the call wrote to its output argument. */
static __always_inline bool read_result(struct frame *f, bool failed)
{
	__u64 result;

	if (failed || !read_user(&result, sizeof(result), f->arg1, f->op)) {
		f->arg1 = 0;
		return false;
	}
	f->arg1 = result;
	f->flags |= FLAG_ARG1;
	return true;
}

static __always_inline void finish_pitched(struct frame *f, __u32 tgid, __u64 pitch_at, bool failed)
{
	__u64 pitch = 0;

	if (failed || !read_user(&pitch, sizeof(pitch), pitch_at, f->op) || !read_result(f, false)) {
		f->arg0 = 0;
		f->arg1 = 0;
		return;
	}
	f->arg0 *= pitch;
	f->flags |= FLAG_ARG0;
	remember_live(f, tgid, false);
}

static __always_inline void push_context(struct thread *t)
{
	if (t->context_depth < CONTEXT_STACK)
		t->context_device[t->context_depth & (CONTEXT_STACK - 1)] = t->device;
	if (t->context_depth < 255)
		t->context_depth++;
}

/* Deeper than what is kept, the device is not known. */
static __always_inline void pop_context(struct thread *t)
{
	t->device = DEVICE_UNKNOWN;
	if (!t->context_depth)
		return;
	t->context_depth--;
	if (t->context_depth < CONTEXT_STACK)
		t->device = t->context_device[t->context_depth & (CONTEXT_STACK - 1)];
}

static __always_inline void learn_context(struct thread *t, struct frame *f, __u32 tgid, bool current)
{
	struct context_key key = {.tgid = tgid};
	__u32 device = f->arg0;

	if (!read_result(f, false))
		return;
	key.context = f->arg1;
	bpf_map_update_elem(&contexts, &key, &device, BPF_ANY);
	if (current) { /* cuCtxCreate pushes what it makes */
		push_context(t);
		t->device = device;
		t->chosen = true;
	}
}

/* A context of unknown origin that the runtime itself makes current belongs to the device the thread uses: the
 * one it is just choosing, or, before it ever chose, the default. True: *device is that. */
static __always_inline bool runtime_tells(const struct thread *t, const struct frame *f, const struct frame *outer,
					  __u32 *device)
{
	if (!(f->flags & FLAG_INNER) || !f->arg0)
		return false;
	if (outer && COOKIE_SHAPE(outer->cookie) == SET_DEVICE)
		*device = outer->arg0;
	else if (!t->chosen && t->device != DEVICE_UNKNOWN)
		*device = t->device;
	else
		return false;
	return true;
}

static __always_inline void switch_context(struct thread *t, const struct frame *f, const struct frame *outer,
					   __u32 tgid, bool push)
{
	struct context_key key = {.context = f->arg0, .tgid = tgid};
	__u32 *known = bpf_map_lookup_elem(&contexts, &key);
	__u32 device = DEVICE_UNKNOWN;

	if (known)
		device = *known;
	else if (!push && runtime_tells(t, f, outer, &device))
		bpf_map_update_elem(&contexts, &key, &device, BPF_ANY);
	if (push)
		push_context(t);
	t->device = device;
	t->chosen = true;
}

/* Fields known after the return of the call. */
static __always_inline void read_at_return(struct thread *t, struct frame *f, const struct frame *outer, __u32 tgid,
					   bool failed)
{
	__u32 extra = COOKIE_EXTRA(f->cookie);

	switch (COOKIE_SHAPE(f->cookie)) {
	case ALLOC:
		if (read_result(f, failed))
			remember_live(f, tgid, extra);
		break;
	case ALLOC_OPAQUE:
		read_result(f, failed);
		break;
	case ALLOC_AT:
		if (!failed)
			remember_live(f, tgid, false);
		break;
	case ALLOC_PITCH: {
		__u64 pitch_at = f->stream;

		f->stream = 0;
		finish_pitched(f, tgid, pitch_at, failed);
		break;
	}
	case ALLOC_3D:
		finish_pitched(f, tgid, f->arg1 + 8, failed); /* cudaPitchedPtr: ptr, pitch, … */
		break;
	case FREE:
		if (failed && (f->flags & FLAG_ARG0))
			remember_live(f, tgid, extra); /* still allocated after all */
		break;
	case SET_DEVICE:
		if (!failed) {
			t->device = f->arg0;
			t->chosen = true;
		}
		break;
	case NEW_CONTEXT:
		if (failed)
			f->arg1 = 0;
		else
			learn_context(t, f, tgid, extra);
		break;
	case SET_CONTEXT:
		if (!failed)
			switch_context(t, f, outer, tgid, extra);
		break;
	case POP_CONTEXT:
		if (!failed) {
			pop_context(t);
			t->chosen = true;
		}
		break;
	case DROP_CONTEXT: /* it may have been the current one */
		if (!failed) {
			t->device = DEVICE_UNKNOWN;
			t->chosen = true;
		}
		break;
	}
}
