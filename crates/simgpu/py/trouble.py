#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training job with exactly one known trouble (or two, or none), on the simulated CUDA stack.

Without a trouble the GPU is the bottleneck: the main thread launches one step while the GPU still works on the one
before. `trouble_options.py` lists the troubles. What happens outside of the job, a process on the same core, a
cgroup's quota or a second process on the GPU, is up to whoever starts it (`bystander.py`, `score/`).

At its end the job writes what it knows of itself to the file $TROUBLE_TRUTH: the lines to blame and some counts.
"""

import collections
import ctypes
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import time

import simcuda
import trouble_data
import trouble_host
import trouble_options

ALLOCATIONS = 4  # in one step, straight from the driver
ALLOCATION_BYTES = 8 << 20
SECOND_US = 5000  # of a kernel of the second process on the GPU


class Trainer:
    """The training loop."""

    def __init__(self, options, loader):
        self.options = options
        self.loader = loader
        self.steps = 0
        self.stopped = False
        self.cuda = simcuda.Cuda()
        self.cuda.set_device(0)
        self.streams = [self.cuda.stream() for _ in range(options.streams)]
        names = ("gemm", "softmax", "gelu", "adam")
        self.kernels = [self.cuda.kernel(name, options.kernel_us) for name in names]
        self.on_host = self.cuda.pinned(trouble_data.BATCH_BYTES)
        self.on_device = self.cuda.alloc(trouble_data.BATCH_BYTES)
        self.pageable = ctypes.create_string_buffer(options.copy_mb << 20) if self.has("pageable") else None
        self.pending = collections.deque()
        self.table = trouble_host.Table(options.file, options.hard_ms) if self.has("memory") else None
        self.others = None
        if self.has("lock"):
            self.others = trouble_host.LockHolders(options.threads, options.hard_ms)
        elif self.has("gil"):
            self.others = trouble_host.Computers(options.threads)

    def has(self, trouble):
        return trouble in self.options.trouble

    # ---- one step ----

    def before_step(self):
        """The main thread's extra work: nothing, or its trouble."""
        if self.has("host_sleep"):
            self.wait_for_all()
            trouble_host.take_a_nap(self.options.hard_ms)
        if self.has("queued_sleep") and self.pending:
            trouble_host.take_a_nap(self.options.hard_ms)
        if self.has("lock"):
            self.others.wait()
        if self.table:
            self.table.look_up()
        if self.has("pageable"):
            self.copy_pageable()
        if self.has("alloc_churn"):
            self.allocate_and_free()

    def copy_batch(self, batch):
        ctypes.memmove(self.on_host, batch, len(batch))
        self.cuda.copy_to_device(self.on_device, self.on_host, len(batch), self.streams[0])

    def copy_pageable(self):
        """Copies memory that is not page-locked."""
        self.cuda.copy_to_device(self.on_device, self.pageable, len(self.pageable), self.streams[0])

    def allocate_and_free(self):
        """Allocates and frees driver memory in every step."""
        taken = [self.cuda.malloc(ALLOCATION_BYTES) for _ in range(ALLOCATIONS)]
        for pointer in taken:
            self.cuda.free_device(pointer)

    def launch_all(self):
        """The step's kernels, in turns on the streams."""
        for number in range(self.options.kernels):
            trouble_host.prepare_launch(self.options.host_us)
            if self.has("gil"):
                self.others.wait()
            kernel = self.kernels[number % len(self.kernels)]
            self.cuda.launch(kernel, self.streams[number % len(self.streams)])

    def launch_and_wait(self):
        """The step's kernels, each waited for before the next."""
        for number in range(self.options.kernels):
            trouble_host.prepare_launch(self.options.host_us)
            kernel = self.kernels[number % len(self.kernels)]
            stream = self.streams[number % len(self.streams)]
            self.cuda.launch(kernel, stream)
            self.cuda.synchronize(stream)

    def wait_for_all(self):
        for stream in self.streams:
            self.cuda.synchronize(stream)

    def end_step(self):
        """Waits as the options say: so the queue holds a step or two, not more."""
        if self.options.wait == "never":
            return
        if self.options.wait == "stream":
            self.wait_for_all()
            return
        events = [self.cuda.event() for _ in self.streams] if len(self.pending) < 2 else self.pending.popleft()
        for event, stream in zip(events, self.streams, strict=True):
            self.cuda.record(event, stream)
        self.pending.append(events)
        if len(self.pending) == 2:
            for event in self.pending[0]:
                self.cuda.wait_for(event)

    def step(self, batch):
        self.before_step()
        self.copy_batch(batch)
        if self.has("sync_each"):
            self.launch_and_wait()
        else:
            self.launch_all()
        self.end_step()

    # ---- the whole ----

    def stop(self, _signal, _frame):
        self.stopped = True

    def run(self):
        end = time.monotonic() + self.options.seconds
        while not self.stopped and time.monotonic() < end:
            batch = self.loader.next_batch()
            if batch is None:
                break
            self.step(batch)
            self.steps += 1

    def close(self):
        if self.others:
            self.others.stop()
        self.cuda.device_synchronize()


