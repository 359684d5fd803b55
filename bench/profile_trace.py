#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times reading a large profiler trace: Python's json.load compared with gpuwhy's whole analysis.

    bench/profile_trace.py [--gb 1.1] [--runs 3] [--kind ops|stacks] [--keep FILE] [--no-python] [COMMAND ...]

COMMAND gets the file's name as its last argument; the default is `target/release/gpuwhy profile --trace-only --json`
(`target/release/examples/profile_check` measures the library alone). The file repeats the events of a real trace (from
crates/gpuwhy-torch/tests/data_trace) as plain JSON, with times and ids shifted each time.
"""
import argparse
import gzip
import os
import re
import subprocess
import sys
import tempfile

DATA = os.path.join(os.path.dirname(__file__), "..", "crates", "gpuwhy-torch", "tests", "data_trace")
# Without and with Python stacks.
SOURCES = {"ops": "base.json.gz", "stacks": "stack.json.gz"}
LIST = b'"traceEvents": ['
TIMES = re.compile(rb'"ts": (\d+)\.')
IDS = re.compile(rb'("External id": |"correlation": |"id": |"Sequence number": )(\d+)')


def write(path, gigabytes, kind):
    with gzip.open(os.path.join(DATA, SOURCES[kind])) as source:
        text = source.read()
    begin = text.index(LIST) + len(LIST)
    end = text.rindex(b"],")
    body = text[begin:end].rstrip()
    times = [int(t) for t in TIMES.findall(body)]
    length = max(times) - min(times) + 1_000_000
    ids = max(int(number) for _, number in IDS.findall(body)) + 1
    written = copies = 0
    with open(path, "wb") as out:
        out.write(text[:begin])
        while written < gigabytes * 1e9:
            later = TIMES.sub(lambda m: b'"ts": %d.' % (int(m[1]) + copies * length), body)
            later = IDS.sub(lambda m: m[1] + b"%d" % (int(m[2]) + copies * ids), later)
            out.write((b"," if copies else b"") + later)
            written += len(later)
            copies += 1
        out.write(text[end:])
    return copies


def time_command(command):
    """From start to exit, with the child's own peak memory. A small process forks the child, because between fork and
    exec a child counts its parent's memory as its own."""
    code = (
        "import os,sys,time\n"
        "t=time.perf_counter(); pid=os.fork()\n"
        "if pid==0:\n"
        " null=os.open(os.devnull,os.O_WRONLY); os.dup2(null,1); os.dup2(null,2); os.execvp(sys.argv[1],sys.argv[1:])\n"
        "_,status,use=os.wait4(pid,0)\n"
        "print(status,time.perf_counter()-t,use.ru_utime+use.ru_stime,use.ru_maxrss*1024)"
    )
    out = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True).stdout
    status, seconds, cpu, memory = out.split()
    if status != "0":
        sys.exit(f"{command[0]} failed")
    return float(seconds), float(cpu), int(memory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=1.1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kind", choices=list(SOURCES), default="ops")
    parser.add_argument("--keep", help="write the file here and keep it")
    parser.add_argument("--no-python", action="store_true", help="do not run json.load, which takes six times the file in memory")
    parser.add_argument("command", nargs="*", default=["target/release/gpuwhy", "profile", "--trace-only", "--json"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or os.path.join(folder, "profiler_trace.json")
        copies = write(path, args.gb, args.kind)
        size = os.path.getsize(path)
        print(f"{size / 1e9:.2f} GB of plain JSON: {SOURCES[args.kind]} {copies} times, {os.cpu_count()} cores")
        results = [("gpuwhy", min(time_command([*args.command, path]) for _ in range(args.runs)))]
        if not args.no_python:
            code = "import json,sys; json.load(open(sys.argv[1]))"
            results.append(("json.load", time_command([sys.executable, "-c", code, path])))
        for name, (seconds, cpu, memory) in results:
            rate = f"{seconds:7.2f} s  {size / 1e9 / seconds:6.3f} GB/s  {cpu:7.2f} s of CPU"
            print(f"{name:<10} {rate}  {memory / 1e6:7.0f} MB memory, {memory / size:.2f} of the file")
        if not args.no_python:
            print(f"{results[1][1][0] / results[0][1][0]:.1f} times faster")


if __name__ == "__main__":
    main()
