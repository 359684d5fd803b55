/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Launches that are only counted. In a process that is over its budget, of a burst of launches by one function on one stream only the
 * first is followed to its return; the others pay for one trap instead of two. They are told together, as one call of
 * that weight at the time of the last: a burst's beginning and end stay known, which is what idle times hang on. */
#pragma once

/* Calls further apart than this are no burst, ns. */
#define BURST_NS 50000
/* At most this many are told as one, and over no longer a time, ns: gpuwhy-model's thin.rs promises that. */
#define MOST_COUNTED 1000
#define LONGEST_BURST_NS 50000000
/* A call that takes this long is no part of one, ns. */
#define FAST_NS 100000


static __always_inline __u64 stream_at_entry(const struct input *in, __u64 cookie)
{
	__u32 s = COOKIE_STREAM(cookie);
	__u64 stream = 0;

	if (s != STREAM_IN_CONFIG)
		return s ? slot(in, s) : 0;
	/* One that cannot be read is no reason to complain here. */
	bpf_probe_read_user(&stream, sizeof(stream), (void *)(slot(in, 1) + 32));
	return stream;
}

/* Tells of the calls that were only counted. */
static __always_inline void end_burst(struct thread *t, __u32 tgid, __u32 tid)
{
	struct burst *b = &t->burst;
	struct long_record *r;
	__u32 counted = b->counted;

	if (!counted)
		return;
	b->counted = 0;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&lost[LOSS_RING_FULL][b->op & (LOSS_OPS - 1)], counted);
		return;
	}
	__builtin_memset(r, 0, sizeof(*r));
	r->call.start_ns = b->start_ns;
	r->call.duration_ns = b->duration_ns;
	r->call.stream = b->stream;
	r->call.tgid = tgid;
	r->call.tid = tid;
	r->call.op = b->op;
	r->call.device = t->device;
	r->call.flags = FLAG_STREAM; /* every launch has one */
	r->call.stack = b->stack;
	r->weight = counted;
	r->peer = -1;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* Whether a call of a sampled op is one more of a burst: then it is counted, and that is all. */
static __always_inline bool only_counted(struct thread *t, const struct input *in, __u64 cookie, __u32 op)
{
	struct burst *b = &t->burst;
	__u64 now;

	if (b->cookie != cookie || b->op != op || b->counted >= MOST_COUNTED || stream_at_entry(in, cookie) != b->stream)
		return false;
	now = bpf_ktime_get_ns();
	if (now - b->start_ns > BURST_NS + b->duration_ns || now - b->first_ns > LONGEST_BURST_NS)
		return false;
	b->start_ns = now;
	b->counted++;
	return true;
}

/* Only launches of kernels come in bursts of which one is like the other: what is copied, and which event is recorded,
 * differs from call to call. */
static __always_inline bool launches_kernel(__u32 shape)
{
	return shape >= LAUNCH && shape <= LAUNCH_CONFIG;
}

static __always_inline void begin_burst(struct thread *t, const struct frame *f, __u64 end_ns, __u64 stack, __s32 ret)
{
	struct burst *b = &t->burst;

	if (f->flags & FLAG_INNER)
		return;
	b->cookie = 0;
	if (ret || end_ns - f->start_ns >= FAST_NS || !launches_kernel(COOKIE_SHAPE(f->cookie)))
		return;
	b->cookie = f->cookie;
	b->stream = f->stream;
	b->first_ns = f->start_ns;
	b->start_ns = f->start_ns;
	b->duration_ns = end_ns - f->start_ns;
	b->stack = stack;
	b->op = f->op;
}
