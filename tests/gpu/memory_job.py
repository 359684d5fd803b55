# SPDX-License-Identifier: Apache-2.0
"""Jobs that write down PyTorch's own memory figures. Usage: memory_job.py exact|oom|killed OUT.json

OUT.json is written before the job ends or is killed.
"""
import json
import os
import sys
import time

import torch

what, out = sys.argv[1], sys.argv[2]
points = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def say(**more):
    said = {
        "checkpoints": points,
        "peak": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        **more,
    }
    with open(out + ".new", "w") as file:
        json.dump(said, file)
    os.rename(out + ".new", out)


def checkpoint(name):
    """Notes PyTorch's figures at a time around which nothing is allocated."""
    torch.cuda.synchronize()
    time.sleep(0.005)
    at = now()
    points.append(
        {"what": name, "at_ns": at, "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    )
    time.sleep(0.005)


def exact():
    """Random sizes, emptied caches, and peaks between the checkpoints."""
    generator = torch.Generator().manual_seed(3)
    held = {}
    for step in range(60):
        size = int(torch.randint(1, 40_000_000, (1,), generator=generator))
        held[step] = torch.empty(size, dtype=torch.uint8, device="cuda")
        spike = torch.empty(size * 3, dtype=torch.uint8, device="cuda")
        del spike
        if step % 3 == 2:
            held.pop(next(iter(held)))
        if step % 10 == 9:
            checkpoint(f"step {step}")
            torch.cuda.empty_cache()
            checkpoint(f"step {step}, cache emptied")
    held.clear()
    checkpoint("all freed")
    say()


def oom():
    """Allocates until memory runs out."""
    kept = []
    try:
        while True:
            kept.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))  # LEAK oom
            torch.cuda.synchronize()
            time.sleep(0.02)
    except torch.OutOfMemoryError:
        say(asked=2 << 30, at_ns=now())
        raise


def killed():
    """Works, then waits to be killed."""
    kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]  # LEAK killed
    for step in range(100):
        x = torch.randn(1024, 1024, device="cuda")
        (x @ x).sum().item()
    del x
    say(at_ns=now(), pid=os.getpid(), kept=len(kept))
    while True:
        time.sleep(0.05)


{"exact": exact, "oom": oom, "killed": killed}[what]()