def lines_of(*functions):
    """Where functions stand: file, first and last line."""
    found = []
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        found.append([os.path.basename(inspect.getsourcefile(function)), first, first + len(lines) - 1])
    return found


def blamed_lines(trouble):
    """The lines that are at the root of a trouble; a wrapper of the library counts with its caller."""
    cuda, host, data = simcuda.Cuda, trouble_host, trouble_data
    return {
        "worker_cpu": lambda: lines_of(data.decode),
        "worker_disk": lambda: lines_of(data.read_from_disk),
        "worker_sleep": lambda: lines_of(data.fetch_slowly),
        "alloc_churn": lambda: lines_of(Trainer.allocate_and_free, cuda.malloc, cuda.free_device),
        "fork_storm": lambda: lines_of(data.ShortLivedLoader.next_batch),
        "gil": lambda: lines_of(host.Computers.compute, host.Computers.wait),
        "host_sleep": lambda: lines_of(host.take_a_nap),
        "host_work": lambda: lines_of(host.prepare_launch),
        "lock": lambda: lines_of(host.LockHolders.hold, host.LockHolders.wait),
        "memory": lambda: lines_of(host.Table.look_up),
        "pageable": lambda: lines_of(Trainer.copy_pageable, cuda.copy_to_device),
        "sync_each": lambda: lines_of(Trainer.launch_and_wait, cuda.synchronize),
    }.get(trouble, list)()


def tell_truth(trainer):
    """Writes what the job measured about itself."""
    path = os.environ.get("TROUBLE_TRUTH")
    if not path:
        return
    options = trainer.options
    usage = resource.getrusage(resource.RUSAGE_SELF)
    truth = {
        "pid": os.getpid(),
        "trouble": options.trouble,
        "lines": {trouble: blamed_lines(trouble) for trouble in options.trouble},
        "steps": trainer.steps,
        "major_faults": usage.ru_majflt,
        "options": vars(options),
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(truth, file, indent=1)


def start_second(options):
    """A second process on the same GPU, if --second is given."""
    if not options.second:
        return None
    folder = os.path.dirname(os.path.abspath(__file__))
    program = os.path.join(folder, "bystander.py")
    return subprocess.Popen([sys.executable, program, "--name", options.second, "--gpu-us", str(SECOND_US)])


def main():
    options = trouble_options.parse()
    trouble_data.name_process(options.name)
    trouble_data.wake_promptly()
    for folder in options.cgroup:
        with open(os.path.join(folder, "cgroup.procs"), "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    short_lived = "fork_storm" in options.trouble
    loader = (trouble_data.ShortLivedLoader if short_lived else trouble_data.Loader)(options)
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    second = start_second(options)
    try:
        trainer = Trainer(options, loader)
        signal.signal(signal.SIGTERM, trainer.stop)
        trainer.run()
        trainer.close()
        tell_truth(trainer)
    finally:
        loader.close()
        if second:
            second.terminate()
            second.wait()


if __name__ == "__main__":
    main()
