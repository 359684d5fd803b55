# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in the job's own process: locks, the interpreter, memory."""

import hashlib
import mmap
import os
import random
import threading
import time

PAGE = mmap.PAGESIZE
FULL = 128 << 20  # more than the memory that is allowed
LARGE = 1 << 20
HASHED = bytes(1 << 20)
PAUSE_S = 0.0005


def prepare_launch(microseconds):
    """Python's own work before a launch, in CPU time."""
    deadline = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) + microseconds / 1e6
    value = 1
    while time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) < deadline:
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
    return value


def take_a_nap(milliseconds):
    """Sleeps."""
    time.sleep(milliseconds / 1000.0)


class LockHolders:
    """Threads that hold a lock most of the time; they compute without the interpreter's lock."""

    def __init__(self, count, milliseconds):
        self.lock = threading.Lock()
        self.milliseconds = milliseconds
        self.stopped = False
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self):
        """One thread: holds the lock, lets go for a moment, and again."""
        while not self.stopped:
            self.hold()
            time.sleep(PAUSE_S)

    def hold(self):
        """Computes checksums with the lock held, for so much CPU time."""
        with self.lock:
            deadline = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) + self.milliseconds / 1000.0
            while time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) < deadline:
                hashlib.sha256(HASHED).digest()

    def wait(self):
        """The launching thread needs the lock for a moment."""
        with self.lock:
            pass

    def stop(self):
        """Ends the threads."""
        self.stopped = True


class Computers:
    """Threads of pure Python: they hold the GIL, so a thread that releases it waits to get it back."""

    CHECKSUM_S = 0.001

    def __init__(self, count):
        self.stopped = False
        started = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        hashlib.sha256(HASHED).digest()
        seconds_per_byte = (time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - started) / len(HASHED)
        self.checked = bytes(int(self.CHECKSUM_S / seconds_per_byte))
        self.threads = [threading.Thread(target=self.compute, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def compute(self):
        """Never returns and never waits."""
        value = 1
        while not self.stopped:
            value = (value * 1664525 + 1013904223) & 0xFFFFFFFF

    def wait(self):
        """The launching thread computes a checksum without the lock: long enough for them to take it."""
        hashlib.sha256(self.checked).digest()

    def stop(self):
        """Ends the threads."""
        self.stopped = True


class Table:
    """A mapped file that the memory allowed cannot hold."""

    def __init__(self, path, milliseconds):
        self.milliseconds = milliseconds
        file = os.open(path, os.O_RDONLY)
        self.pages = os.fstat(file).st_size // PAGE
        self.map = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        # Memory is full before the first look: page by page, a slow disk would never fill it.
        for start in range(0, min(self.map.size(), FULL), LARGE):
            os.pread(file, LARGE, start)
        self.map.madvise(mmap.MADV_RANDOM)
        os.close(file)

    def look_up(self):
        """Reads single bytes of random pages for the given time."""
        total = 0
        deadline = time.monotonic() + self.milliseconds / 1000.0
        while time.monotonic() < deadline:
            total += self.map[random.randrange(self.pages) * PAGE]
        return total
