/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What tracing costs, counted where it is spent. */
#pragma once

static __always_inline void count_trap(__u32 op, bool followed)
{
	__u32 key = op & (LOSS_OPS - 1);
	struct traps *n = bpf_map_lookup_elem(&traps, &key);

	if (!n)
		return;
	n->entered++;
	n->followed += followed;
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
