#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the problem of randomly drawn jobs by script, through MCP alone, as an assistant would.

The investigator knows neither the job nor the run file. It asks `gpuwhy mcp` with the official SDK, as any client does,
and concludes from the answers. It has six calls. Run it as root, with a Python that has `mcp` (make test installs one
in target/tools/mcp-python). The exit code is 1 if a root cause or its line was missed.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile

import cases
import run
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

MOST_CALLS = 6
DRAWN = 3
VARIATIONS = 4  # of a case, tried until one has its trouble
ATTEMPTS = 2  # because other load on the machine can spoil a run
# Troubles in the job's own code: they have lines to blame and need nothing special from the machine.
CASES = (
    "worker_cpu",
    "worker_sleep",
    "too_few",
    "lock",
    "gil",
    "sync_each",
    "pageable",
    "alloc_churn",
    "host_sleep",
    "host_work",
)
# The op whose stacks give the line if a finding has no line.
LOOK_AT = {
    "launch_bound": "cpu_sample",
    "input_starved": "sched_switch",
    "lock_contention": "sched_switch",
    "host_sleep": "sched_switch",
    "alloc_churn": "cudaMalloc",
    "copy_bound": "cudaMemcpyAsync",
    "sync_bound": "cudaStreamSync",
}
LINE = re.compile(r"([^\s/(]+\.py):(\d+)")


class Investigator:
    """Asks, counts its calls and concludes."""

    def __init__(self, session):
        self.session = session
        self.calls = []

    async def ask(self, tool, **arguments):
        """The answer's data. An error of the tool fails the investigation."""
        self.calls.append(tool)
        answer = await self.session.call_tool(tool, arguments)
        content = getattr(answer, "structured_content", None) or getattr(answer, "structuredContent", None)
        if content is None:
            raise run.Failure(f"{tool}: {answer.content[0].text}")
        return content

    async def conclude(self):
        """The kind, root cause and line of the problem."""
        stats = await self.ask("get_trace_stats")
        chains = await self.ask("get_causal_chains", severity="medium")
        if not chains["findings"]:
            return {"kind": "healthy", "root_cause": None, "line": None, "said": stats["verdict"]}
        top = chains["findings"][0]
        line = top["line"]
        if line is None:
            groups = await self.ask("get_stacks", op=LOOK_AT.get(top["kind"]), pid=top["pid"], by="line")
            line = next((group["name"] for group in groups["groups"] if group["name"]), None)
        return {"kind": top["kind"], "root_cause": top["root_cause"], "line": line, "said": top["cause"]}


async def investigate(path):
    """The conclusion about a run file, and the calls used."""
    server = StdioServerParameters(command=str(run.GPUWHY), args=["mcp", "--db", str(path)])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        investigator = Investigator(session)
        return await investigator.conclude(), investigator.calls


def mistakes(case, job, conclusion, calls):
    """Mistakes in a conclusion; empty if it is right."""
    wrong = []
    found = (conclusion["kind"], conclusion["root_cause"])
    if found not in [tuple(expected) for expected in case.expected]:
        wrong.append(f"found {found}, planted was {case.expected}")
    lines = [line for trouble in case.troubles for line in job["lines"].get(trouble, [])]
    named = [(file, int(number)) for file, number in LINE.findall(conclusion["line"] or "")]
    if not any(file == name and first <= number <= last for file, number in named for name, first, last in lines):
        wrong.append(f"named {conclusion['line']}, planted was {lines}")
    if len(calls) > MOST_CALLS:
        wrong.append(f"needed {len(calls)} calls")
    return wrong


def record(case, number, seed, lib, folder):
    """Records a variation, or the next one if the trouble costs too little on this machine. Returns its number."""
    for other in range(number, number + VARIATIONS):
        try:
            run.trace_until_sane(case, other, cases.variation(case, other, seed), lib, folder)
            return other
        except run.Failure as failure:
            why = failure
    raise why


def one(case, number, seed, lib, top):
    """One run, from recording to conclusion."""
    for attempt in range(ATTEMPTS):
        folder = top / f"{case.name}-{number}-{attempt}"
        number = record(case, number, seed, lib, folder)
        job = json.loads((folder / "job.json").read_text())
        conclusion, calls = asyncio.run(investigate(folder / "run.db"))
        wrong = mistakes(case, job, conclusion, calls)
        shutil.rmtree(folder, ignore_errors=True)
        line = f"{case.name} {number}: {conclusion['kind']} ← {conclusion['root_cause']} at {conclusion['line']}"
        print(f"{line}, {len(calls)} calls: {'; '.join(wrong) or 'right'}", flush=True)
        if not wrong:
            return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=None, help="seed of the draw (default: random)")
    parser.add_argument("--number", type=int, default=DRAWN, help="number of runs (%(default)s)")
    parser.add_argument("--only", type=run.names, metavar="CASE[,CASE]", help="these cases instead of a draw")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    drawn = options.only or draw.sample(CASES, k=min(options.number, len(CASES)))
    with tempfile.TemporaryDirectory(prefix="gpuwhy-investigate-") as scratch:
        lib = pathlib.Path(os.environ.get("SIMGPU_LIB") or pathlib.Path(scratch) / "lib")
        if not lib.exists():
            run.install(lib)
        right = [one(cases.by_name(name), draw.randrange(1, 10), seed, lib, pathlib.Path(scratch)) for name in drawn]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
