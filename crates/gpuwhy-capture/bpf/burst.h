/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Calls that are only counted. Under the governor's hand, of a burst of calls of one function on one stream only the
 * first is followed to its return; the others pay for one trap instead of two. They are told together, as one call of
 * that weight at the time of the last: a burst's beginning and end stay known, which is what idle times hang on. */
#pragma once

/* Calls further apart than this are no burst, ns. */
#define BURST_NS 50000
/* At most this many are told as one. */
#define MOST_COUNTED 1000


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
	r->call.flags = COOKIE_STREAM(b->cookie) ? FLAG_STREAM : 0;
	r->call.stack = b->stack;
	r->weight = counted;
	r->peer = -1;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* Whether a call is one more of a burst: then it is counted, and that is all. */
static __always_inline bool only_counted(struct thread *t, const struct input *in, __u64 cookie, __u32 op)
{
	struct burst *b = &t->burst;
	__u64 now;

	if (modes[COOKIE_OP(cookie) & (LOSS_OPS - 1)] != MODE_SAMPLED || b->cookie != cookie || b->op != op ||
	    b->counted >= MOST_COUNTED || stream_at_entry(in, cookie) != b->stream)
		return false;
	now = bpf_ktime_get_ns();
	if (now - b->start_ns > BURST_NS + b->duration_ns)
		return false;
	b->start_ns = now;
	b->counted++;
	return true;
}

static __always_inline void begin_burst(struct thread *t, const struct frame *f, __u64 end_ns, __u64 stack)
{
	struct burst *b = &t->burst;

	b->cookie = f->cookie;
	b->stream = f->stream;
	b->start_ns = f->start_ns;
	b->duration_ns = end_ns - f->start_ns;
	b->stack = stack;
	b->op = f->op;
}
