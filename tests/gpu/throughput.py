# SPDX-License-Identifier: Apache-2.0
"""A launch-bound PyTorch loop. Prints the microseconds per launch, best of several rounds."""

import os
import time

import torch

ROUNDS, LAUNCHES = int(os.environ.get("ROUNDS", 8)), 20000


def main():
    x = torch.zeros(256, device="cuda")
    for _ in range(2000):
        x.add_(1)
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / LAUNCHES)
    print(f"{best * 1e6:.3f}")


main()
