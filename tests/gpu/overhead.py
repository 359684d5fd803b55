# SPDX-License-Identifier: Apache-2.0
"""The cost of tracing a training loop with the default settings: one job keeps running and is traced in turns.

Usage: overhead.py GPUWHY launch|gpu [ROUNDS] [SECONDS] [FLAGS...]
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

gpuwhy, kind = os.path.realpath(sys.argv[1]), sys.argv[2]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 9
seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 4.0
flags = sys.argv[5:]
here = os.path.dirname(os.path.realpath(__file__))
job = subprocess.Popen([sys.executable, f"{here}/overhead_job.py", kind], stdout=subprocess.PIPE, text=True)
assert job.stdout.readline() == "ready\n"
windows, said = [], []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


with tempfile.TemporaryDirectory() as folder:
    for i in range(rounds):
        start = now()
        time.sleep(seconds)
        windows.append(("untraced", start, now()))
        database = f"{folder}/{i}.db"
        tracer = subprocess.Popen(
            [gpuwhy, "trace", "--verbose", "--pid", str(job.pid), "--duration", f"{seconds + 2}s", "--db", database, *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        # From the message that tracing is on until shortly before the duration ends.
        for line in tracer.stdout:
            if "tracing process" in line:
                break
        start = now()
        time.sleep(seconds)
        windows.append(("traced", start, now()))
        rest = tracer.communicate()[0]
        said += [line.strip() for line in rest.splitlines() if "overhead" in line or "budget" in line or "itself" in line]
job.terminate()
times = [int(t) for t in job.communicate()[0].split()]
rates = {"untraced": [], "traced": []}
for name, start, end in windows:
    rates[name].append(sum(start <= t < end for t in times) / ((end - start) / 1e9))
for name, values in rates.items():
    values.sort()
    print(f"{kind} {name}: median {statistics.median(values):.1f} steps/s, {values[0]:.1f} to {values[-1]:.1f}", flush=True)
slower = 1 - statistics.median(rates["traced"]) / statistics.median(rates["untraced"])
print(f"{kind}: {slower * 100:.2f} % slower, {rounds} rounds of {seconds:g} s in turns")
for line in said[-6:]:
    print("   ", line)
