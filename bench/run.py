#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of tracing with gpuwhy, compared with `perf record` on the same functions.

Run as root from the project's root after `cargo build --release`. It asserts nothing, and fails only if something
could not be measured. docs/bench.md says what is measured and how to read it.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import figures
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPUWHY = ROOT / "target/release/gpuwhy"
TRACEFS = "/sys/kernel/tracing"
RING_MIB = 16  # gpuwhy's buffer; perf gets the same size, over all CPUs
GROUP = "gpuwhy_bench"  # of perf's probes, which are named after case and function
LIMIT_S = 180  # a step that takes longer hangs

# Where gpuwhy records simjob's calls: launches at the driver, other calls at the runtime.
LAUNCH = {"libcuda.so.1": ["cuLaunchKernel"]}
MIXED = {
    "libcuda.so.1": ["cuLaunchKernel", "cuLaunchKernelEx"],
    "libcudart.so.13": [
        "cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "cudaMallocHost", "cudaFreeHost",
        "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaEventRecord",
        "cudaDeviceSynchronize", "cudaSetDevice",
    ],
}  # fmt: skip

# name: simjob's mix, folder of the libraries, functions that perf probes
CASES = {
    "launch": ("launch", ".", LAUNCH),
    "mixed": ("mixed", ".", MIXED),
    "endbr64": ("launch", "cet", LAUNCH),
}
RATES = [100_000, 200_000, 400_000, 800_000, 0]  # calls/s; 0: full speed
WAYS = ["untraced", "bystander", "floor", "gpuwhy", "perf"]


class Failure(Exception):
    """Something could not be measured."""


