#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small training script. From every step it keeps nothing, a tensor (the leak), or a number (the fix)."""

import argparse
import time

import torch
from torch import nn

BATCH, WIDTH, LAYERS = 512, 1024, 4


def build_model():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers).to("cuda")


def next_batch(load_ms):
    """Stands for a data loader."""
    time.sleep(load_ms / 1000)
    return torch.randn(BATCH, WIDTH, device="cuda"), torch.randn(BATCH, WIDTH, device="cuda")


def train(args):
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    history = []
    for step in range(1, args.steps + 1):
        inputs, targets = next_batch(args.load_ms)
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if args.remember == "tensors":
            history.append(outputs.detach().clone())  # the leak: a tensor on the GPU for every step
        elif args.remember == "numbers":
            history.append(loss.item())  # the fix: a number on the host
        if step % 20 == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


def limit_memory(megabytes):
    """Makes memory run out soon, without disturbing other users of the GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, megabytes * 2**20 / total))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--remember", choices=("nothing", "tensors", "numbers"), default="nothing")
    parser.add_argument("--load-ms", type=float, default=10, help="time to load a batch, ms")
    parser.add_argument("--limit-mb", type=int, help="limit PyTorch to this much memory, MB")
    args = parser.parse_args()
    if args.limit_mb:
        limit_memory(args.limit_mb)
    train(args)


if __name__ == "__main__":
    main()
