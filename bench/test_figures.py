# SPDX-License-Identifier: Apache-2.0
"""Tests of the benchmark's arithmetic, with known results.

Run with `python3 -m unittest discover -s bench`.
"""
import contextlib
import io
import pathlib
import sqlite3
import tempfile
import unittest

import figures
import report

# Two seconds at 100,000 calls/s, and 40 calls around them. The tools record all but four calls per thread.
DONE = {"calls": 200_000, "setup_calls": 40, "seconds": 2.0, "cpu_ns_per_call": 900}
MADE = 200_024


def run_file(path, calls, others, lost=()):
    """Makes a file with the queried views: calls, events of the host, rows of loss."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE events (op, layer, weight); CREATE TABLE ops (op, layer); CREATE TABLE loss (op, count, loses_event);"
            "INSERT INTO ops VALUES ('cudaMalloc', 'runtime'), ('cuLaunchKernel', 'driver'), ('sched_switch', 'kernel')"
        )
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", calls + others)
        connection.executemany("INSERT INTO loss VALUES (?, ?, ?)", lost)
        connection.commit()


class Load(unittest.TestCase):
    def test_events_of_the_host_are_no_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.db")
            # A row may represent several calls.
            calls = [("cudaMalloc", "runtime", 24), ("cuLaunchKernel", "driver", 200_000)]
            run_file(path, calls, [("sched_switch", "kernel", 1)] * 8_391)
            recorded = figures.calls_in(path)
        self.assertEqual(recorded, {"kept": MADE, "lost_by_its_own_count": 0})
        row = figures.load_row("gpuwhy", 100_000, DONE, {**recorded, "file_bytes": 50 * MADE, "cpu_s": 1.0})
        self.assertEqual((row["lost"], row["per_second"], row["bytes_per_call"], row["cpu_percent"]), (0, 100_000, 50, 50))
        self.assertEqual(figures.lossless_rate([row]), 100_000)

    def test_loss_is_that_of_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.db")
            lost = [("cudaMalloc", 500, 1), (None, 20, 1), ("sched_switch", 7, 1), ("cudaMalloc", 3, 0)]
            run_file(path, [("cudaMalloc", "runtime", MADE - 520)], [("sched_switch", "kernel", 1)] * 1_000, lost)
            recorded = figures.calls_in(path)
        row = figures.load_row("gpuwhy", 100_000, DONE, recorded)
        self.assertEqual((row["lost"], row["lost_by_its_own_count"]), (520, 520))
        self.assertIsNone(figures.lossless_rate([row]))

    def test_more_than_was_made_is_no_figure(self):
        with self.assertRaisesRegex(figures.Impossible, "200,025 calls of 200,024"):
            figures.load_row("gpuwhy", 100_000, DONE, {"kept": MADE + 1, "lost_by_its_own_count": 0})
        self.assertEqual(figures.load_row("perf", 100_000, DONE, {"kept": MADE + 1})["lost"], 0)

    def test_only_whole_records_of_gpuwhy_are_lossless(self):
        def row(tool, seconds, kept):
            return figures.load_row(tool, 0, {**DONE, "seconds": seconds}, {"kept": kept})

        rows = [row("gpuwhy", 2.0, MADE), row("gpuwhy", 1.0, MADE), row("gpuwhy", 0.5, MADE - 1), row("perf", 0.4, MADE)]
        rows.append(figures.load_row("untraced", 0, DONE, {}))
        self.assertEqual(figures.lossless_rate(rows), 200_000)

    def test_starting_and_ending_is_not_a_load(self):
        few = {"calls": 4, "setup_calls": 40, "seconds": 0.5, "cpu_ns_per_call": 900}
        start = figures.load_row("gpuwhy", 1, few, {"kept": 28, "lost_by_its_own_count": 0})
        lossy = figures.load_row("gpuwhy", 100_000, DONE, {"kept": MADE - 1, "lost_by_its_own_count": 1})
        self.assertEqual(start["lost"], 0)
        self.assertIsNone(figures.lossless_rate([start, lossy]))


class Report(unittest.TestCase):
    def shown(self, kept):
        recorded = {"kept": kept, "lost_by_its_own_count": MADE - kept, "file_bytes": 50 * MADE, "memory_bytes": 40e6, "cpu_s": 1.0}
        rows = [figures.load_row("untraced", 100_000, DONE, {}), figures.load_row("gpuwhy", 100_000, DONE, recorded)]
        ways = {"untraced": [500], "bystander": [600], "floor": [1_500], "gpuwhy": [1_600], "perf": [2_500]}
        about = {"date": "today", "cpu": "a CPU", "cores": 2, "kernel": "6.1", "perf": "perf 6.1", "srso": None, "load": 0.0}
        every = {"machine": about, "rounds": 3, "cpu_ns_per_call": {"launch": ways}, "loads": rows, "problems": []}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            report.show(every)
        return out.getvalue()

    def test_it_says_whether_there_was_loss(self):
        whole = self.shown(MADE)
        self.assertRegex(whole, r"gpuwhy +100,000 +100,000 +0 ")
        self.assertRegex(whole, r"lost at 100k/s +<= 0 +0\.00  met")
        self.assertIn("without loss here: 100,000 calls/s", whole)
        some = self.shown(MADE - 7)
        self.assertRegex(some, r"gpuwhy +100,000 +100,000 +7 ")
        self.assertRegex(some, r"lost at 100k/s +<= 0 +7\.00  not met")
        self.assertIn("gpuwhy lost calls at every rate tried", some)


if __name__ == "__main__":
    unittest.main()
