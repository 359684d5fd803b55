#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small training program on the simulated CUDA stack.

It has the shape of a real one: worker processes prepare batches, the main
process copies each to the device, runs forward, backward and an optimizer
step as many kernel launches, and reads the loss back. Scenarios:

  healthy         the GPU is the bottleneck
  dataloader      the workers are too slow, and the GPU waits for batches
  cpu-contention  for other programs on every core, which whoever starts it starts, too (bystander.py)
"""

import argparse
import ctypes
import multiprocessing
import os
import queue
import signal
import time

import simcuda

ITEMS_PER_BATCH = 16
ITEM_BYTES = 3 * 224 * 224 // 4
LAYERS = 24
ACTIVATION_BYTES = 6 << 20

# GPU milliseconds of a step: a healthy job's are long beside what the host does between steps.
GPU_MS_PER_STEP = {"healthy": 90.0, "dataloader": 30.0, "cpu-contention": 30.0}

# CPU milliseconds that a worker needs for one batch.
BATCH_MS = {"healthy": 4.0, "dataloader": 150.0, "cpu-contention": 4.0}

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def become(name):
    """Names this process, and ties its life to that of its parent."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# ---- data loading ----------------------------------------------------------


def decode_item(seed, cpu_ms):
    """Prepares one item; takes `cpu_ms` of this thread's CPU time."""
    deadline = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) + cpu_ms / 1000.0
    value = seed & 0xFFFFFFFF
    while True:
        for _ in range(200):
            value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
        if time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) >= deadline:
            break
    return bytes([value & 0xFF]) * ITEM_BYTES


def collate(items):
    """Joins items to a batch."""
    return b"".join(items)


def data_worker(number, batches, stop, batch_ms):
    """A worker process: prepares batches until told to stop."""
    become("pt_data_worker")
    seed = number
    while not stop.is_set():
        items = []
        for _ in range(ITEMS_PER_BATCH):
            seed += 1
            items.append(decode_item(seed, batch_ms / ITEMS_PER_BATCH))
        batch = collate(items)
        while not stop.is_set():
            try:
                batches.put(batch, timeout=0.2)
                break
            except queue.Full:
                continue
    batches.cancel_join_thread()


class DataLoader:
    """Worker processes and the queue of batches they fill."""

    def __init__(self, workers, batch_ms):
        context = multiprocessing.get_context("fork")
        self.stop = context.Event()
        self.batches = context.Queue(maxsize=2 * workers)
        self.processes = [
            context.Process(
                target=data_worker,
                args=(number, self.batches, self.stop, batch_ms),
                daemon=True,
            )
            for number in range(workers)
        ]
        for process in self.processes:
            process.start()

    def next_batch(self, cancelled):
        """Waits for a batch; None once `cancelled` says so."""
        while not cancelled():
            try:
                return self.batches.get(timeout=0.2)
            except queue.Empty:
                continue
        return None

    def close(self):
        """Ends the workers."""
        self.stop.set()
        for process in self.processes:
            process.terminate()
            process.join()
        self.batches.close()
        self.batches.cancel_join_thread()


# ---- the model -------------------------------------------------------------


class Layer:
    """Four kernels forward, eight backward, and one activation in between."""

    def __init__(self, cuda, stream, kernel_us):
        self.cuda = cuda
        self.stream = stream
        self.activation = None
        names = ("gemm_qkv", "softmax", "gemm_proj", "gelu")
        self.forward_kernels = [cuda.kernel(name + "_fwd", kernel_us) for name in names]
        self.backward_kernels = [
            cuda.kernel(name + suffix, kernel_us)
            for name in reversed(names)
            for suffix in ("_dgrad", "_wgrad")
        ]

    def forward(self):
        self.activation = self.cuda.alloc(ACTIVATION_BYTES)
        for kernel in self.forward_kernels:
            self.cuda.launch(kernel, self.stream)

    def backward(self):
        gradient = self.cuda.alloc(ACTIVATION_BYTES)
        for kernel in self.backward_kernels:
            self.cuda.launch(kernel, self.stream)
        self.cuda.free(gradient)
        self.cuda.free(self.activation)
        self.activation = None


