# SPDX-License-Identifier: Apache-2.0
"""Threads that sleep, wait and work at known lines, and say how long they did."""
import queue
import sys
import threading
import time

from planting import frames_from, write_down

SLEEP = 0.3
BUSY = 1.0
lock, items = threading.Lock(), queue.Queue()
now, cpu = time.monotonic_ns, time.thread_time_ns


def tell(what, marks, frame, line):
    """`marks`: both clocks before, what was done, both clocks after. `line`: where that was in the frame."""
    frames = frames_from(frame)
    frames[0][2] = line
    row = {"what": what, "begin": marks[0], "end": marks[4], "cpu_ns": marks[3] - marks[1], "frames": frames}
    write_down(row)


# All of a measured time is spent on one line, the clocks included.


def sleeps():
    line = sys._getframe().f_lineno + 1
    marks = now(), cpu(), time.sleep(SLEEP), cpu(), now()
    tell("sleep", marks, sys._getframe(), line)


def waits_for_lock():
    line = sys._getframe().f_lineno + 1
    marks = now(), cpu(), lock.acquire(), cpu(), now()
    lock.release()
    tell("lock", marks, sys._getframe(), line)


def waits_for_item():
    line = sys._getframe().f_lineno + 1
    marks = now(), cpu(), items.get(), cpu(), now()
    tell("queue", marks, sys._getframe(), line)


def works():
    line, value, before = sys._getframe().f_lineno, 1, (now(), cpu())
    while cpu() - before[1] < BUSY * 1e9:
        for n in range(500):
            value = (value * 1664525 + 1013904223 + n) & 0xFFFFFFFF
    after = cpu(), now()
    tell("busy", before + (value,) + after, sys._getframe(), line)


def main():
    with lock:
        threads = [threading.Thread(target=target) for target in (sleeps, waits_for_lock, waits_for_item)]
        for thread in threads:
            thread.start()
        works()
    items.put(1)
    for thread in threads:
        thread.join()


main()
