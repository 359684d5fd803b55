#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop with exactly known memory behaviour, on the simulated CUDA stack.

  healthy      every step frees its allocations
  leak         from step --onset on, every step keeps a clone in a list
  slow_leak    every step keeps a thousandth of the model, in noise from the same line
  cache        keeps one tensor a step until the cache is full
  renewed      the same, then replaces the oldest
  warmup       the first steps keep fewer and fewer tensors
  sawtooth     keeps one tensor a step and drops all of them every --every steps
  churn        empties the allocator's cache in every step
  oom          leaks until memory runs out, and ends with that error
  caught       asks once for more memory than there is, and goes on
  killed       leaks, then kills itself with SIGKILL

The last line it prints is JSON: what it did, and at which lines. Sizes are multiples of 512 bytes below 1 MiB, or of 2 MiB
from 10 MiB on, which the allocator does not round.
"""

import argparse
import collections
import json
import os
import random
import signal
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("SIMGPU_LIB", FOLDER)
# Lines in site-packages do not count as the program's own.
sys.path.insert(0, os.path.join(FOLDER, "site-packages"))

import simtorch  # noqa: E402

KIB = 1024
MIB = 1024 * KIB
MODEL = [768 * KIB] * 64  # parameters
BUFFER = 20 * MIB
PIECE = 512 * KIB
THOUSANDTH = sum(MODEL) // 1000 // simtorch.UNIT * simtorch.UNIT
CACHE = 40
KERNELS = 4


class Job:
    """The loop and the tensors it keeps."""

    def __init__(self, options):
        self.options = options
        self.cuda = simtorch.cuda
        self.cuda.set_device(0)
        self.stream = self.cuda.stream()
        self.kernels = [self.cuda.kernel(name, options.kernel_us) for name in ("gemm", "gelu", "softmax", "adam")]
        self.random = random.Random(options.seed)
        self.model = [simtorch.empty(size) for size in MODEL]  # LINE model
        self.history = []
        self.queue = collections.deque()
        self.young = []
        self.kept_bytes = 0

    # ---- what a step keeps ----

    def keep_clone(self, loss):
        self.history.append(loss.detach().clone())  # LINE leak
        self.kept_bytes += loss.size

    def keep_a_thousandth(self):
        """One line allocates noise that lives for a few steps, and a little that stays."""
        sizes = [THOUSANDTH] + [self.random.randrange(1, 2047) * simtorch.UNIT for _ in range(self.random.randrange(12))]
        made = [simtorch.empty(size) for size in sizes]  # LINE slow_leak
        self.history.append(made[0])
        self.kept_bytes += THOUSANDTH
        self.young = [(left - 1, tensor) for left, tensor in self.young if left > 1]
        self.young += [(self.random.randrange(1, 5), tensor) for tensor in made[1:]]

    def fill_cache(self):
        if len(self.queue) < CACHE:
            self.queue.append(simtorch.empty(PIECE))  # LINE cache

    def renew_cache(self):
        self.queue.append(simtorch.empty(PIECE))  # LINE renewed
        if len(self.queue) > CACHE:
            self.queue.popleft()

    def warm_up(self, step):
        for _ in range(max(0, 12 - step)):
            self.queue.append(simtorch.empty(PIECE))  # LINE warmup

    def grow_and_drop(self, step):
        if step % self.options.every == 0:
            self.queue.clear()
        self.queue.append(simtorch.empty(PIECE))  # LINE sawtooth

    def keep(self, step, loss):
        mode = self.options.mode
        if mode in ("leak", "oom", "killed") and step >= self.options.onset:
            self.keep_clone(loss)
        elif mode == "slow_leak":
            self.keep_a_thousandth()
        elif mode == "cache":
            self.fill_cache()
        elif mode == "renewed":
            self.renew_cache()
        elif mode == "warmup":
            self.warm_up(step)
        elif mode == "sawtooth":
            self.grow_and_drop(step)
        elif mode == "churn":
            self.cuda.empty_cache()  # LINE churn
        elif mode == "caught" and step == self.options.onset:
            self.ask_for_too_much()

    def ask_for_too_much(self):
        try:
            simtorch.empty(1 << 40)  # LINE caught
        except simtorch.OutOfMemoryError:
            pass

    # ---- a step ----

    def forward(self):
        hidden = [simtorch.empty(BUFFER), simtorch.empty(BUFFER)]  # LINE forward
        for number in range(KERNELS):
            self.cuda.launch(self.kernels[number % len(self.kernels)], self.stream)
        return hidden

    def backward(self, hidden):
        gradients = [simtorch.empty(size) for size in MODEL[:8]]  # LINE backward
        hidden.clear()
        for number in range(2 * KERNELS):
            self.cuda.launch(self.kernels[number % len(self.kernels)], self.stream)
        return gradients

    def step(self, number):
        hidden = self.forward()
        loss = simtorch.empty(PIECE)
        self.backward(hidden)
        self.keep(number, loss)
        if self.options.step_ms:
            time.sleep(self.options.step_ms / 1000)
        self.cuda.synchronize(self.stream)

    def run(self):
        """Steps are counted from 1."""
        for number in range(1, self.options.steps + 1):
            self.step(number)
            if self.options.until and os.path.exists(self.options.until):
                return number
            if self.options.mode == "killed" and number == self.options.steps:
                self.tell(number)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.options.steps

    def tell(self, steps):
        """Prints what happened: a sentence for people, JSON for tests."""
        if self.options.words:
            end = "done: %d steps" % steps if steps else "memory ran out"
            print("%s, %d MB kept" % (end, self.kept_bytes // 10**6), flush=True)
            return
        told = {
            "pid": os.getpid(),
            "mode": self.options.mode,
            "steps": steps,
            "onset": self.options.onset,
            "bytes_per_step": THOUSANDTH if self.options.mode == "slow_leak" else PIECE,
            "kept_bytes": self.kept_bytes,
            "lines": lines(),
        }
        print(json.dumps(told), flush=True)


def lines():
    """The lines marked in this file."""
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        marked = [(text.rsplit("# LINE ", 1), number) for number, text in enumerate(file, 1) if "# LINE " in text]
    return {parts[1].strip(): number for parts, number in marked if '"' not in parts[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--onset", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--kernel-us", type=float, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", metavar="FILE", help="end after the step in which this file exists")
    parser.add_argument("--words", action="store_true", help="print the result as a sentence, not as JSON")
    parser.add_argument("--hold", action="store_true", help="once the model exists, print `ready` and wait for a line")
    options = parser.parse_args()
    job = Job(options)
    if options.hold:
        print("ready %d" % os.getpid(), flush=True)
        sys.stdin.readline()
    try:
        steps = job.run()
    except simtorch.OutOfMemoryError:
        job.tell(0)
        if options.words:
            sys.exit("simtorch.OutOfMemoryError: the GPU ran out of memory")
        raise
    job.tell(steps)


if __name__ == "__main__":
    main()
