# SPDX-License-Identifier: Apache-2.0
"""Compares `gpuwhy memory` with PyTorch. Usage: memory_check.py GPUWHY RUN.db JOB.json exact|oom|killed|leak|attached|live [FOLDER]"""
import json
import os
import subprocess
import sys

gpuwhy, run, said_in, what = sys.argv[1:5]
here = os.path.dirname(os.path.realpath(__file__))
with open(said_in) as file:
    said = json.load(file)
failed = 0


def memory(*more):
    return json.loads(subprocess.check_output([gpuwhy, "memory", "--db", run, "--json", *more]))


def check(name, ok, words):
    global failed
    failed += not ok
    print(f"  {'ok ' if ok else 'NOT'} {name}: {words}")


def equal(name, got, expected):
    check(name, got == expected, f"gpuwhy {got}, PyTorch {expected}")


def marked(file, pattern):
    """The line with the comment `LEAK pattern`, as gpuwhy names it."""
    with open(os.path.join(here, file)) as lines:
        number = next(n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# LEAK {pattern}"))
    return f"{file}:{number}"


def torch_space(report):
    return next(space for space in report["spaces"] if space["source"] == "torch")


def peaks(report):
    space = torch_space(report)
    equal("peak", space["peak_allocated"], said["peak"])
    equal("peak reserved", space["peak_reserved"], said["peak_reserved"])
    by_line = sum(holder["bytes"] for holder in space["at_peak"]) + space["peak_preexisting"]
    equal("live at the peak, by line", by_line, said["peak"])


def exact():
    report = memory()
    peaks(report)
    for point in said["checkpoints"]:
        at = (point["at_ns"] - report["start_monotonic_ns"]) / 1e9
        space = torch_space(memory("--to", f"{at:.9f}s"))
        equal(f"allocated, {point['what']}", space["allocated"], point["allocated"])
        equal(f"reserved, {point['what']}", space["reserved"], point["reserved"])


def exact_expandable_segments():
    exact()


def exact_backend():
    """With CUDA's own pool PyTorch reports nothing, but every allocation is a CUDA call."""
    report = memory()
    check("no reports", all(space["source"] == "driver" for space in report["spaces"]), len(report["spaces"]))
    equal("peak", report["spaces"][0]["peak_allocated"], said["peak"])
    for point in said["checkpoints"]:
        at = (point["at_ns"] - report["start_monotonic_ns"]) / 1e9
        equal(f"allocated, {point['what']}", memory("--to", f"{at:.9f}s")["spaces"][0]["allocated"], point["allocated"])


def oom():
    report = memory()
    peaks(report)
    equal("times memory ran out", report["oom_count"], 1)
    record = report["ooms"][0]
    equal("asked", record["asked"], said["asked"])
    equal("in use", record["allocated"], said["allocated"])
    live = sum(holder["bytes"] for holder in record["live"]) + record["preexisting"]
    equal("live by line", live, said["allocated"])
    equal("the line that asked", record["line"], marked("memory_job.py", "oom"))
    equal("the line that held most", record["live"][0]["line"], marked("memory_job.py", "oom"))
    check("it ended the process", record["fatal"], record["fatal"])
    check("the time before", len(record["before"]) > 0, f"{len(record['before'])} points")
    used, total, reserved = record["device_used"], record["device_total"], record["reserved"]
    late = (record["device_used_at_ns"] - record["at_ns"]) / 1e6
    check("the device's figures, then", reserved <= used <= total, f"{used} of {total}, {late:.1f} ms later")
    finding = next(finding for finding in report["findings"] if finding["kind"] == "oom")
    print(f"      {finding['severity']}: {finding['title']}: {finding['root_cause']['kind']}")
    for fix in finding["fixes"]:
        print(f"      fix: {fix['text']}")


def killed():
    report = memory()
    end = next((end for end in report["ends"] if end["pid"] == said["pid"]), None)
    check("its end is recorded", end is not None, report["ends"] and [e["signal"] for e in report["ends"]])
    if end:
        equal("signal", end["signal"], 9)
        equal("in use", end["allocated"] - end["direct"], said["allocated"])
        equal("the line that held most", end["live"][0]["line"], marked("memory_job.py", "killed"))


def leak():
    report = memory()
    peaks(report)
    steps = report["steps"][0] if report["steps"] else {}
    space = torch_space(report)
    nameless = sum(holder["bytes"] for holder in space["at_peak"] if not holder["line"]) / space["peak_allocated"]
    tight = [note for note in report["notes"] if "budget" in note]
    most = 0.02 if tight else 0.001
    check("memory at the peak has a line, gradients too", nameless < most, f"{nameless:.2%} has none; {tight}")
    print(f"      {steps.get('steps')} steps, certainty {steps.get('certainty')}, at {steps.get('marker_line')}")
    for one in report["leaks"]:
        print(f"      leak: {one['line']} {one['bytes_per_step']} B/step, from step {one['onset_step']}, {one['certainty']}")
    if not said["leaky"]:
        check("no leak", not report["leaks"], [one["line"] for one in report["leaks"]])
        return
    line = marked("memory_leaks.py", said["pattern"])
    check("the line is named", line in [one["line"] for one in report["leaks"]], line)
    found = [finding for finding in report["findings"] if finding["kind"] == "memory_leak"]
    check("it is a finding", any(line in finding["title"] for finding in found), [f["title"] for f in found])
    after = said["after_step"]
    first, last = len(after) // 4 // 5 * 5, len(after) // 5 * 5  # whole epochs
    truth = (after[last - 1] - after[first - 1]) / (last - first)
    got = sum(one["bytes_per_step"] or 0 for one in report["leaks"])
    check("bytes a step, within 2 %", abs(got / truth - 1) < 0.02, f"gpuwhy {got:.0f}, PyTorch {truth:.0f}")
    for finding in found[:1]:
        for fix in finding["fixes"][:1]:
            print(f"      fix: {fix['text']}")


def attached():
    """The job ran before the trace began, and it leaks, so its peak is at the end."""
    report = memory()
    space = torch_space(report)
    equal("peak", space["peak_allocated"], said["peak"])
    by_line = sum(holder["bytes"] for holder in space["at_peak"]) + space["peak_preexisting"]
    equal("live at the peak, by line or older", by_line, said["peak"])
    older = space["preexisting"]
    check("some is older than the recording", 0 < older < said["peak"], f"{older} bytes")
    line = marked("memory_leaks.py", said["pattern"])
    check("the line is named", line in [one["line"] for one in report["leaks"]], [one["line"] for one in report["leaks"]])


def live():
    """The live view and alerts while the job ran."""
    folder = sys.argv[5]
    with open(f"{folder}/live.jsonl") as file:
        told = [json.loads(line) for line in file]
    while_running = [one for one in told if one["type"] == "memory"]
    check("reports while it ran", len(while_running) >= 8, f"{len(while_running)} times")
    line = marked("memory_leaks.py", said["pattern"])
    grew = [one["at_ns"] for one in while_running if any(g["line"] == line and g["steadily"] for g in one["growing"])]
    leaks = [one["at_ns"] for one in while_running if any(g["line"] == line and g["leaks"] for g in one["growing"])]
    check("the line grows", bool(grew), f"from {min(grew, default=0) / 1e9:.1f} s on, in {len(grew)} reports")
    check("the line leaks", bool(leaks), f"from {min(leaks, default=0) / 1e9:.1f} s on, in {len(leaks)} reports")
    soon = [s["out_of_memory_in_ns"] for one in while_running for s in one["spaces"] if s["out_of_memory_in_ns"]]
    check("when memory runs out", bool(soon), f"last forecast: in {soon[-1] / 1e9:.0f} s" if soon else "no forecast")
    last = while_running[-1]
    peak = max(space["peak_allocated"] for space in last["spaces"] if space["source"] == "torch")
    check("the end", told[-1]["type"] == "end" and peak == said["peak"], f"{told[-1]['type']}, {peak} of {said['peak']}")
    check("the verdict", f"{line} leaks" in told[-1]["verdict"], told[-1]["verdict"])
    with open(f"{folder}/alerts") as file:
        alerts = file.read().splitlines()
    kinds = sorted({alert.split()[0] for alert in alerts})
    check("alerts, each once", len(alerts) == len(kinds) and {"growth", "leak"} <= set(kinds), alerts)


print(what, said.get("pattern", ""), {True: "leaky", False: "fixed"}.get(said.get("leaky"), ""))
globals()[what]()
sys.exit(failed > 0)
