# SPDX-License-Identifier: Apache-2.0
"""Compares gpuwhy's counts with torch.profiler's for the same window of the same run.

Counts must be equal for each kind of call, not for each name. Names differ for two reasons although nothing is
missing. cuBLAS and cuDNN contain a stripped CUDA runtime, which cannot be probed: the profiler names their launches
cudaLaunchKernel, while gpuwhy records them at the driver as cuLaunchKernel. And the profiler's driver records cover
launches only, not calls such as cuMemCreate.
"""

import collections
import json
import re
import sqlite3
import sys

KINDS = [
    ("launch", r"cu(da)?(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)"),
    ("copy", r"cu(da)?Memcpy"),
    ("fill", r"cu(da)?Memset"),
    ("synchronise", r"cu(da)?(Stream|Device|Event|Ctx)Synchronize"),
    ("allocate", r"cuda(Malloc|HostAlloc)|cuMem(Host)?Alloc"),
    ("free", r"cudaFree|cuMemFree"),
]


def gpuwhy_counts(db, begin_ns, end_ns):
    connection = sqlite3.connect(f"file:{db}?mode=ro", uri=True)
    origin = connection.execute("SELECT start_monotonic_ns FROM sessions").fetchone()[0]
    sql = "SELECT function, COUNT(*) FROM events WHERE timestamp BETWEEN ? AND ? GROUP BY function"
    counts = collections.Counter(dict(connection.execute(sql, (begin_ns - origin, end_ns - origin))))
    lost = connection.execute("SELECT events_lost FROM sessions").fetchone()[0]
    return counts, lost


def main():
    db, window_file = sys.argv[1:3]
    with open(window_file) as file:
        window = json.load(file)
    ours, lost = gpuwhy_counts(db, window["begin_ns"], window["end_ns"])
    theirs = window["counts"]
    print(f"{'function':<36} {'gpuwhy':>8} {'profiler':>9}")
    for name in sorted(set(ours) | set(theirs)):
        print(f"{name:<36} {ours.get(name, 0):>8} {theirs.get(name, 0):>9}")
    wrong = 0
    print(f"\n{'kind of call':<36} {'gpuwhy':>8} {'profiler':>9}")
    for kind, pattern in KINDS:
        a, b = (sum(n for name, n in counts.items() if re.match(pattern, name)) for counts in (ours, theirs))
        wrong += a != b
        print(f"{kind:<36} {a:>8} {b:>9}  {'equal' if a == b else 'DIFFERS'}")
    print(f"lost {lost}")
    sys.exit(1 if wrong or lost else 0)


main()
