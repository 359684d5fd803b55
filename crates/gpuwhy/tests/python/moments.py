# SPDX-License-Identifier: Apache-2.0
"""Threads that sleep, wait and work at known lines, and say how long they did.

First it waits for a line on standard input, so that gpuwhy can attach. Then a thread that was there before, the main
thread and a new one plant a call or two.
"""
import queue
import sys
import threading
import time

from planting import frames_from, plant, write_down

SLEEP = 0.3
DEEP = 60
BUSY = 1.0
lock, items = threading.Lock(), queue.Queue()
go = threading.Event()
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


def sleeps_deep():
    """Below many functions that nobody has seen before, for the only time."""
    space = {"step_%d" % DEEP: sleeps}
    for n in range(DEEP):
        exec("def step_%d():\n    return step_%d()" % (n, n + 1), space)
    space["step_0"]()


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


def older_thread():
    go.wait()
    for _ in range(3):
        plant("attached_thread")


def newer_thread():
    plant("thread_after_attaching")


def plants():
    older, newer = threading.Thread(target=older_thread), threading.Thread(target=newer_thread)
    older.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    plant("attached_main")
    older.join()
    newer.start()
    newer.join()


def main():
    plants()
    with lock:
        threads = [threading.Thread(target=target) for target in (sleeps, sleeps_deep, waits_for_lock, waits_for_item)]
        for thread in threads:
            thread.start()
        works()
    items.put(1)
    for thread in threads:
        thread.join()


main()
