#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When the simulated GPU was really busy, from its logs.

`python3 score/truth.py FOLDER` prints the share of time in which no kernel ran. All times are CLOCK_MONOTONIC ns.
crates/simgpu/c/simlog.h has the layout of the logs.
"""

import dataclasses
import pathlib
import struct
import sys

RECORD = struct.Struct("<QQ28xHBBbB14x")  # start, end, function, kind, depth, device, engine
KIND_BUSY = 2
ENGINE_COMPUTE = 0


@dataclasses.dataclass
class Work:
    """Times in which engines were busy with one process, as (start, end)."""

    kernels: list
    copies: list


def read_log(path, processes):
    """Adds the spans of one thread to those of its process."""
    raw = path.read_bytes()
    if len(raw) < 512 or raw[:8] != b"SIMLOG1\0":
        return  # its thread was killed before the header was complete
    pid, _tid, offset = struct.unpack_from("<III", raw, 8)
    (records,) = struct.unpack_from("<Q", raw, 40)
    work = processes.setdefault(pid, Work([], []))
    body = memoryview(raw)[offset : offset + records * RECORD.size]
    for start, end, _function, kind, _depth, _device, engine in RECORD.iter_unpack(body):
        if kind == KIND_BUSY:
            (work.kernels if engine == ENGINE_COMPUTE else work.copies).append((start, end))


def read(folder):
    """Work by process. Processes without kernels are left out."""
    processes = {}
    for path in sorted(pathlib.Path(folder).glob("*.simlog")):
        read_log(path, processes)
    return {pid: work for pid, work in processes.items() if work.kernels}


def union(spans):
    """Merges spans that overlap, in order."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def idle_ns(spans, begin, end):
    """How much of the time from begin to end no span covers."""
    busy = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in union(spans))
    return max(0, end - begin) - busy


@dataclasses.dataclass
class Truth:
    """The truth about one run: the work of all processes, and when the job's own work begins and ends."""

    kernels: list
    everything: list
    others: list  # kernels of other processes than the job
    first: int
    last: int

    def idle(self, begin, end):
        """Time without a kernel, and time without any work, copies included."""
        return idle_ns(self.kernels, begin, end), idle_ns(self.everything, begin, end)

    def steady_idle(self, begin=0, end=1 << 63):
        """Time without a kernel between the job's first and last work, within begin and end."""
        return idle_ns(self.kernels, max(begin, self.first), min(end, self.last))

    def share(self):
        """Share of the steady time that was idle."""
        return self.steady_idle() / max(1, self.last - self.first)

    def taken(self):
        """Time within the steady time in which kernels of other processes ran."""
        return self.last - self.first - idle_ns(self.others, self.first, self.last)


def of_job(folder, pid):
    """The truth about the job with this pid."""
    processes = read(folder)
    if pid not in processes:
        raise ValueError(f"process {pid} has no kernels in {folder}")
    kernels = [span for work in processes.values() for span in work.kernels]
    copies = [span for work in processes.values() for span in work.copies]
    others = [span for other, work in processes.items() if other != pid for span in work.kernels]
    own = processes[pid].kernels + processes[pid].copies
    first, last = min(start for start, _ in own), max(end for _, end in own)
    return Truth(union(kernels), union(kernels + copies), union(others), first, last)


def main():
    for pid in read(sys.argv[1]):
        truth = of_job(sys.argv[1], pid)
        print(f"{pid}: idle {truth.share():.1%} of {(truth.last - truth.first) / 1e9:.2f} s")


if __name__ == "__main__":
    main()
