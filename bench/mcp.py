#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Response times of `gpuwhy mcp`: mixed calls on a run of 2 million events, compared with the smallest query.

Run as root after `cargo build --release`, because it first records a job on the simulated GPU. The client is a few
lines of JSON-RPC on a pipe, so the figures contain no time of a client library.
"""

import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import explain

EVENTS = int(os.environ.get("EVENTS", "2000000"))
CALLS = int(os.environ.get("CALLS", "1000"))
SEED = 7
FREE_SQL = (
    "SELECT op, COUNT(*), SUM(duration_ns) FROM events WHERE timestamp BETWEEN {0} AND {0} + 1000000000 GROUP BY op",
    "SELECT pid, SUM(calls), SUM(total_ns) FROM seconds GROUP BY pid",
)


class Client:
    """JSON-RPC, one message per line."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        return self.process.stdout.readline()

    def call(self, tool, arguments):
        """Seconds, and bytes of the answer."""
        begin = time.perf_counter()
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        took = time.perf_counter() - begin
        if json.loads(answer)["result"].get("isError"):
            sys.exit(f"{tool} {arguments}: {answer.decode()}")
        return took, len(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def questions(rng, seconds):
    """Calls as an assistant makes them: mostly whole runs, sometimes time ranges."""
    while True:
        at = rng.randrange(max(1, seconds))
        # A conversation comes back to a few time ranges of a run.
        part = rng.choice(({}, {}, {"since": "5s"}, {"from": 2, "to": max(4, seconds // 2)}))
        yield rng.choice(
            (
                ("get_trace_stats", part),
                ("get_causal_chains", part | rng.choice(({}, {"severity": "medium"}, {"detail": True}))),
                ("get_stacks", part | rng.choice(({}, {"op": "cudaMalloc"}, {"op": "sched_switch", "by": "stack"}))),
                ("get_stacks", {"from": at + rng.random(), "to": at + 3.5, "sort": "calls"}),
                ("get_timeline", part),
                ("get_timeline", {"at": at + rng.random()}),
                ("list_runs", {}),
                ("get_check", {}),
                ("run_sql", {"sql": rng.choice(FREE_SQL).format(at * 1_000_000_000)}),
            )
        )


def quantile(values, q):
    """The smallest value that this share of all is not above."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def row(name, values, reference):
    ms = [1000 * value for value in values]
    times = f"{quantile(ms, 0.5):9.2f} {quantile(ms, 0.99):9.2f} {max(ms):9.2f}"
    print(f"{name:18} {len(ms):6} {times}   {quantile(ms, 0.99) / reference:6.0f} times")


def main():
    with tempfile.TemporaryDirectory() as name:
        explain.EVENTS = EVENTS
        run = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else explain.record(pathlib.Path(name))
        client = Client([explain.GPUWHY, "mcp", "--db", run])
        begin = time.perf_counter()
        client.call("get_causal_chains", {})
        client.call("get_stacks", {})
        first = time.perf_counter() - begin
        session = client.request("tools/call", {"name": "run_sql", "arguments": {"sql": "SELECT duration_ns / 1000000000, events_stored FROM sessions"}})
        seconds, events = json.loads(session)["result"]["structuredContent"]["rows"][0]
        smallest = statistics.median(client.call("run_sql", {"sql": "SELECT 1"})[0] for _ in range(50)) * 1000
        times, largest = {}, 0
        asked = questions(random.Random(SEED), seconds)
        for _ in range(CALLS):
            tool, arguments = next(asked)
            took, size = client.call(tool, arguments)
            times.setdefault(tool, []).append(took)
            largest = max(largest, 0 if arguments.get("detail") else size)
        client.close()
    print(f"{events:,} events, {seconds} s; the first questions read the whole run: {first:.2f} s")
    print(f"SELECT 1: {smallest:.2f} ms; the largest answer by default: {largest:,} bytes\n")
    print(f"{'tool':18} {'calls':>6} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}   p99 / SELECT 1")
    for tool in sorted(times):
        row(tool, times[tool], smallest)
    row("all but run_sql", [t for tool, list_ in times.items() if tool != "run_sql" for t in list_], smallest)


if __name__ == "__main__":
    main()
