# SPDX-License-Identifier: Apache-2.0
"""Tests of the judge: right explanations pass, and every kind of mistake is reported.

Run with `python3 -m unittest discover -s score`.
"""

import random
import struct
import tempfile
import unittest
from pathlib import Path

import cases
import judge
import truth

MS = 1_000_000
START = 1_000 * MS  # of the run, CLOCK_MONOTONIC

# Ten kernels of 6 ms, one every 10 ms: 4 ms idle between two, 36 ms in total.
KERNELS = [(START + 100 * MS + n * 10 * MS, START + 106 * MS + n * 10 * MS) for n in range(10)]
JOB = {"pid": 7, "lines": {"host_sleep": [["trouble_host.py", 30, 32]]}}


def true(kernels=None, copies=(), others=()):
    spans = truth.union(kernels or KERNELS)
    every = truth.union([*spans, *copies, *others])
    return truth.Truth(truth.union([*spans, *others]), every, truth.union(others), spans[0][0], spans[-1][1])


def finding(
    kind="host_sleep", root="host_sleep", lost=36 * MS, severity="high", line="job/trouble_host.py:31", name=None
):
    link = {"layer": "thread", "who": "python3", "what": "sleeps", "line": line, "state": "blocked", "ns": lost}
    cause = {"kind": root, "pid": 7, "name": name, "detail": "", "line": None}
    return {"kind": kind, "severity": severity, "title": "", "lost_ns": lost, "chain": [link], "root_cause": cause}


def explanation(*findings, least=100 * MS, most=250 * MS):
    """An explanation of 300 ms, of which 60 ms were busy."""
    span = {"start_monotonic_ns": START, "from_ns": 0, "to_ns": 300 * MS}
    return span | {"gpu_idle_min_ns": least, "gpu_idle_max_ns": most, "findings": list(findings)}


def wrongs(name, told, scene=None, truth_told=None):
    case = cases.by_name(name)
    return judge.judge(case, 1, scene or cases.Scene([]), JOB, truth_told or true(), told).wrong


class Judge(unittest.TestCase):
    def test_a_right_explanation(self):
        self.assertEqual(wrongs("host_sleep", explanation(finding())), [])

    def test_no_finding_and_a_wrong_one(self):
        self.assertEqual(wrongs("host_sleep", explanation()), ["no finding"])
        self.assertIn("expected", wrongs("host_sleep", explanation(finding("cpu_contention")))[0])

    def test_lost_time_and_lines(self):
        for lost, right in ((33 * MS, True), (32 * MS, False), (39 * MS, True), (40 * MS, False)):
            self.assertEqual(wrongs("host_sleep", explanation(finding(lost=lost))) == [], right, lost)
        told = explanation(finding(line="trouble_host.py:33"))
        self.assertEqual(wrongs("host_sleep", told), ["does not name the line"])

    def test_bounds_hold_the_true_idle_time(self):
        outside = ["true idle time outside of the bounds"]
        for least, most, right in ((0, 240 * MS, True), (240 * MS, 300 * MS, True), (241 * MS, 300 * MS, False)):
            told = explanation(finding(), least=least, most=most)
            self.assertEqual(wrongs("host_sleep", told), [] if right else outside, (least, most))
        copy = [(KERNELS[0][1], KERNELS[0][1] + MS)]
        told = explanation(finding(), least=0, most=239 * MS)
        self.assertEqual(wrongs("host_sleep", told), outside)
        self.assertEqual(wrongs("host_sleep", told, truth_told=true(copies=copy)), [])
        told = explanation(finding(), least=None, most=None)
        self.assertEqual(wrongs("host_sleep", told), ["no bounds of the idle time"])

    def test_controls(self):
        self.assertEqual(wrongs("healthy", explanation(finding("gpu_bound", "gpu_bound", 0, "info"))), [])
        self.assertEqual(wrongs("healthy", explanation(finding(severity="low"))), [])
        told = explanation(finding("gpu_bound", "gpu_bound", 0, "info"), finding(severity="medium"))
        self.assertEqual(wrongs("healthy", told), ["false finding host_sleep (medium)"])

    def test_names(self):
        scene = cases.Scene([], names=["rsync-1a2b"])
        told = explanation(finding("cpu_contention", "cpu_contention", name="rsync-1a2b"))
        self.assertEqual(wrongs("hog", told, scene), [])
        told = explanation(finding("cpu_contention", "cpu_contention", name="python3"))
        self.assertEqual(wrongs("hog", told, scene), ["does not name rsync-1a2b"])

    def test_two_troubles_are_both_told(self):
        first = finding("input_starved", "host_sleep", lost=20 * MS)
        second = finding("sync_bound", "sync_bound", lost=16 * MS)
        self.assertEqual(wrongs("two_troubles", explanation(first, second)), [])
        missed = wrongs("two_troubles", explanation(finding("input_starved", "host_sleep")))
        self.assertEqual(missed, ["misses sync_bound ← sync_bound"])

    def test_a_shared_gpu(self):
        shared = true(others=[(KERNELS[0][1], KERNELS[1][0])])
        for lost, right in ((4 * MS, True), (5 * MS, False)):
            told = explanation(finding("gpu_shared", "gpu_shared", lost=lost))
            self.assertEqual(wrongs("gpu_shared", told, truth_told=shared) == [], right, lost)


class Parts(unittest.TestCase):
    def test_a_log_is_read(self):
        record = struct.pack("<QQQQQiHBBbB14x", 10, 20, 0, 0, 0, 0, 1, 2, 1, 0, 0)
        copy = struct.pack("<QQQQQiHBBbB14x", 30, 40, 0, 0, 0, 0, 1, 2, 1, 0, 1)
        call = struct.pack("<QQQQQiHBBbB14x", 1, 90, 0, 0, 0, 0, 1, 1, 0, 0, 0)
        header = struct.pack("<8sIIIIIIIIQ", b"SIMLOG1\0", 7, 8, 4096, 64, 512, 96, 0, 2, 3)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "7.8.simlog").write_bytes(header.ljust(4096, b"\0") + record + copy + call)
            (Path(folder) / "7.9.simlog").write_bytes(bytes(4096))
            told = truth.of_job(folder, 7)
        self.assertEqual((told.first, told.last), (10, 40))
        self.assertEqual(told.idle(0, 50), (40, 30))
        self.assertEqual(told.steady_idle(), 20)

    def test_variations_are_the_same_for_the_same_seed(self):
        for case in cases.CASES:
            self.assertEqual(cases.variation(case, 1, 5), cases.variation(case, 1, 5), case.name)
            random.seed(1)
            for number in range(20):
                scene = cases.variation(case, number, 5)
                self.assertTrue(all(isinstance(part, str) for part in scene.job), case.name)


if __name__ == "__main__":
    unittest.main()
