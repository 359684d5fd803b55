#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often `gpuwhy explain` is right, on jobs with a known problem on a simulated GPU.

Run as root after `cargo build --release`, or with `make score`. The table has a line for each run. The exit code is 1
if one is wrong. docs/score.md describes the cases and what counts as right.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import cases
import judge
import stage
import truth

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
GPUWHY = pathlib.Path(os.environ.get("GPUWHY") or TARGET / "release/gpuwhy")
INSTALL = TARGET / "release/examples/install"
SEED = 20
LIMIT_S = 90  # a run that takes longer hangs
ATTEMPTS = 2  # because other load on the machine can keep a job from having its trouble


class Failure(Exception):
    """A run failed."""


def output_of(command, **options):
    """stdout of a command; an error if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} {command[1]} took more than {LIMIT_S} s") from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        said = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise Failure(f"{pathlib.Path(command[0]).name} {command[1]}: {said}")
    return done.stdout


def install(folder):
    """Writes the simulated CUDA stack into a folder."""
    if INSTALL.exists():
        output_of([str(INSTALL), str(folder)])
        return
    raise Failure(f"{INSTALL} is missing: run cargo build --release -p simgpu --example install")


def trace(lib, folder, scene):
    """Runs the job under gpuwhy. Its files are in the folder afterwards."""
    folder.mkdir(parents=True)
    (folder / "log").mkdir()
    with stage.Stage(lib, folder, scene) as around:
        job = [sys.executable, str(lib / "trouble.py"), *scene.job, *around.arguments]
        command = [str(GPUWHY), "trace", "--db", str(folder / "run.db"), "-q", "--", *job]
        output_of(command, env=around.environment(scene.nvml))
    (folder / "scene.json").write_text(json.dumps(dataclasses.asdict(scene), indent=1))


def trace_until_sane(case, number, scene, lib, folder):
    """Traces again if the job did not have its trouble; fails if it still has not."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        trace(lib, folder, scene)
        _, true = known(folder)
        problem = judge.sane(case, true)
        if problem is None:
            return
        print(f"{case.name} {number}: {problem}", file=sys.stderr, flush=True)
    raise Failure(problem)


def known(folder):
    """The job's own report, and the truth about the GPU."""
    path = folder / "job.json"
    if not path.exists():
        raise Failure("the job did not finish")
    job = json.loads(path.read_text())
    return job, truth.of_job(folder / "log", job["pid"])


def read_scene(folder):
    """The variation of a kept run."""
    fields = json.loads((folder / "scene.json").read_text())
    fields["hogs"] = [cases.Hog(**hog) for hog in fields["hogs"]]
    return cases.Scene(**fields)


def explain(folder, case, number, scene, truth_only):
    """The row of a traced run."""
    job, true = known(folder)
    row = judge.Row(case.name, number, true.share(), true_ns=true.steady_idle())
    if truth_only:
        return row
    try:
        text = output_of([str(GPUWHY), "explain", "--db", str(folder / "run.db"), "--json"])
        (folder / "explain.json").write_text(text)
        return judge.judge(case, number, scene, job, true, json.loads(text))
    except (Failure, OSError, ValueError, KeyError, TypeError) as error:
        row.wrong.append(f"no explanation: {type(error).__name__}: {error}")
        return row


def one_row(case, number, options, lib, top):
    """One run from beginning to end. Any failure makes its row wrong."""
    folder = top / f"{case.name}-{number}"
    try:
        if options.again:
            scene = read_scene(folder)
        else:
            scene = cases.variation(case, number, options.seed)
            trace_until_sane(case, number, scene, lib, folder)
        return explain(folder, case, number, scene, options.truth_only)
    except (Failure, stage.Unavailable, OSError, ValueError, KeyError) as error:
        return judge.Row(case.name, number, wrong=[f"{type(error).__name__}: {error}"])
    finally:
        if not options.keep and not options.again:
            shutil.rmtree(folder, ignore_errors=True)


def line_of(row):
    """A row as a line of the table."""
    lost = f"{row.lost_ns / 1e9:5.2f} / {row.true_ns / 1e9:5.2f} s"
    verdict = "; ".join(row.wrong) or "right"
    return f"{row.case:16} {row.number:2} {row.true_share:6.1%}  {row.top:38} {lost:15} {row.bounds:20} {verdict}"


def score(options, lib, top):
    """Runs everything, prints the table and returns how many rows are wrong."""
    chosen = [cases.by_name(name) for name in options.only] if options.only else cases.CASES
    print(f"seed {options.seed}, {len(chosen)} cases, {options.number} variations each\n")
    print(f"{'case':16} {'':2} {'idle':>6}  {'top finding':38} {'lost / true':15} {'bounds, s':20} verdict")
    rows = []
    for case in chosen:
        for number in range(1, options.number + 1):
            if options.again and not (top / f"{case.name}-{number}").is_dir():
                continue
            rows.append(one_row(case, number, options, lib, top))
            print(line_of(rows[-1]), flush=True)
    wrong = sum(bool(row.wrong) for row in rows)
    print(f"\n{len(rows) - wrong} of {len(rows)} right ({(len(rows) - wrong) / max(1, len(rows)):.0%})")
    return wrong


def names(text):
    """Parses names of cases, separated by commas."""
    chosen = text.split(",")
    unknown = set(chosen) - {case.name for case in cases.CASES}
    if unknown:
        raise argparse.ArgumentTypeError(f"no such case: {', '.join(sorted(unknown))}")
    return chosen


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the variations (%(default)s)")
    parser.add_argument("--only", type=names, metavar="CASE[,CASE]")
    parser.add_argument("--number", type=int, default=3, help="variations of each case (%(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keep run files, logs and truth in this folder")
    parser.add_argument("--again", type=pathlib.Path, metavar="DIR", help="explain and judge kept runs without running a job")
    parser.add_argument("--truth-only", action="store_true", help="only show the true idle time")
    parser.add_argument("--list", action="store_true", help="list the cases")
    return parser.parse_args()


def main():
    options = parse()
    if options.list:
        print("\n".join(f"{case.name:16} {case.about}" for case in cases.CASES))
        return 0
    if options.again:
        return 1 if score(options, None, options.again.resolve()) else 0
    if os.geteuid() != 0:
        sys.exit("gpuwhy needs root: sudo python3 score/run.py")
    # As after Ctrl-C: processes and files are cleaned up first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory(prefix="gpuwhy-score-") as scratch:
        lib = pathlib.Path(scratch) / "lib"
        try:
            install(lib)
        except Failure as error:
            sys.exit(str(error))
        top = options.keep.resolve() if options.keep else pathlib.Path(scratch) / "runs"
        return 1 if score(options, lib, top) else 0


if __name__ == "__main__":
    sys.exit(main())
