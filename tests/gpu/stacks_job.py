# SPDX-License-Identifier: Apache-2.0
"""A small PyTorch job with data workers that makes its calls from known lines and prints these lines at its end.

Usage: stacks_job.py [STEPS]
"""
import inspect
import json
import os
import sys
import time

import torch

lines = {}


def here(name):
    """Notes the line of the caller, which the run file must contain."""
    frame = inspect.currentframe().f_back
    lines[name] = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        total = 0.0
        for n in range(2000):
            total += n * 0.5
        return torch.full((256,), total + i)


def allocate(kept):
    kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda")); here("alloc")  # noqa: E702


def launch(x):
    y = torch.relu(x) * 2; here("launch")  # noqa: E702
    return y


def synchronize():
    torch.cuda.synchronize(); here("sync")  # noqa: E702


def wait_a_little():
    time.sleep(0.002); here("sleep")  # noqa: E702


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    workers = 2
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = iter(torch.utils.data.DataLoader(Numbers(), batch_size=32, num_workers=workers))
    kept, losses = [], 0.0
    begin = None
    for step in range(steps):
        if step == 10:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        batch = next(loader).cuda()
        loss = model(launch(batch)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            allocate(kept)
            losses += loss.item()
        wait_a_little()
        synchronize()
    rate = (steps - 10) / (time.perf_counter() - begin)
    print(json.dumps({"steps_per_s": rate, "lines": lines, "allocations": len(kept), "workers": workers}))


if __name__ == "__main__":
    main()