class Bench:
    """The temporary folder, the probes and the processes. Closing it removes all of them."""

    def __init__(self):
        self.cleanup = contextlib.ExitStack()
        self.running = []
        self.problems = []
        cpus = sorted(os.sched_getaffinity(0))
        self.job_cpu, self.other_cpu = cpus[-1], cpus[0] if len(cpus) > 1 else None
        pages = RING_MIB * 2**20 // os.sysconf("SC_PAGE_SIZE") // os.cpu_count()
        self.perf_pages = 1 << max(pages.bit_length() - 1, 7)

    def __enter__(self):
        with self.cleanup:  # undone here if a step fails, else at the end of the benchmark
            self.dir = pathlib.Path(tempfile.mkdtemp(prefix="gpuwhy-bench-"))
            self.cleanup.callback(shutil.rmtree, self.dir, ignore_errors=True)
            self.dir.chmod(0o755)  # gpuwhy runs the job as the user who called sudo
            self.lib = self.dir / "lib"
            shutil.copytree(simulated_stack(), self.lib)
            if not os.path.exists(f"{TRACEFS}/uprobe_events"):
                system("mount", "-t", "tracefs", "nodev", TRACEFS)
                self.cleanup.callback(system, "umount", TRACEFS, check=False)
            self.prepare()
            self.cleanup.callback(self.end_processes)
            self.cleanup = self.cleanup.pop_all()
        return self

    def prepare(self):
        remove_probes()
        self.cleanup.callback(remove_probes)
        for case, (_, folder, functions) in CASES.items():
            for library, names in functions.items():
                add_probes(case, self.lib / folder / library, names)

    def __exit__(self, *_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(0)
        self.cleanup.close()

    @contextlib.contextmanager
    def step(self, name):
        """One measurement: shown while it runs, ended if it hangs, reported if it fails."""
        if sys.stderr.isatty():
            print(f"\r\033[K{name}", end="", file=sys.stderr, flush=True)
        signal.alarm(LIMIT_S)
        try:
            yield
        except Failure as failure:
            self.end_processes()
            self.problems.append(f"{name}: {failure}")
        finally:
            signal.alarm(0)
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr, flush=True)

    def spawn(self, command, folder, **options):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.lib / folder), "LC_ALL": "C"}
        # In its own session, so that Ctrl-C reaches only this script, which then ends all processes of the command.
        process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **options)
        self.running.append(process)
        return process

    def end_processes(self):
        while self.running:
            process = self.running.pop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def output(self, command, folder="."):
        """stdout and stderr of a command that must succeed."""
        process = self.spawn(command, folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate()
        self.running.remove(process)
        if process.returncode:
            raise Failure(f"{command[0]}: exit {process.returncode}: {err.strip()[-500:]}")
        return out, err

    @contextlib.contextmanager
    def beside(self, tracer, folder="."):
        """Runs a tracer while the block runs. It traces `cat`, which answers once tracing is on.

        Yields a dict with the tracer's pid. Afterwards the dict has the tracer's CPU time and memory; cat uses almost none.
        """
        pipe = subprocess.PIPE
        process = self.spawn([*tracer, "cat"], folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        process.stdin.write("ready\n")
        process.stdin.flush()
        said, after = [], {"pid": process.pid}
        while "ready\n" not in said:
            line = process.stdout.readline()
            if not line:
                break
            said.append(line)
        else:
            yield after
            after["memory_bytes"] = peak_memory(process.pid)
        process.stdin.close()
        said += process.stdout.readlines()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        after["cpu_s"] = usage.ru_utime + usage.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        self.running.remove(process)
        if process.returncode or "ready\n" not in said:
            raise Failure(f"{tracer[0]}: exit {process.returncode}: {''.join(said).strip()[-500:]}")

    def job(self, mix, calls, *more, folder=".", pinned=False):
        pin = ["taskset", "-c", str(self.job_cpu)] if pinned else []
        cudart = self.lib / folder / "libcudart.so.13"
        return [*pin, self.lib / "simjob", "--cudart", cudart, "--mix", mix, "--calls", str(calls), *more]

    def untraced(self, job, folder="."):
        return json.loads(self.output(job, folder)[0])

    def gpuwhy(self, job, folder="."):
        """simjob's report and gpuwhy's summary."""
        database = self.dir / "run.db"
        out, err = self.output([GPUWHY, "trace", "--budget", "none", "--json", "--db", database, "--", *job], folder)
        summary = json.loads(out.splitlines()[-1])
        summary |= figures.calls_in(database)
        database.unlink()
        report = [line for line in err.splitlines() if line.startswith('{"calls"')]
        if not report or not summary["libraries"]:
            raise Failure(f"gpuwhy did not trace simjob: {err.strip()[-500:]}")
        return json.loads(report[0]), summary

    def perf_record(self, case):
        """System-wide, like gpuwhy's probes, and without the final pass that only `perf report` needs."""
        options = ["-a", "-c", "1", "-m", str(self.perf_pages), "--no-buildid", "--no-buildid-cache"]
        return ["perf", "record", *options, "-e", f"{GROUP}:{case}_*", "-o", self.dir / "perf.data", "--"]


def system(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if check and done.returncode:
        raise Failure(f"{' '.join(command[:2])}: {done.stderr.strip()[-500:]}")
    return done.stdout


def add_probes(case, library, functions):
    """Adds a probe at entry and one at return."""
    probes = [f"--add={GROUP}:{case}_{name}={name}{end}" for name in functions for end in ("", "%return")]
    system("perf", "probe", "-x", str(library.resolve()), *probes)


def remove_probes():
    """Removes the probes, also those of a killed benchmark. Retries, because the kernel may still be releasing one."""
    for _ in range(20):
        if GROUP not in pathlib.Path(TRACEFS, "uprobe_events").read_text(encoding="utf-8"):
            return
        system("perf", "probe", "-q", "-d", f"{GROUP}:*", check=False)
        time.sleep(0.2)
    print(f"warning: could not remove the probes: remove them with perf probe -d '{GROUP}:*'", file=sys.stderr)


def peak_memory(pid):
    """Bytes, with perf's buffers, which belong to the process but are not in its resident set."""
    resident = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    buffers = re.findall(r"^(\w+)-(\w+) .*\[perf_event\]$", maps, re.MULTILINE)
    return int(resident.group(1)) * 1024 + sum(int(end, 16) - int(start, 16) for start, end in buffers)


def simulated_stack():
    """The folder of the newest build."""
    found = [path.parent for path in ROOT.glob("target/release/build/simgpu-*/out/simjob")]
    return max(found, key=lambda folder: folder.stat().st_mtime)


# 1. Cost of a call


def call_costs(bench, rounds, calls):
    """CPU time of a call in ns, for each case and way of tracing: one figure per round."""
    costs = {case: {way: [] for way in WAYS} for case in CASES}
    for turn in range(rounds):
        for case, (mix, folder, _) in CASES.items():
            job = bench.job(mix, calls, folder=folder, pinned=True)
            for way in WAYS:
                with bench.step(f"cost of a call, round {turn + 1} of {rounds}: {case}, {way}"):
                    costs[case][way].append(one_cost(bench, way, case, folder, job)["cpu_ns_per_call"])
    return costs


def one_cost(bench, way, case, folder, job):
    """simjob's report."""
    if way == "untraced":
        return bench.untraced(job, folder)
    if way == "gpuwhy":
        report, summary = bench.gpuwhy(job, folder)
        if summary["lost"]:
            raise Failure(f"gpuwhy lost {summary['lost']} events")
        return report
    if way == "bystander":
        tracer = [GPUWHY, "trace", "--budget", "none", "--quiet", "--db", bench.dir / f"{time.monotonic_ns()}.db", "--"]
    elif way == "floor":
        # A counter on another CPU: the job takes the traps, and the kernel does almost nothing in them.
        where = ["-a"] if bench.other_cpu is None else ["-C", str(bench.other_cpu)]
        tracer = ["perf", "stat", *where, "-e", f"{GROUP}:{case}_*", "--"]
    else:
        tracer = bench.perf_record(case)
    with bench.beside(tracer, folder):
        return bench.untraced(job, folder)


# 2. How many calls a second


def loads(bench, seconds):
    """One row for each tool and rate."""
    rows = []

    def measure(tool, rate, calls):
        with bench.step(f"load: {tool} at {f'{rate:,} calls/s' if rate else 'full speed'}"):
            pace = ["--rate", str(rate)] if rate else []
            job = bench.job("mixed", int(calls), "--procs", "2", "--threads", "2", *pace)
            rows.append(one_load(bench, tool, rate, job))
            return rows[-1]["per_second"]

    for tool in ("untraced", "perf"):
        measure(tool, RATES[0], RATES[0] * seconds)
    reached = RATES[0]
    for rate in RATES:
        calls = (min(rate, 2 * reached) if rate else reached) * seconds
        reached = measure("gpuwhy", rate, calls) or reached
    for tool in ("untraced", "perf"):
        measure(tool, 0, calls)
    for tool in ("gpuwhy", "perf"):
        measure(tool, 1, 4)  # cost of startup and end
    return rows


def one_load(bench, tool, rate, job):
    recorded = {}
    if tool == "untraced":
        done = bench.untraced(job)
    elif tool == "gpuwhy":
        done, end = bench.gpuwhy(job)
        own = end["own_cost"]
        recorded = {"cpu_s": own["cpu_ns"] / 1e9, "memory_bytes": own["peak_memory_bytes"], "file_bytes": end["size_bytes"]}
        recorded |= {key: end[key] for key in ("kept", "lost_by_its_own_count")}
    else:
        with bench.beside(bench.perf_record("mixed")) as recorded:
            done = bench.untraced(job)
        recorded |= perf_kept(bench)
    try:
        return figures.load_row(tool, rate, done, recorded)
    except figures.Impossible as contradiction:
        raise Failure(str(contradiction)) from contradiction


def perf_kept(bench):
    """The content of perf.data. Two samples, entry and return, are one call."""
    file = bench.dir / "perf.data"
    stats = bench.output(["perf", "report", "--stats", "-i", file])[0]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["perf", "script", "-i", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    decode = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = file.stat().st_size
    file.unlink()
    _, *events = re.split(rf"^{GROUP}:\w+ stats:$", stats, flags=re.MULTILINE)
    if not events:
        raise Failure(f"cannot read perf report --stats: {stats[-500:]}")

    def total(kind):
        return sum(int(n) for event in events for n in re.findall(rf" {kind} events: +(\d+)", event))

    return {"kept": total("SAMPLE") / 2, "lost_by_its_own_count": total("LOST_SAMPLES") / 2, "file_bytes": size, "decode_s": decode}


# Main


def machine():
    def first(path, pattern):
        with contextlib.suppress(OSError):
            found = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
            return found.group(1) if found else None

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": first("/proc/cpuinfo", r"^model name\s*: (.*)") or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "perf": system("perf", "--version").strip(),
        "srso": first("/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow", "(.*)"),
        "load": os.getloadavg()[0],
    }


def check_needs():
    if os.geteuid() != 0:
        raise Failure("probes need root: run sudo python3 bench/run.py")
    if not shutil.which("perf"):
        raise Failure("perf is not installed: install linux-perf (Debian) or linux-tools-generic (Ubuntu)")
    if not GPUWHY.exists() or not any(ROOT.glob("target/release/build/simgpu-*/out/simjob")):
        raise Failure("gpuwhy or simgpu is not built: run cargo build --release --workspace")


def stop(number, _):
    if number == signal.SIGALRM:
        raise Failure(f"not finished after {LIMIT_S} s")
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter loads")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write every figure to this file")
    options = parser.parse_args()
    rounds, calls, seconds = (3, 100_000, 2) if options.quick else (5, 300_000, 5)
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        check_needs()
        with Bench() as bench:
            about = machine()
            costs = call_costs(bench, rounds, calls)
            rows = loads(bench, seconds)
    except Failure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130
    every = {"machine": about, "rounds": rounds, "cpu_ns_per_call": costs, "loads": rows, "problems": bench.problems}
    report.show(every)
    if options.json:
        options.json.write_text(json.dumps(every, indent=2) + "\n", encoding="utf-8")
    return 1 if bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
