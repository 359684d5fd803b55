# SPDX-License-Identifier: Apache-2.0
"""A PyTorch job whose CUDA calls torch.profiler and gpuwhy both count.

Trains a small model for a fixed number of steps and notes the time range on CLOCK_MONOTONIC. Each step has new
allocations, copies in both directions, fills and synchronisations. Writes the time range and, with --profile, the
profiler's counts of CUDA calls to a JSON file.
"""

import argparse
import collections
import gzip
import json
import os
import tempfile
import time

import torch


def step(model, optimizer, host_x, host_y, loss_fn, i):
    x = host_x.to("cuda", non_blocking=True)
    y = host_y.to("cuda", non_blocking=True)
    optimizer.zero_grad(set_to_none=False)
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    value = loss.item()
    if i % 10 == 0:
        # Bypasses the allocator's cache: a new segment each time, freed at once.
        keep = torch.empty((64 + i) << 20, dtype=torch.uint8, device="cuda")
        keep.fill_(1)
        torch.cuda.synchronize()
        del keep
        torch.cuda.empty_cache()
    return value


def build():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten()]
    layers += [torch.nn.Linear(32 * 32 * 32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    return torch.nn.Sequential(*layers).cuda()


def profiled_counts(prof, begin_unix, end_unix):
    """Counts of CUDA API calls by name inside the window, from the trace the profiler exports."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json.gz")
        prof.export_chrome_trace(path)
        with gzip.open(path, "rt") as file:
            trace = json.load(file)
    base = trace.get("baseTimeNanoseconds", 0)
    calls = (e for e in trace["traceEvents"] if e.get("cat") in ("cuda_runtime", "cuda_driver"))
    inside = (e for e in calls if begin_unix <= base + float(e["ts"]) * 1000 <= end_unix)
    return dict(collections.Counter(e["name"] for e in inside))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--graph", action="store_true", help="also capture and replay a CUDA graph")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    loss_fn = torch.nn.CrossEntropyLoss()
    host_x = torch.randn(64, 3, 32, 32).pin_memory()
    host_y = torch.randint(0, 10, (64,)).pin_memory()
    for i in range(1, 6):
        step(model, optimizer, host_x, host_y, loss_fn, i)
    graph = None
    if args.graph:
        static = torch.zeros(1 << 16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static += 1
    torch.cuda.synchronize()

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    prof = torch.profiler.profile(activities=activities) if args.profile else None
    if prof:
        prof.__enter__()
    begin, begin_unix = time.monotonic_ns(), time.time_ns()
    for i in range(args.steps):
        step(model, optimizer, host_x, host_y, loss_fn, i)
        if graph:
            graph.replay()
    end, end_unix = time.monotonic_ns(), time.time_ns()
    if prof:
        prof.__exit__(None, None, None)
    result = {"begin_ns": begin, "end_ns": end, "steps": args.steps, "seconds": (end - begin) / 1e9}
    result["torch"] = torch.__version__
    result["counts"] = profiled_counts(prof, begin_unix, end_unix) if prof else {}
    with open(args.out, "w") as file:
        json.dump(result, file)


main()
