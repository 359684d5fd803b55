# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training job with one problem, and torch.profiler's trace of a part of the run.

Usage: explain_job.py SCENARIO OUT.json [SECONDS]
OUT.json gets the time range that the profiler recorded (CLOCK_MONOTONIC ns), and the time in it in which a kernel ran.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch.profiler import ProfilerActivity, profile

SCENARIO, OUT = sys.argv[1], sys.argv[2]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 5.0


class Slow(torch.utils.data.Dataset):
    """Items that cost CPU time in the scenario `workers`."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        total = 0.0
        for n in range(60_000 if SCENARIO == "workers" else 10):
            total += n * 0.5
        return torch.full((1024,), total + i)


def model():
    wide = 512 if SCENARIO == "launch" else 4096
    layers = [torch.nn.Linear(1024, wide), torch.nn.ReLU()]
    for _ in range(6):
        layers += [torch.nn.Linear(wide, wide), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(wide, 1024)).cuda()


def trouble(net, x):
    """The planted problem, if the scenario has one here."""
    if SCENARIO == "sync":
        for layer in net:
            x = layer(x)
            torch.cuda.synchronize()
        return x
    if SCENARIO == "alloc":
        for _ in range(8):
            spare = torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
            del spare
            torch.cuda.empty_cache()
    return net(x)


def train(net, optimizer, loader, until):
    steps = 0
    while time.monotonic() < until:
        x = next(loader).cuda(non_blocking=True)
        if SCENARIO != "launch":
            # Problems of the host show only if kernels are short.
            x = x.repeat(64 if SCENARIO in ("healthy", "never", "workers") else 4, 1)
        loss = trouble(net, x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        # Otherwise a job that never waits runs far ahead of the GPU.
        if SCENARIO != "never" or steps % 16 == 0:
            loss.item()
    return steps


def kernels(path):
    """The time in which kernels and fills ran, µs, and their number."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ("kernel", "gpu_memset") and "dur" in e)
    busy, last = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, last))
        last = max(last, end)
    return busy, len(spans)


def main():
    hogs = []
    if SCENARIO == "hog":
        core = sorted(os.sched_getaffinity(0))[0]
        os.sched_setaffinity(0, {core})
        code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
        # In a session of its own.
        hogs = [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(2)]
    workers = 2
    loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=64, num_workers=workers, pin_memory=True))
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    train(net, optimizer, loader, time.monotonic() + 1)
    torch.cuda.synchronize()
    # Only training, because the profiler's effects on the job must not become findings.
    clean = [time.clock_gettime_ns(time.CLOCK_MONOTONIC)]
    steps = train(net, optimizer, loader, time.monotonic() + SECONDS)
    clean.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        window = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        steps += train(net, optimizer, loader, time.monotonic() + 2)
        torch.cuda.synchronize()
        end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        busy_us, count = kernels(file.name)
    for hog in hogs:
        hog.kill()
    truth = {"scenario": SCENARIO, "begin_ns": window, "end_ns": end, "busy_ns": int(busy_us * 1000), "kernels": count}
    with open(OUT, "w") as file:
        json.dump(truth | {"steps": steps, "clean_ns": clean}, file)


main()
