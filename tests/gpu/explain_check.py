# SPDX-License-Identifier: Apache-2.0
"""Compares an explanation with torch.profiler's trace of the same time range, and with the planted problem.

Usage: explain_check.py GPUWHY RUN.db TRUTH.json
"""
import json
import subprocess
import sys

EXPECTED = {
    "hog": {"cpu_contention"},
    "workers": {"input_starved"},
    "sync": {"sync_bound", "launch_bound"},
    "alloc": {"alloc_churn"},
    "launch": {"launch_bound", "sync_bound"},
    "healthy": set(),
    "never": set(),
}
SERIOUS = ("medium", "high", "critical")


def explain(*arguments):
    return json.loads(subprocess.run([*arguments, "--json"], capture_output=True, text=True, check=True).stdout)


def main():
    gpuwhy, run = sys.argv[1], sys.argv[2]
    with open(sys.argv[3]) as file:
        truth = json.load(file)
    base = [gpuwhy, "explain", "--db", run]
    start = explain(*base)["start_monotonic_ns"]
    at = lambda ns: f"{(ns - start) / 1e9:.9f}s"  # noqa: E731
    part = explain(*base, "--from", at(truth["begin_ns"]), "--to", at(truth["end_ns"]))
    whole = explain(*base, "--from", at(truth["clean_ns"][0]), "--to", at(truth["clean_ns"][1]))
    span = truth["end_ns"] - truth["begin_ns"]
    idle = span - truth["busy_ns"]
    least, most = part["gpu_idle_min_ns"], part["gpu_idle_max_ns"]
    enclosed = least is not None and least <= idle <= most
    found = [finding for finding in whole["findings"] if finding["severity"] in SERIOUS]
    expected = EXPECTED[truth["scenario"]]
    right = (found[0]["kind"] in expected) if expected and found else not expected and not found
    gpu = (part["gpus"] or [{}])[0]
    print(
        f"{truth['scenario']:8} true idle {idle / span:6.1%}  bounds {(least or 0) / span:6.1%} to {(most or 0) / span:6.1%} "
        f"{'enclosed' if enclosed else 'NOT ENCLOSED'}  host {gpu.get('host_idle_min_ns', 0) / span:.1%} "
        f"nvml {(gpu.get('nvml_idle_min_ns') or 0) / span:.1%} nvidia-smi {gpu.get('rate_percent')}  "
        f"{'right' if right else 'WRONG'}: {[(f['severity'], f['kind'], round(f['share'], 3), f['root_cause'].get('line')) for f in whole['findings']][:4]}"
    )
    print("   ", whole["verdict"])
    return 0 if enclosed and right else 1


sys.exit(main())
