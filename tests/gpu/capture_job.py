# SPDX-License-Identifier: Apache-2.0
"""PyTorch jobs that write down their own figures, which gpuwhy's must equal.

Usage: capture_job.py memory|graphs|collectives|names OUT.json
OUT.json gets PyTorch's figures: checkpoints with CLOCK_MONOTONIC times, counters, launches of graphs, collectives.
"""
import json
import os
import random
import sys
import time

import torch

WHAT, OUT = sys.argv[1], sys.argv[2]
said = {"checkpoints": []}


def checkpoint(what):
    torch.cuda.synchronize()
    said["checkpoints"].append(
        {
            "what": what,
            "at_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "peak": torch.cuda.max_memory_allocated(),
        }
    )


def memory():
    rng = random.Random(7)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    kept = []
    checkpoint("model")
    for step in range(60):
        loss = net(torch.randn(256, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.empty(rng.randrange(1, 64 << 20), dtype=torch.uint8, device="cuda"))
        if rng.random() < 0.5:
            kept.pop(rng.randrange(len(kept)))
        if step % 10 == 9:
            checkpoint(f"step {step}")
        if step % 20 == 19:
            torch.cuda.empty_cache()
            checkpoint(f"empty_cache at {step}")
    kept.clear()
    checkpoint("all dropped")
    torch.cuda.empty_cache()
    checkpoint("emptied")
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        said["refused"] = 1 << 42
    checkpoint("end")
    stats = torch.cuda.memory_stats()
    said["stats_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    said["allocations"] = stats["allocation.all.allocated"]
    said["frees"] = stats["allocation.all.freed"]
    said["ooms"] = stats["num_ooms"]
    said["backend"] = torch.cuda.get_allocator_backend()


def graphs():
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    x = torch.randn(64, 512, device="cuda")
    said["launches"] = []
    for times in (20, 7):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        said["launches"].append(times)


def collectives():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    said["bytes"] = []
    for n in (1000, 4096, 1 << 20):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(n, dtype=dtype, device="cuda")
            torch.distributed.all_reduce(x)
            said["bytes"].append(n * x.element_size())
    torch.cuda.synchronize()
    torch.distributed.destroy_process_group()


def names():
    a = torch.randn(1024, 1024, device="cuda")
    for _ in range(50):
        torch.relu(a @ a).sum()
    torch.cuda.synchronize()


globals()[WHAT]()
with open(OUT, "w") as out:
    json.dump(said, out)
