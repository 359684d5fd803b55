/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What tracing costs, counted where it is spent. */
#pragma once

/* How closely this process's op is followed; NULL: fully. */
static __always_inline struct limit *limit_of(__u32 tgid, __u32 op)
{
	struct process_op key = {.tgid = tgid, .op = op & (LOSS_OPS - 1)};

	return limited ? bpf_map_lookup_elem(&limits, &key) : NULL;
}

/* Whether this process's calls of the op are not followed. The trap is counted: it is the process's own to pay. */
static __always_inline bool is_muted(struct limit *limit)
{
	if (!limit || limit->mode != MODE_MUTED)
		return false;
	__sync_fetch_and_add(&limit->muted, 1);
	return true;
}

/* Records may be missing, and calls inside others have none: a process must not pay for another one's, so this is counted
 * here. Where there is no room, the others' shares seem larger than they are. */
static __noinline int count_share(__u32 tgid, __u32 op, __u32 followed)
{
	struct process_op key = {.tgid = tgid, .op = op & (LOSS_OPS - 1)};
	struct share *share = bpf_map_lookup_elem(&shares, &key), first = {.entered = 1, .followed = followed};

	if (!share) {
		bpf_map_update_elem(&shares, &key, &first, BPF_NOEXIST);
		return 0;
	}
	__sync_fetch_and_add(&share->entered, 1);
	if (followed)
		__sync_fetch_and_add(&share->followed, 1);
	return 0;
}

/* One in 16. Calls come in patterns, so it must not be every 16th: multiples of the golden ratio fall evenly into all
 * sixteenths, whatever the pattern. */
static __always_inline bool counts_as_share(__u64 n)
{
	return n * 0x9e3779b97f4a7c15ULL >> 60 == 0;
}

static __always_inline struct traps *count_entry(__u32 op)
{
	__u32 key = op & (LOSS_OPS - 1);
	struct traps *n = bpf_map_lookup_elem(&traps, &key);

	if (n)
		n->entered++;
	return n;
}

static __always_inline void count_trap(__u32 tgid, __u32 op, bool followed)
{
	struct traps *n = count_entry(op);

	if (!n)
		return;
	n->followed += followed;
	if (counts_as_share(n->entered))
		count_share(tgid, op, followed);
}

/* At the end of what began at `since_ns`: every so often, how long it took. Reading the clock each time would cost as much
 * as what it tells. */
static __always_inline void time_trap(__u32 op, __u64 since_ns)
{
	__u32 key = op & (LOSS_OPS - 1);
	struct traps *n = bpf_map_lookup_elem(&traps, &key);

	if (!n || n->entered % TIME_EVERY)
		return;
	n->timed++;
	n->spent_ns += bpf_ktime_get_ns() - since_ns;
}
