# SPDX-License-Identifier: Apache-2.0
"""A training loop. On SIGTERM it prints the CLOCK_MONOTONIC time at which each step ended. Usage: overhead_job.py launch|gpu"""
import signal
import sys
import time

import torch

wide, layers, batch = (256, 40, 64) if sys.argv[1] == "launch" else (8192, 8, 8192)
net = torch.nn.Sequential(*[torch.nn.Linear(wide, wide) for _ in range(layers)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
x = torch.randn(batch, wide, device="cuda")
times, stopped = [], []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for step in range(20):
    net(x).square().mean().backward()
torch.cuda.synchronize()
print("ready", flush=True)
while not stopped:
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    times.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
print(*times)
