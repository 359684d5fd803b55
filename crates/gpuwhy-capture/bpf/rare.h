/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Functions that are called rarely and need more data: communicators and transfers, handles made from handles, names. They
 * have their own programs, so that the verifier checks this code once and the hot path stays short. */
#pragma once

/* Of NCCL's unique id, this many bytes are looked at: a random number and the address of its maker. */
#define ID_WORDS 5
#define NCCL_IN_PROGRESS 7

/* Told by its first word, since names differ in length. */
#define NAME_RECORD 0x656d616e5f6e7566ULL /* "fun_name" */
#define MOST_NAME 1024

struct name_record {
	__u64 kind;
	__u64 at_ns;
	__u64 handle;
	__u64 from;
	__u32 tgid;
	__s32 length; /* with its end; 0 for none */
	char name[MOST_NAME];
};

struct communicator_record {
	__u64 at_ns;
	__u64 communicator;
	__u64 id;
	__u64 parent;
	__u32 tgid;
	__u32 tid;
	__u32 ranks;
	__u32 rank;
	__s32 color;
	__s32 key;
	__u32 op;
	__u32 device;
	__u64 unused[3]; /* no other record is as long */
};

/* Bytes of an element of ncclDataType_t, as a power of two: int8, uint8, int32, uint32, int64, uint64, float16, float32,
 * float64, bfloat16, float8 twice. */
static __always_inline __u64 element_shift(__u32 type)
{
	const __u8 shifts[16] = {0, 0, 2, 2, 3, 3, 1, 2, 3, 1, 0, 0};
	__u64 packed = 0;

	for (int i = 0; i < 16; i++)
		packed |= (__u64)shifts[i] << (2 * i);
	return type < 16 ? packed >> (2 * type) & 3 : 0;
}

static __always_inline void read_transfer(const struct input *in, struct frame *f, __u32 tgid)
{
	__u64 cookie = f->cookie;
	__u32 count = COOKIE_A(cookie), peer = COOKIE_EXTRA(cookie), sequence;
	struct context_key key = {.context = slot(in, COOKIE_B(cookie)), .tgid = tgid};
	__u32 *next;

	set_args(f, slot(in, count) << element_shift(slot(in, count + 1)), key.context);
	f->more = (__u64)(peer ? (__u32)slot(in, peer) : ~0U) << 32;
	next = bpf_map_lookup_elem(&transfers, &key);
	if (!next)
		return;
	sequence = *next; /* NCCL wants one thread at a time on a communicator */
	*next = sequence + 1;
	f->more |= sequence;
	f->flags |= FLAG_SEQUENCE;
}

/* Handles whose names were reported to gpuwhy. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct context_key);
	__type(value, __u8);
} named SEC(".maps");

/* The runtime looks up the function of a kernel repeatedly: once its name was reported, there is nothing more to learn. Only
 * kernels without a name are looked up by handle. */
static __always_inline bool asks_again(__u64 cookie)
{
	return COOKIE_SHAPE(cookie) == NAMED && !COOKIE_EXTRA(cookie);
}

static __always_inline bool is_named(const struct input *in, const struct thread *t, __u64 cookie, __u32 tgid)
{
	/* Each device has a function of its own for the same kernel. */
	struct context_key key = {.context = slot(in, COOKIE_A(cookie)), .tgid = tgid, .unused = t->device};

	return bpf_map_lookup_elem(&named, &key);
}

/* 64 bits that distinguish ids; 0 if the id cannot be read. */
static __always_inline __u64 read_id(__u64 from, __u32 op)
{
	__u64 words[ID_WORDS] = {}, hash = 0;

	if (!read_user(words, sizeof(words), from, op))
		return 0;
	for (int i = 0; i < ID_WORDS; i++)
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
	hash ^= hash >> 32;
	return hash;
}

static __always_inline void read_new_communicator(const struct input *in, struct frame *f, struct new_communicator *c)
{
	__builtin_memset(c, 0, sizeof(*c));
	f->arg1 = slot(in, 1);
	switch (COOKIE_EXTRA(f->cookie)) {
	case 0: /* InitRank: the id is passed by value */
		c->ranks = slot(in, 2);
		c->rank = slot(in, SLOT_AFTER_BY_VALUE(3));
		c->id = read_id(by_value_address(in, 3, 0), f->op);
		break;
	case 1: /* Scalable */
		c->ranks = slot(in, 2);
		c->rank = slot(in, 3);
		c->id = read_id(slot(in, 5), f->op);
		break;
	case 3: /* InitAll: one for each device */
		c->ranks = slot(in, 2);
		break;
	default: /* Split */
		c->parent = slot(in, 1);
		c->color = slot(in, 2);
		c->key = slot(in, 3);
		f->arg1 = slot(in, 4);
	}
}

