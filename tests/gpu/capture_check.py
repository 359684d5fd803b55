# SPDX-License-Identifier: Apache-2.0
"""Compares a run file with PyTorch's own figures. Usage: capture_check.py RUN.db JOB.json WHAT"""
import json
import sqlite3
import sys

db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
with open(sys.argv[2]) as file:
    said = json.load(file)
what = sys.argv[3]
origin = db.execute("SELECT start_monotonic_ns FROM sessions").fetchone()[0]
failed = 0


def one(sql, *params):
    return db.execute(sql, params).fetchone()[0]


def equal(name, got, expected):
    global failed
    ok = got == expected
    failed += not ok
    print(f"  {'ok ' if ok else 'NOT'} {name}: gpuwhy {got}, PyTorch {expected}")


def reserved_at(at):
    """Reserved bytes of the last report, plus what was taken from the driver since, minus what was returned."""
    last = db.execute(
        "SELECT timestamp, reserved FROM allocations WHERE timestamp <= ? ORDER BY timestamp DESC LIMIT 1", (at,)
    ).fetchone() or (0, 0)
    signs = {"cudaFree": -1, "cuMemUnmap": -1, "cudaMalloc": 1, "cuMemMap": 1}
    rows = db.execute(
        "SELECT op, bytes FROM events WHERE op IN ('cudaFree', 'cuMemUnmap', 'cudaMalloc', 'cuMemMap') AND ret = 0"
        " AND timestamp > ? AND timestamp <= ?",
        (last[0], at),
    )
    return last[1] + sum(signs[op] * (size or 0) for op, size in rows)


def memory():
    if said["backend"] == "cudaMallocAsync":
        equal("reports", one("SELECT COUNT(*) FROM allocations"), 0)
        for point in said["checkpoints"]:
            total = one(
                "SELECT TOTAL(CASE class WHEN 'alloc' THEN bytes ELSE -bytes END) FROM events"
                " WHERE op IN ('cudaMallocAsync', 'cudaFreeAsync') AND ret = 0 AND timestamp <= ?",
                point["at_ns"] - origin,
            )
            equal(f"allocated, {point['what']}", int(total), point["allocated"])
        return
    count = "SELECT COUNT(*) FROM allocations WHERE op = ? AND timestamp <= ?"
    equal("torchAlloc", one(count, "torchAlloc", said["stats_ns"] - origin), said["allocations"])
    equal("torchFree", one(count, "torchFree", said["stats_ns"] - origin), said["frees"])
    equal("torchOutOfMemory", one("SELECT COUNT(*) FROM allocations WHERE op = 'torchOutOfMemory'"), said["ooms"])
    equal("refused", one("SELECT MAX(bytes) FROM allocations WHERE op = 'torchOutOfMemory'"), said["refused"])
    for point in said["checkpoints"]:
        at = point["at_ns"] - origin
        last = "SELECT allocated FROM allocations WHERE timestamp <= ? ORDER BY timestamp DESC LIMIT 1"
        equal(f"allocated, {point['what']}", one(last, at), point["allocated"])
        equal(f"reserved, {point['what']}", reserved_at(at), point["reserved"])
        equal(f"peak, {point['what']}", one("SELECT MAX(allocated) FROM allocations WHERE timestamp <= ?", at), point["peak"])
    lined = one("SELECT COUNT(*) FROM allocations WHERE stack_id IS NOT NULL")
    print(f"      {lined} of {one('SELECT COUNT(*) FROM allocations')} reports have a Python line")


def graphs():
    launches = sorted(row[0] for row in db.execute("SELECT launches FROM graphs"))
    equal("launches of each graph", launches, sorted(said["launches"]))


def collectives():
    got = [row[0] for row in db.execute("SELECT bytes FROM collectives WHERE op = 'ncclAllReduce' ORDER BY timestamp")]
    equal("bytes of all_reduce", [n for n in got if n in said["bytes"]][-len(said["bytes"]):], said["bytes"])
    equal("rank and ranks", db.execute("SELECT DISTINCT rank, ranks FROM collectives").fetchall(), [(0, 1)])
    sequence = [row[0] for row in db.execute("SELECT sequence FROM collectives ORDER BY timestamp")]
    equal("sequence", sequence, list(range(len(sequence))))
    print("     ", db.execute("SELECT function, rank, ranks FROM communicators").fetchall())


def names():
    named = one(
        "SELECT COUNT(*) FROM events AS e WHERE class = 'launch' AND EXISTS"
        " (SELECT 1 FROM functions AS f WHERE f.pid = e.pid AND f.handle = e.arg0)"
    )
    equal("launches with a name", named, one("SELECT COUNT(*) FROM events WHERE class = 'launch'"))
    for name, count in db.execute(
        "SELECT f.name, COUNT(*) FROM events AS e JOIN functions AS f ON f.pid = e.pid AND f.handle = e.arg0"
        " WHERE class = 'launch' GROUP BY 1 ORDER BY 2 DESC LIMIT 4"
    ):
        print(f"      {count} {name[:100]}")


print(what)
globals()[what]()
equal("events lost", one("SELECT events_lost FROM sessions"), 0)
for path, ns in db.execute("SELECT path, duration_ns FROM unwatched"):
    print(f"      not watched for the first {ns / 1e6:.1f} ms: {path}")
sys.exit(failed > 0)
