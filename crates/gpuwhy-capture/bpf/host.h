/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Memory and I/O: what the kernel does for a traced thread. */
#pragma once

#define REQUEST_OP_MASK 0xff
#define REQUEST_WRITE 1 /* odd operations move data to the device */
#define DEVICE_WRITE (1ULL << 32)
#define AF_INET6 10
#define CONTENTION_SPINS 1

/* A request to a disk that a traced thread made, until it is done. */
struct request_start {
	__u64 start_ns;
	__u64 done_bytes;
	__u32 tgid;
	__u32 tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct request_start);
} requests SEC(".maps");

static __always_inline struct watched *watched_current(struct task_struct **current)
{
	*current = bpf_get_current_task_btf();
	return host_end_ns ? NULL : watched_of(*current);
}

static __always_inline int request_begins(struct request *request)
{
	struct task_struct *current;
	__u64 key = (__u64)request;
	struct request_start start = {};

	if (!watched_current(&current))
		return 0;
	start.start_ns = bpf_ktime_get_ns();
	start.tgid = current->tgid;
	start.tid = current->pid;
	if (bpf_map_update_elem(&requests, &key, &start, BPF_ANY))
		count_loss(LOSS_MAP_FULL, kernel_ops + OP_BLOCK_IO);
	return 0;
}

/* A request may be done in several parts: `bytes` is this one's. */
static __always_inline int request_ends(struct request *request, __s32 error, __u32 bytes)
{
	__u64 key = (__u64)request, device;
	struct request_start *start = bpf_map_lookup_elem(&requests, &key);
	struct gendisk *disk;

	if (!start)
		return 0;
	start->done_bytes += bytes;
	if (request->__data_len > bytes)
		return 0;
	disk = BPF_CORE_READ(request, q, disk);
	device = (__u64)BPF_CORE_READ(disk, major) << 20 | BPF_CORE_READ(disk, first_minor);
	if ((request->cmd_flags & REQUEST_OP_MASK) & REQUEST_WRITE)
		device |= DEVICE_WRITE;
	tell(OP_BLOCK_IO, start->start_ns, bpf_ktime_get_ns(), start->tgid, start->tid, start->done_bytes, device, error);
	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/* Waits for the lock of the thread's own address space. Spinlocks also arrive here: sort them out first. */
static __always_inline int contention_begins(__u64 lock, __u32 flags)
{
	struct task_struct *current;
	struct watched *w;

	if (flags & CONTENTION_SPINS)
		return 0;
	w = watched_current(&current);
	if (!w || !current->mm || lock != (__u64)current->mm + bpf_core_field_offset(struct mm_struct, mmap_lock))
		return 0;
	w->lock_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int contention_ends(__u64 lock)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	if (!w || !w->lock_ns || !current->mm ||
	    lock != (__u64)current->mm + bpf_core_field_offset(struct mm_struct, mmap_lock))
		return 0;
	tell(OP_MMAP_LOCK, w->lock_ns, bpf_ktime_get_ns(), current->tgid, current->pid, 0, 0, 0);
	w->lock_ns = 0;
	return 0;
}

static __always_inline int reclaim_begins(void)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	if (w)
		w->reclaim_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int reclaim_ends(__u64 pages)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	if (w && w->reclaim_ns) {
		tell(OP_DIRECT_RECLAIM, w->reclaim_ns, bpf_ktime_get_ns(), current->tgid, current->pid,
		     pages << page_shift, 0, 0);
		w->reclaim_ns = 0;
	}
	return 0;
}

static __always_inline int compaction_begins(void)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	if (w)
		w->compact_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int compaction_ends(void)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	if (w && w->compact_ns) {
		tell(OP_COMPACTION, w->compact_ns, bpf_ktime_get_ns(), current->tgid, current->pid, 0, 0, 0);
		w->compact_ns = 0;
	}
	return 0;
}

static __always_inline int pages_given(struct page *page, __u32 order)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);

	/* Allocations in an interrupt are not for the interrupted thread. */
	if (!w || !page || cpu_at(bpf_get_smp_processor_id())->interrupts)
		return 0;
	w->page_allocations++;
	w->page_bytes += 1ULL << (page_shift + (order & 15));
	return 0;
}

/* A page fault that needed the disk is done. Its start is taken as the first wait of the thread in it. */
static __always_inline int major_fault_ends(__u64 address)
{
	struct task_struct *current;
	struct watched *w = watched_current(&current);
	const struct pt_regs *regs;
	__u64 now, start;

	if (!w)
		return 0;
	regs = (const struct pt_regs *)bpf_task_pt_regs(current);
	now = start = bpf_ktime_get_ns();
	if (w->fault_ip && w->fault_ip == user_ip(regs))
		start = w->fault_ns;
	w->fault_ip = 0;
	tell(OP_MAJOR_FAULT, start, now, current->tgid, current->pid, address, 0, 0);
	return 0;
}

/* Mostly from a timer interrupt, in no process's context: gpuwhy finds the owner by the socket's inode. */
static __always_inline int retransmitted(const struct sock *sock)
{
	struct record *r;
	__u16 port;

	if (host_end_ns)
		return 0;
	r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);
	if (!r) {
		count_loss(LOSS_RING_FULL, kernel_ops + OP_TCP_RETRANSMIT);
		return 0;
	}
	port = BPF_CORE_READ(sock, __sk_common.skc_dport);
	__builtin_memset(r, 0, sizeof(*r));
	r->start_ns = bpf_ktime_get_ns();
	r->arg0 = (__u16)(port << 8 | port >> 8);
	r->arg1 = BPF_CORE_READ(sock, __sk_common.skc_family) == AF_INET6 ? 6 : 4;
	r->stream = BPF_CORE_READ(sock, sk_socket, file, f_inode, i_ino);
	r->op = kernel_ops + OP_TCP_RETRANSMIT;
	r->device = DEVICE_UNKNOWN;
	r->flags = FLAG_ARG0 | FLAG_ARG1 | FLAG_STREAM;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Of files, anonymous and shared; a few pages that CPUs have not added up yet are missing. */
static __always_inline __u64 resident_pages(struct mm_struct *mm)
{
	if (!mm || !bpf_core_field_exists(mm->rss_stat[3].count))
		return 0;
	return BPF_CORE_READ(mm, rss_stat[0].count) + BPF_CORE_READ(mm, rss_stat[1].count) +
	       BPF_CORE_READ(mm, rss_stat[3].count);
}
