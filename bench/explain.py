#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time and memory of `gpuwhy explain` for 10 million events, compared with SQLite reading the same rows.

Run as root after `cargo build --release`, because it first records a job on the simulated GPU.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
GPUWHY = TARGET / "release/gpuwhy"
INSTALL = TARGET / "release/examples/install"
EVENTS = int(os.environ.get("EVENTS", "10000000"))


def timed(command):
    """Seconds, and stdout."""
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, done.stdout


def record(folder):
    """Records about EVENTS events: launches, copies, allocations and waits from two threads."""
    subprocess.run([INSTALL, folder / "sim"], check=True, stdout=subprocess.DEVNULL)
    run = folder / "run.db"
    job = [folder / "sim/simjob", "--cudart", folder / "sim/libcudart.so.13", "--threads", "2", "--mix", "mixed"]
    job += ["--calls", str(EVENTS), "--rate", "200000"]
    subprocess.run([GPUWHY, "trace", "--budget", "none", "-q", "--db", run, "--", *job], check=True, stdout=subprocess.DEVNULL)
    return run


def main():
    with tempfile.TemporaryDirectory() as name:
        run = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else record(pathlib.Path(name))
        sql = "SELECT (SELECT COUNT(*) FROM call_) + (SELECT COUNT(*) FROM off_) + (SELECT COUNT(*) FROM cpu_run_)"
        _, rows = timed(["python3", "-c", f"import sqlite3; print(sqlite3.connect({str(run)!r}).execute({sql!r}).fetchone()[0])"])
        question = "SELECT op, COUNT(*), SUM(duration_ns) FROM events GROUP BY op"
        sqlite = min(timed([GPUWHY, "query", "--db", run, "--timeout", "300s", question])[0] for _ in range(2))
        times = []
        for _ in range(3):
            seconds, text = timed([GPUWHY, "explain", "--db", run, "--json"])
            times.append(seconds)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        report = json.loads(text)
        print(f"rows                      {int(rows):,}")
        print(f"explain, best of 3        {min(times):.2f} s  ({min(times) * 1e9 / max(1, int(rows)):.0f} ns per row)")
        print(f"one GROUP BY by SQLite    {sqlite:.2f} s  (explain takes {min(times) / sqlite:.2f} of that)")
        print(f"peak memory               {peak / 1e6:.0f} MB (largest of these programs)")
        print(f"findings                  {len(report['findings'])}")


if __name__ == "__main__":
    main()
