#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times reading a large PyTorch memory snapshot: Python's pickle.load compared with gpuwhy's whole analysis.

    bench/profile_snapshot.py [--mb 100] [--runs 3] [--stacks all|python] [--keep FILE] [COMMAND ...]

COMMAND gets the file's name as its last argument; the default is `target/release/gpuwhy profile --memory-only --json`.
The script makes the file with Python's pickler, in the shape that torch.cuda.memory._dump_snapshot writes: every
allocation has its own list of frames, frames are shared, and a free shares the list of its allocation.
"""
import argparse
import gc
import os
import pickle
import random
import subprocess
import sys
import tempfile

MIB = 1 << 20


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


def make_stacks(kind, rng):
    """150 different stacks over shared frames: 10 Python frames each, and 60 C++ frames with `all`."""
    python = [
        frame(f"forward_{i}", f"/opt/venv/lib/python3.12/site-packages/torch/nn/modules/m{i % 40}.py", 10 + i)
        for i in range(400)
    ] + [frame("train_step", "/home/user/train/train.py", 40 + i) for i in range(20)]
    native = [frame(f"at::_ops::op_{i}::call(at::Tensor const&, c10::ArrayRef<long>)", "??", 0) for i in range(600)]
    stacks = []
    for _ in range(150):
        frames = rng.sample(native, 60) if kind == "all" else []
        stacks.append(frames + rng.sample(python, 10))
    return stacks


def block(address, size, state):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": []}


class Maker:
    """Makes training steps: blocks are allocated in order and freed in reverse; 2 of 200 per step stay."""

    def __init__(self, kind):
        self.rng = random.Random(7)
        self.stacks = make_stacks(kind, self.rng)
        self.trace = []
        self.time = 1_794_708_680_000_000
        self.base = 0x7F0000000000
        self.kept = []
        self.reserved = 0

    def entry(self, action, address, size, frames):
        self.time += self.rng.randrange(5, 50)
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time,
                # A new string object each time, as in PyTorch's snapshots.
                "compile_context": "".join(["N", "/A"]),
                "user_metadata": "",
                "frames": frames,
            }
        )

    def step(self):
        live = []
        for i in range(200):
            # Shapes repeat from step to step: three sizes per stack.
            stack = self.rng.randrange(len(self.stacks))
            size = 512 * (1 + (stack * 37 + self.rng.randrange(3) * 11) % 2000)
            address = self.base + (len(self.kept) + i) * 2 * MIB
            if len(self.kept) + i == self.reserved:
                self.entry("segment_alloc", address, 2 * MIB, [])
                self.reserved += 1
            frames = list(self.stacks[stack])
            self.entry("alloc", address, size, frames)
            live.append((address, size, frames))
        for address, size, frames in reversed(live[2:]):
            self.entry("free_requested", address, size, frames)
            self.entry("free_completed", address, size, frames)
        self.kept += live[:2]

    def snapshot(self, entries):
        while len(self.trace) < entries:
            self.step()
        segments = [
            {
                "device": 0,
                "address": self.base + i * 2 * MIB,
                "total_size": 2 * MIB,
                "allocated_size": size,
                "active_size": size,
                "requested_size": size,
                "stream": 0,
                "segment_type": "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    dict(block(address, size, "active_allocated"), frames=frames),
                    block(address + size, 2 * MIB - size, "inactive"),
                ],
            }
            for i, (address, size, frames) in enumerate(self.kept)
        ]
        for i in range(len(self.kept), self.reserved):
            free = [block(self.base + i * 2 * MIB, 2 * MIB, "inactive")]
            sizes = dict.fromkeys(["allocated_size", "active_size", "requested_size"], 0)
            segments.append(dict(segments[0], address=self.base + i * 2 * MIB, blocks=free, **sizes))
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
            "external_annotations": [],
        }


def write(path, megabytes, kind):
    # A short file gives the number of entries for the wanted size.
    sample = len(pickle.dumps(Maker(kind).snapshot(20_000), protocol=4))
    entries = int(20_000 * megabytes * 1e6 / sample)
    with open(path, "wb") as out:
        pickle.dump(Maker(kind).snapshot(entries), out, protocol=4)
    return entries


def time_python(path):
    """In a separate process, so that its memory can be measured."""
    code = (
        "import pickle,resource,sys,time\n"
        "t=time.perf_counter(); s=pickle.load(open(sys.argv[1],'rb')); t=time.perf_counter()-t\n"
        "print(t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True).stdout
    seconds, memory = out.split()
    return float(seconds), int(memory)


def time_command(command, path):
    """From start to exit, through a small Python, because a child counts the memory of the process that forked it."""
    code = (
        "import resource,subprocess,sys,time\n"
        "t=time.perf_counter(); r=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL)\n"
        "t=time.perf_counter()-t; r.check_returncode()\n"
        "print(t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, *command, path], check=True, capture_output=True, text=True).stdout
    seconds, memory = out.split()
    return float(seconds), int(memory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stacks", choices=["all", "python"], default="all")
    parser.add_argument("--keep", help="write the file here and keep it")
    parser.add_argument("command", nargs="*", default=["target/release/gpuwhy", "profile", "--memory-only", "--json"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or os.path.join(folder, "snapshot.pickle")
        entries = write(path, args.mb, args.stacks)
        gc.collect()
        size = os.path.getsize(path)
        print(f"{size / 1e6:.0f} MB, {entries:,} trace entries, stacks: {args.stacks}")
        python = min(time_python(path) for _ in range(args.runs))
        ours = min(time_command(args.command, path) for _ in range(args.runs))
        for name, (seconds, memory) in [("pickle.load", python), ("gpuwhy", ours)]:
            print(f"{name:<12} {seconds:7.3f} s  {size / 1e6 / seconds:7.0f} MB/s  {memory / 1e6:6.0f} MB memory")
        print(f"{python[0] / ours[0]:.1f} times faster")


if __name__ == "__main__":
    main()
