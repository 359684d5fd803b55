#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of recording the scheduler and Python stacks, compared with `perf record` of the scheduler's events.

Run as root from the project's root after `cargo build --release`. It asserts nothing, and fails only if something
could not be measured. docs/bench.md says what is measured and how to read it.
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import host_report
import run
from run import Failure, machine, system

JOB = run.ROOT / "bench/host_job.py"
PYTHON = os.path.realpath(sys.executable)  # the interpreter itself, not a wrapper
STATS = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
EVENTS = ["sched:sched_switch", "sched:sched_waking", "sched:sched_wakeup"]  # the core of what `perf sched record` takes

SCHED_ONLY = ["--host", "sched", "--no-stack"]
NO_STACK = ["--no-stack"]
# name: gpuwhy's options when the job is the target
TARGET = {"sched only": SCHED_ONLY, "no stacks": NO_STACK, "everything": []}
WAYS = ["untraced", "bystander", "perf bystander", *TARGET, "perf"]
KINDS = ["C", "Python"]
DEPTHS = [1, 20]
NEW_DEPTH = 20
STARTS = {"everything": [], "--no-stack": NO_STACK, "--no-host": ["--no-host"], "both": ["--no-host", "--no-stack"]}


class HostBench(run.Bench):
    """Needs no perf probes, but the Python programs beside their libraries."""

    def prepare(self):
        for file in ("train.py", "simcuda.py"):
            shutil.copy(run.ROOT / "crates/simgpu/py" / file, self.lib)

    def away(self):
        """Keeps the tracer off the job's CPU, so that the figure has only what it adds to the job."""
        return [] if self.other_cpu is None else ["taskset", "-c", str(self.other_cpu)]

    def truth(self):
        """A file for the job's own report, and a function that reads it."""
        file = self.dir / f"{time.monotonic_ns()}.jsonl"
        return file, lambda: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def database(self):
        return self.dir / f"{time.monotonic_ns()}.db"

    def trace(self, options, job, before=()):
        """gpuwhy's summary of a job, the run file, and the CPU seconds of both together."""
        database = self.database()
        command = [*before, run.GPUWHY, "trace", "--budget", "none", "--json", "--db", database, *options, "--", *job]
        out, _, used = self.measured(command)
        return json.loads(out.splitlines()[-1]), database, used

    def measured(self, command):
        """stdout, wall seconds and CPU seconds (children included) of a command that must succeed."""
        with open(self.dir / "stdout", "w+", encoding="utf-8") as out, open(self.dir / "stderr", "w+") as err:
            begin = time.monotonic()
            process = self.spawn(command, ".", stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.monotonic() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
            self.running.remove(process)
            out.seek(0)
            err.seek(0)
            if process.returncode:
                raise Failure(f"{command[0]}: exit {process.returncode}: {err.read().strip()[-500:]}")
            return out.read(), wall, usage.ru_utime + usage.ru_stime

    def switches(self, kind, file, ms):
        """Two threads or processes on one CPU that pass a byte back and forth. With SCHED_BATCH neither preempts the
        other, so every switch is one wait and one wake-up, traced or not. The nice value keeps others away."""
        how = ["chrt", "-b", "0", "nice", "-n", "-20", "taskset", "-c", str(self.job_cpu)]
        if kind == "C":
            return [*how, self.lib / "hostjob", "switches", "--cpu", str(self.job_cpu), "--ms", str(ms), "--truth", file]
        return [*how, PYTHON, JOB, "switches", file, str(self.job_cpu), str(ms)]

    def perf_sched(self, *where):
        options = ["-c", "1", "-m", str(self.perf_pages), "--no-buildid", "--no-buildid-cache"]
        return ["perf", "record", *where, *options, "-e", ",".join(EVENTS), "-o", self.dir / "perf.data", "--"]


def switched(lines):
    """CPU time and switches of the two."""
    windows = [line for line in lines if line["what"] == "window" and line["name"].startswith("switcher")]
    return sum(w["cpu_ns"] for w in windows), sum(w["voluntary"] + w["involuntary"] for w in windows)


# 1. Cost of a switch


def switch_costs(bench, rounds, ms):
    """CPU ns, loss and bytes per switch, one figure per round, for each kind of job and way of tracing."""
    figures = {kind: {way: [] for way in WAYS} for kind in KINDS}
    for turn in range(rounds):
        for kind in KINDS:
            for way in WAYS:
                with bench.step(f"cost of a switch, round {turn + 1} of {rounds}: {kind}, {way}"):
                    figures[kind][way].append(one_switch_cost(bench, kind, way, ms))
    return figures


def one_switch_cost(bench, kind, way, ms):
    file, lines = bench.truth()
    job = bench.switches(kind, file, ms)
    more = {}
    if way in TARGET:
        summary, database, _ = bench.trace(TARGET[way], job, bench.away())
        database.unlink()
        more = {"lost": summary["lost"], "bytes": summary["size_bytes"] / max(summary["stored"], 1)}
    elif way == "untraced":
        bench.output(job)
    else:
        trace = [run.GPUWHY, "trace", "--budget", "none", "--quiet", "--db", bench.database(), "--"]
        tracer = {"bystander": trace, "perf bystander": bench.perf_sched(), "perf": bench.perf_sched("-a")}[way]
        with bench.beside([*bench.away(), *tracer]):
            bench.output(job)
        if way == "perf":
            more = perf_kept(bench)
    cpu_ns, count = switched(lines())
    if "bytes" not in more:
        more["bytes"] = None
    return {"ns": cpu_ns / count, "switches": count, **more}


def perf_kept(bench):
    """Bytes of perf.data per switch, including its waking and wake-up."""
    file = bench.dir / "perf.data"
    stats = bench.output(["perf", "report", "--stats", "-i", file])[0]
    size = file.stat().st_size
    file.unlink()
    _, *parts = re.split(r"^(sched:\w+) stats:$", stats, flags=re.MULTILINE)
    found = dict(zip(parts[::2], parts[1::2]))
    samples = re.search(r" SAMPLE events: +(\d+)", found.get(EVENTS[0], ""))
    if not samples:
        raise Failure(f"cannot read perf report --stats: {stats[-500:]}")
    lost = sum(int(n) for part in found.values() for n in re.findall(r" LOST_SAMPLES events: +(\d+)", part))
    return {"lost": lost, "bytes": size / int(samples.group(1))}


# 2. The kernel's own count


def program_times(bench, ms):
    """The kernel's count for each BPF program, in separate runs, because counting costs time."""
    if not shutil.which("bpftool") or not STATS.exists():
        return None
    figures = {}
    for case, kind in {"bystander": "C", "target, C": "C", "target, Python": "Python"}.items():
        with bench.step(f"the kernel's count: {case}"), counting():
            figures[case] = counted(bench, kind, case == "bystander", ms)
    return figures


@contextlib.contextmanager
def counting():
    before = STATS.read_text(encoding="utf-8")
    STATS.write_text("1", encoding="utf-8")
    try:
        yield
    finally:
        STATS.write_text(before, encoding="utf-8")


def counted(bench, kind, bystander, ms):
    file, lines = bench.truth()
    job = bench.switches(kind, file, ms)
    tracer = [*bench.away(), run.GPUWHY, "trace", "--budget", "none", "--quiet", "--db", bench.database(), "--"]
    # The tracer's command prints "ready" when the job is done, while gpuwhy still runs and can be queried.
    first = [] if bystander else ["sh", "-c", f'{shlex.join(map(str, job))} && exec "$@"', "sh"]
    with bench.beside([*tracer, *first]) as gpuwhy:
        before = programs_of(gpuwhy["pid"]) if bystander else {}
        if bystander:
            bench.output(job)
        after = programs_of(gpuwhy["pid"])
    cpu_ns, count = switched(lines())
    rows = []
    for number, (name, ns, runs) in after.items():
        _, ns_before, runs_before = before.get(number, (name, 0, 0))
        if runs > runs_before:
            rows.append({"program": name, "ns": ns - ns_before, "runs": runs - runs_before})
    rows.sort(key=lambda row: -row["ns"])
    return {"switches": count, "ns": cpu_ns / count, "programs": rows}


def programs_of(pid):
    """{id: (name, ns, runs)} of the BPF programs that a process holds."""
    held = set()
    for info in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            held.update(int(n) for n in re.findall(r"^prog_id:\s+(\d+)", info.read_text(encoding="utf-8"), re.MULTILINE))
    programs = json.loads(system("bpftool", "prog", "show", "-j"))
    return {p["id"]: (p.get("name", "?"), p.get("run_time_ns", 0), p.get("run_cnt", 0)) for p in programs if p["id"] in held}


# 3. As many switches as possible


def bursts(bench, rounds, ms):
    """A pair on every CPU; gpuwhy competes with them for CPU time."""
    figures = {way: [] for way in ("untraced", *TARGET)}
    for turn in range(rounds):
        for way, found in figures.items():
            with bench.step(f"burst, round {turn + 1} of {rounds}: {way}"):
                found.append(one_burst(bench, way, ms))
    return figures


def one_burst(bench, way, ms):
    file, lines = bench.truth()
    cpus = " ".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    pair = f"{bench.lib / 'hostjob'} switches --cpu $cpu --ms {ms} --truth {file}"
    job = ["sh", "-c", f"for cpu in {cpus}; do {pair} & done; wait"]
    if way == "untraced":
        bench.output(job)
        summary, database = None, None
    else:
        summary, database, _ = bench.trace(TARGET[way], job)
    windows = [line for line in lines() if line["what"] == "window"]
    made = sum(w["voluntary"] + w["involuntary"] for w in windows)
    row = {"made": made, "seconds": ms / 1e3, "per_second": made / (ms / 1e3)}
    if summary:
        own = summary["own_cost"]
        row.update({key: summary[key] for key in ("seen", "stored", "lost")})
        row.update(kept=kept_switches(database, windows), cpu_s=own["cpu_ns"] / 1e9, memory_bytes=own["peak_memory_bytes"])
        row["bytes"] = summary["size_bytes"] / max(summary["stored"], 1)
        database.unlink()
    return row


def kept_switches(database, windows):
    """Switches in the run file between the times at which the kernel's count for each thread began and ended."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as run_file:
        (start,) = run_file.execute("SELECT start_monotonic_ns FROM sessions").fetchone()
        ask = "SELECT COUNT(*) FROM events WHERE op = 'sched_switch' AND tid = ? AND timestamp BETWEEN ? AND ?"
        asked = [run_file.execute(ask, (w["tid"], w["begin"] - start, w["end"] - start)) for w in windows]
        return sum(answer.fetchone()[0] for answer in asked)


# 6. A training job


def trainings(bench, rounds, seconds):
    figures = {scenario: {"untraced": [], "traced": []} for scenario in ("healthy", "dataloader")}
    for turn in range(rounds):
        for scenario, ways in figures.items():
            for way, found in ways.items():
                with bench.step(f"training, round {turn + 1} of {rounds}: {scenario}, {way}"):
                    found.append(one_training(bench, scenario, way == "traced", seconds))
    return figures


def one_training(bench, scenario, traced, seconds):
    job = [PYTHON, bench.lib / "train.py", "--scenario", scenario, "--seconds", str(seconds)]
    row = {}
    if traced:
        summary, database, cpu_s = bench.trace([], job)
        said = (bench.dir / "stderr").read_text(encoding="utf-8")
        own_s, elapsed = summary["own_cost"]["cpu_ns"] / 1e9, summary["elapsed_ns"] / 1e9
        cpu_s -= own_s
        row = {"own_cpu_s": own_s, "elapsed_s": elapsed, "lost": summary["lost"]}
        row["memory_bytes"] = summary["own_cost"]["peak_memory_bytes"]
        row.update(events_per_s=summary["stored"] / elapsed, bytes_per_s=summary["size_bytes"] / elapsed)
        row.update({f"{op['op']}_per_s": op["calls"] / elapsed for op in summary["ops"] if op["op"] == "sched_switch"})
        row["cuda_calls_per_s"] = summary["cuda_calls"] / elapsed
        database.unlink()
    else:
        said, _, cpu_s = bench.measured(job)
    done = re.search(r"done: (\d+) steps in ([\d.]+) s", said)
    if not done:
        raise Failure(f"cannot read the output of train.py: {said.strip()[-500:]}")
    steps = int(done.group(1))
    return {"steps_per_s": steps / float(done.group(2)), "job_cpu_ms_per_step": cpu_s / steps * 1e3, **row}


# 4. Python stacks


def stack_costs(bench, rounds, calls, new):
    """CPU ns per call: at one line, and at lines that gpuwhy sees for the first time."""
    cases = {f"known site, {depth} deep": ("site", calls, depth) for depth in DEPTHS}
    cases["new line"] = ("lines", new, NEW_DEPTH)
    cases["new function"] = ("code", new, NEW_DEPTH)
    ways = {"untraced": None, "no stacks": NO_STACK, "everything": []}
    figures = {case: {way: [] for way in ways} for case in cases}
    for turn in range(rounds):
        for case, load in cases.items():
            for way, options in ways.items():
                with bench.step(f"stacks, round {turn + 1} of {rounds}: {case}, {way}"):
                    figures[case][way].append(one_stack_cost(bench, options, *load))
    return figures


def one_stack_cost(bench, options, kind, count, depth):
    file, lines = bench.truth()
    job = ["taskset", "-c", str(bench.job_cpu), PYTHON, JOB, kind, file, bench.lib / "libcudart.so.13", str(count), str(depth)]
    row = {}
    if options is None:
        bench.output(job)
    else:
        summary, database, _ = bench.trace(options, job, bench.away())
        row = {"lost": summary["lost"], "own_cpu_s": summary["own_cost"]["cpu_ns"] / 1e9}
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as run_file:
            ask = "SELECT COUNT(*), COUNT(stack_id), COUNT(DISTINCT stack_id) FROM events WHERE op = 'cudaSetDevice'"
            row["calls"], row["with_stack"], row["stacks"] = run_file.execute(ask).fetchone()
        database.unlink()
        if row["calls"] < count:
            raise Failure(f"gpuwhy recorded {row['calls']} of {count} calls")
        if options == [] and row["with_stack"] < count:
            raise Failure(f"gpuwhy has a stack for {row['with_stack']} of {count} calls")
    (said,) = lines()
    return {"ns": said["cpu_ns"] / said["calls"], **row}


# 5. Startup


def starts(bench, rounds):
    figures = {way: [] for way in STARTS}
    for turn in range(rounds):
        for way, options in STARTS.items():
            with bench.step(f"start, round {turn + 1} of {rounds}: {way}"):
                database = bench.database()
                _, wall, cpu = bench.measured([run.GPUWHY, "trace", "--budget", "none", "--quiet", "--db", database, *options, "--", "true"])
                figures[way].append({"wall_s": wall, "cpu_s": cpu})
                database.unlink()
    return figures


# Main


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter loads")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write every figure to this file")
    options = parser.parse_args()
    quick = options.quick
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, run.stop)
    # Otherwise gpuwhy runs the job as the user who called sudo, who may not raise its priority.
    for name in ("SUDO_UID", "SUDO_GID", "SUDO_USER"):
        os.environ.pop(name, None)
    try:
        run.check_needs()
        figures = {"machine": {**machine(), "python": platform.python_version()}, "rounds": 3 if quick else 7}
        with HostBench() as bench:
            figures["switches"] = switch_costs(bench, figures["rounds"], 200 if quick else 400)
            figures["programs"] = program_times(bench, 500 if quick else 1000)
            figures["bursts"] = bursts(bench, 1 if quick else 3, 1000 if quick else 2000)
            figures["stacks"] = stack_costs(bench, 3 if quick else 5, 20_000 if quick else 100_000, 10_000)
            figures["starts"] = starts(bench, 3 if quick else 5)
            figures["training"] = trainings(bench, 1 if quick else 3, 3 if quick else 5)
            figures["machine"]["load_after"] = os.getloadavg()[0]
    except Failure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130
    figures["problems"] = bench.problems
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    host_report.show(figures)
    return 1 if bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