class Model:
    """A stack of layers and an optimizer."""

    def __init__(self, cuda, stream, step_ms):
        self.cuda = cuda
        self.stream = stream
        kernels = LAYERS * 12 + LAYERS + 1
        kernel_us = step_ms * 1000.0 / kernels
        self.layers = [Layer(cuda, stream, kernel_us) for _ in range(LAYERS)]
        self.loss_kernel = cuda.kernel("cross_entropy", kernel_us)
        self.adam_kernel = cuda.kernel("fused_adam", kernel_us)
        self.loss_on_device = cuda.alloc(4)
        self.loss_on_host = cuda.pinned(4)

    def forward(self):
        for layer in self.layers:
            layer.forward()
        self.cuda.launch(self.loss_kernel, self.stream)

    def backward(self):
        for layer in reversed(self.layers):
            layer.backward()

    def clip_gradients(self):
        """Reads the gradients' norm on the host: the GPU idles meanwhile."""
        self.read_scalar()

    def step(self):
        for _ in self.layers:
            self.cuda.launch(self.adam_kernel, self.stream)

    def read_loss(self):
        self.read_scalar()

    def read_scalar(self):
        """Copies a number to the host and waits for it, as tensor.item() does."""
        self.cuda.copy_to_host(self.loss_on_host, self.loss_on_device, 4, self.stream)
        self.cuda.synchronize(self.stream)


# ---- training --------------------------------------------------------------


class Interrupt:
    """A signal handler that only takes note."""

    def __init__(self):
        self.seen = False
        signal.signal(signal.SIGINT, self)
        signal.signal(signal.SIGTERM, self)

    def __call__(self, _signal, _frame):
        self.seen = True


class Trainer:
    """The training loop."""

    def __init__(self, options, loader, interrupt):
        self.options = options
        self.loader = loader
        self.interrupt = interrupt
        self.started = time.monotonic()
        self.done = 0
        self.cuda = simcuda.Cuda()
        self.cuda.set_device(0)
        self.stream = self.cuda.stream()
        self.model = Model(self.cuda, self.stream, GPU_MS_PER_STEP[options.scenario])
        self.batch_bytes = ITEMS_PER_BATCH * ITEM_BYTES
        self.batch_on_host = self.cuda.pinned(self.batch_bytes)
        self.batch_on_device = self.cuda.alloc(self.batch_bytes)

    def cancelled(self):
        seconds = self.options.seconds
        return self.interrupt.seen or (
            seconds > 0 and time.monotonic() - self.started >= seconds
        )

    def copy_batch(self, batch):
        ctypes.memmove(self.batch_on_host, batch, self.batch_bytes)
        self.cuda.copy_to_device(
            self.batch_on_device, self.batch_on_host, self.batch_bytes, self.stream
        )

    def train_step(self, batch):
        self.copy_batch(batch)
        self.model.forward()
        self.model.backward()
        self.model.clip_gradients()
        self.model.step()
        self.model.read_loss()

    def run(self):
        last_print, last_done = self.started, 0
        while not self.options.steps or self.done < self.options.steps:
            batch = self.loader.next_batch(self.cancelled)
            if batch is None:
                break
            self.train_step(batch)
            self.done += 1
            now = time.monotonic()
            if now - last_print >= self.options.print_every:
                rate = (self.done - last_done) / (now - last_print)
                print("step %d: %.1f steps/s" % (self.done, rate), flush=True)
                last_print, last_done = now, self.done
        elapsed = max(time.monotonic() - self.started, 1e-9)
        print(
            "done: %d steps in %.1f s, %.1f steps/s"
            % (self.done, elapsed, self.done / elapsed),
            flush=True,
        )

    def close(self):
        self.cuda.device_synchronize()
        self.cuda.free(self.batch_on_device)
        self.cuda.free(self.model.loss_on_device)
        self.cuda.empty_cache()
        self.cuda.free_pinned(self.batch_on_host)
        self.cuda.free_pinned(self.model.loss_on_host)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=0, help="0: no limit")
    parser.add_argument("--seconds", type=float, default=0, help="0: no limit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--batch-ms", type=float, default=None, help="CPU time per batch in a worker"
    )
    parser.add_argument("--scenario", choices=sorted(BATCH_MS), default="healthy")
    parser.add_argument("--print-every", type=float, default=1.0, metavar="SECONDS")
    options = parser.parse_args()
    if options.batch_ms is None:
        options.batch_ms = BATCH_MS[options.scenario]
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    return options


def main():
    options = parse_options()
    interrupt = Interrupt()
    loader = DataLoader(options.workers, options.batch_ms)
    try:
        trainer = Trainer(options, loader, interrupt)
        trainer.run()
        trainer.close()
    finally:
        loader.close()


if __name__ == "__main__":
    main()