/* Its address may be the next one's. */
static __always_inline void end_communicator(__u64 communicator, __u32 tgid)
{
	struct context_key key = {.context = communicator, .tgid = tgid};

	bpf_map_delete_elem(&transfers, &key);
}

static __always_inline void read_rare_at_entry(const struct input *in, struct thread *t, struct frame *f, __u32 tgid)
{
	__u64 cookie = f->cookie;
	__u32 stream = COOKIE_STREAM(cookie);

	if (stream) {
		f->stream = slot(in, stream);
		f->flags |= FLAG_STREAM;
	}
	switch (COOKIE_SHAPE(cookie)) {
	case HANDLE:
		f->arg0 = slot(in, COOKIE_A(cookie));
		f->flags |= FLAG_ARG0;
		if (COOKIE_EXTRA(cookie))
			end_communicator(f->arg0, tgid);
		break;
	case HANDLES:
		set_args(f, slot(in, COOKIE_A(cookie)), slot(in, COOKIE_B(cookie)));
		break;
	case ALLOC_OPAQUE:
		f->arg1 = slot(in, COOKIE_B(cookie)); /* where the handle will be written */
		break;
	case NAMED:
		f->more = COOKIE_EXTRA(cookie) ? slot(in, COOKIE_EXTRA(cookie)) : 0;
		/* fallthrough */
	case NEW_HANDLE:
		f->arg0 = slot(in, COOKIE_A(cookie));
		f->arg1 = slot(in, COOKIE_B(cookie));
		f->flags |= FLAG_ARG0;
		break;
	case TRANSFER:
		read_transfer(in, f, tgid);
		break;
	case COMMUNICATOR:
		read_new_communicator(in, f, &t->communicator);
		break;
	}
}

static __always_inline void tell_name(const struct thread *t, const struct frame *f, __u32 tgid)
{
	struct name_record *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	struct context_key key = {.context = f->more ? f->arg1 : f->arg0, .tgid = tgid, .unused = t->device};
	__u8 one = 1;

	if (!r) {
		count_loss(LOSS_EVIDENCE_LOST, f->op);
		return;
	}
	r->kind = NAME_RECORD;
	r->at_ns = f->start_ns;
	r->handle = f->arg1;
	r->from = f->arg0;
	r->tgid = tgid;
	r->length = 0;
	if (f->more) {
		r->length = bpf_probe_read_user_str(r->name, sizeof(r->name), (void *)f->more);
		bpf_map_delete_elem(&named, &key); /* a handle may be another kernel's now */
	} else {
		bpf_map_update_elem(&named, &key, &one, BPF_ANY);
	}
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline void tell_communicator(const struct thread *t, const struct frame *f, struct task_struct *task)
{
	const struct new_communicator *c = &t->communicator;
	struct context_key key = {.context = f->arg1, .tgid = task->tgid};
	struct communicator_record *r;
	__u32 none = 0;

	if (!f->arg1) /* a rank that a split leaves out */
		return;
	if (bpf_map_update_elem(&transfers, &key, &none, BPF_ANY))
		count_loss(LOSS_EVIDENCE_LOST, f->op);
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_loss(LOSS_EVIDENCE_LOST, f->op);
		return;
	}
	r->at_ns = f->start_ns;
	r->communicator = f->arg1;
	r->id = c->id;
	r->parent = c->parent;
	r->tgid = task->tgid;
	r->tid = task->pid;
	r->ranks = c->ranks;
	r->rank = c->rank;
	r->color = c->color;
	r->key = c->key;
	r->op = f->op;
	r->device = t->device;
	__builtin_memset(r->unused, 0, sizeof(r->unused));
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* More devices no machine has. */
#define MOST_DEVICES 16

/* All communicators of one process, rank by rank. */
static __always_inline void tell_all(struct thread *t, struct frame *f, struct task_struct *task)
{
	__u64 from = f->arg1;
	__u32 ranks = t->communicator.ranks;

	for (__u32 i = 0; i < MOST_DEVICES && i < ranks; i++) {
		if (!read_user(&f->arg1, sizeof(f->arg1), from + 8 * i, f->op))
			break;
		t->communicator.rank = i;
		tell_communicator(t, f, task);
	}
	f->arg1 = 0;
}

static __always_inline void read_rare_at_return(struct thread *t, struct frame *f, struct task_struct *task, __s32 ret)
{
	__u32 shape = COOKIE_SHAPE(f->cookie);

	switch (shape) {
	case ALLOC_OPAQUE:
	case NEW_HANDLE:
	case NAMED:
		if (read_result(f, ret != 0) && shape == NAMED)
			tell_name(t, f, task->tgid);
		break;
	case COMMUNICATOR:
		if (COOKIE_EXTRA(f->cookie) == 3) {
			if (!ret)
				tell_all(t, f, task);
			else
				f->arg1 = 0;
			break;
		}
		if (read_result(f, ret != 0 && ret != NCCL_IN_PROGRESS))
			tell_communicator(t, f, task);
		break;
	}
}
