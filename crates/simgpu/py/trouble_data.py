# SPDX-License-Identifier: Apache-2.0
"""The data workers of the job with a trouble, and the queue they fill."""

import ctypes
import mmap
import multiprocessing
import os
import queue
import random
import signal
import time

BATCH_BYTES = 64 << 10
READ_BYTES = 128 << 10
PREFETCHED = 12

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_TIMERSLACK = 29


def name_process(name):
    """Names the calling thread, which for the first one is the process."""
    if name:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def wake_promptly():
    """Lets sleeps end on time, as a GPU's interrupt does: usually the kernel is 50 us late on purpose."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def become_child(name, cpus):
    """A process of this name that does not outlive its parent."""
    name_process(name)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if cpus:
        os.sched_setaffinity(0, cpus)


def decode(milliseconds):
    """Takes so much of this thread's CPU time."""
    value = 1
    deadline = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) + milliseconds / 1000.0
    while time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) < deadline:
        for _ in range(200):
            value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
    return value


def read_from_disk(file, milliseconds):
    """Reads pieces past the page cache for the given time."""
    deadline = time.monotonic() + milliseconds / 1000.0
    buffer = mmap.mmap(-1, READ_BYTES)
    pieces = os.fstat(file).st_size // READ_BYTES
    while time.monotonic() < deadline:
        os.preadv(file, [buffer], random.randrange(pieces) * READ_BYTES)
    buffer.close()


def fetch_slowly(milliseconds):
    """Waits as for a store far away that takes its time."""
    time.sleep(milliseconds / 1000.0)


def make_batch(options, file):
    """One batch, with what it costs the worker."""
    if "worker_disk" in options.trouble:
        read_from_disk(file, options.batch_ms)
    elif "worker_sleep" in options.trouble:
        fetch_slowly(options.batch_ms)
    else:
        decode(options.batch_ms)
    return bytes(BATCH_BYTES)


def run_worker(options, batches):
    """A worker process: makes batches until it is ended."""
    become_child(options.worker_name, options.worker_cpus)
    file = None
    if "worker_disk" in options.trouble:
        file = os.open(options.file, os.O_RDONLY | os.O_DIRECT)
    while True:
        batches.put(make_batch(options, file))


def run_short_worker(options, batches):
    """A worker that lives for one batch."""
    become_child(options.worker_name, options.worker_cpus)
    batches.put(make_batch(options, None))


class Loader:
    """Worker processes that live as long as the job."""

    def __init__(self, options):
        context = multiprocessing.get_context("fork")
        self.batches = context.Queue(maxsize=max(PREFETCHED, 2 * options.workers))
        self.processes = [
            context.Process(target=run_worker, args=(options, self.batches), daemon=True)
            for _ in range(options.workers)
        ]
        for process in self.processes:
            process.start()

    def next_batch(self):
        """Waits for a batch; None after a timeout."""
        try:
            return self.batches.get(timeout=5.0)
        except queue.Empty:
            return None

    def close(self):
        """Ends the workers."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.batches.close()
        self.batches.cancel_join_thread()


class ShortLivedLoader:
    """New workers for every batch: what a loader does that keeps none between short epochs."""

    # Forking copies page tables: a process without memory would fork unusually fast.
    BALLAST_BYTES = 192 << 20

    def __init__(self, options):
        self.options = options
        self.context = multiprocessing.get_context("fork")
        self.ballast = bytearray(os.urandom(1 << 20)) * (self.BALLAST_BYTES >> 20)

    def next_batch(self):
        """Starts workers, takes a batch of each, and ends them."""
        batches = self.context.SimpleQueue()
        workers = [
            self.context.Process(target=run_short_worker, args=(self.options, batches), daemon=True)
            for _ in range(self.options.workers)
        ]
        for worker in workers:
            worker.start()
        batch = [batches.get() for _ in workers][0]
        for worker in workers:
            worker.kill()
            worker.join()
        batches.close()
        return batch

    def close(self):
        """Nothing outlives a batch."""
