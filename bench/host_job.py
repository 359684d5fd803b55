#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python loads for bench/host.py. Each measures its own CPU time and writes a line of JSON to FILE.

  switches FILE CPU MS      two processes on one CPU pass a byte back and forth, as in `hostjob switches`
  site FILE LIB CALLS DEPTH a cheap CUDA call in a loop, at one line under DEPTH functions
  code FILE LIB CALLS DEPTH one function per call: stack and code are new every time
  lines FILE LIB CALLS DEPTH functions of 200 lines, with a call on each line: only the stack is new
"""
import ctypes
import json
import os
import resource
import sys
import time

LINES = 200  # gpuwhy keeps the whole line table of a function of this length


def tell(file, **figures):
    with open(file, "a", encoding="utf-8") as out:
        out.write(json.dumps(figures) + "\n")


def play(file, name, give, take, end, begins):
    before, cpu = resource.getrusage(resource.RUSAGE_SELF), time.process_time_ns()
    ball = b"x"
    if begins:
        os.write(give, ball)
    # An empty read means that the partner ended first.
    while os.read(take, 1) and time.monotonic_ns() < end:
        os.write(give, ball)
    cpu, after = time.process_time_ns() - cpu, resource.getrusage(resource.RUSAGE_SELF)
    tell(
        file,
        what="window",
        name=name,
        cpu_ns=cpu,
        voluntary=after.ru_nvcsw - before.ru_nvcsw,
        involuntary=after.ru_nivcsw - before.ru_nivcsw,
    )


def switches(file, cpu, ms):
    os.sched_setaffinity(0, {int(cpu)})
    # Gives gpuwhy time to recognise the Python process. Not part of the figure.
    time.sleep(0.3)
    ping, pong = os.pipe(), os.pipe()
    end = time.monotonic_ns() + int(ms) * 1_000_000
    child = os.fork()
    if child == 0:
        os.close(ping[1])
        os.close(pong[0])
        play(file, "switcher-1", pong[1], ping[0], end, False)
        os.close(pong[1])
        os._exit(0)
    os.close(ping[0])
    os.close(pong[1])
    play(file, "switcher-0", ping[1], pong[0], end, True)
    os.close(ping[1])
    os.waitpid(child, 0)


def deep(function, depth):
    """Calls the function with `depth` frames above it."""
    if depth > 0:
        return deep(function, depth - 1)
    return function()


def generated(text, call):
    names = {"call": call}
    exec(compile(text, "generated.py", "exec"), names)
    return [made for name, made in names.items() if name.startswith("f")]


def each_of(functions):
    """Returns a function that calls each once and returns the CPU time."""

    def work():
        begin = time.thread_time_ns()
        for function in functions:
            function()
        return time.thread_time_ns() - begin

    return work


def calls(file, kind, library, count, depth):
    call = ctypes.CDLL(library).cudaSetDevice
    count, depth = int(count), int(depth)

    def loop():
        begin = time.thread_time_ns()
        for _ in range(count):
            call(0)
        return time.thread_time_ns() - begin

    if kind == "site":
        work = loop
    elif kind == "code":
        work = each_of(generated("".join(f"def f{i}():\n    call(0)\n" for i in range(count)), call))
    else:
        text = "".join(f"def f{i}():\n" + "    call(0)\n" * LINES for i in range(count // LINES))
        work = each_of(generated(text, call))
    for _ in range(1000):
        call(0)
    time.sleep(0.5)  # by then the tracer has attached its probes and knows the interpreter
    call(0)
    tell(file, cpu_ns=deep(work, depth), calls=count)


if __name__ == "__main__":
    kind, file, *rest = sys.argv[1:]
    if kind == "switches":
        switches(file, *rest)
    else:
        calls(file, kind, *rest)
