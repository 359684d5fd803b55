# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the host's benchmark, on figures whose results were worked out by hand."""
import contextlib
import io
import pathlib
import sqlite3
import tempfile
import unittest

import host
import host_report


def shown(show, *figures):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = show(*figures)
    return out.getvalue(), result


def burst(made, kept, lost, seconds=2.0):
    return {"made": made, "kept": kept, "lost": lost, "seconds": seconds, "per_second": made / seconds, "cpu_s": 0.5,
            "memory_bytes": 40e6, "bytes": 30.0}


class Switches(unittest.TestCase):
    def test_only_the_pair_and_both_kinds_of_switches_count(self):
        pair = {"what": "window", "voluntary": 900, "involuntary": 100, "cpu_ns": 2_000_000}
        lines = [{**pair, "name": "switcher 0"}, {**pair, "name": "switcher 1"}, {**pair, "name": "main"}, {"what": "end"}]
        self.assertEqual(host.switched(lines), (4_000_000, 2_000))

    def test_what_was_kept_is_of_the_threads_and_between_the_moments(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.db")
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE sessions (start_monotonic_ns)")
                connection.execute("CREATE TABLE events (op, tid, timestamp)")
                connection.execute("INSERT INTO sessions VALUES (1000)")
                # The window of thread 7 is 100 to 200 after the run began, its ends included.
                rows = [("sched_switch", 7, t) for t in (99, 100, 150, 200, 201)]
                rows += [("sched_wakeup", 7, 150), ("sched_switch", 8, 150), ("sched_switch", 9, 150)]
                connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
                connection.commit()
            windows = [{"tid": tid, "begin": 1100, "end": 1200} for tid in (7, 8)]
            self.assertEqual(host.kept_switches(path, windows), 4)


class Differences(unittest.TestCase):
    WAYS = {"untraced": [{"ns": 100}, {"ns": 900}, {"ns": 200}], "everything": [{"ns": 160}, {"ns": 950}, {"ns": 270}]}

    def test_rounds_are_compared_with_themselves(self):
        self.assertEqual(host_report.differences(self.WAYS, "everything"), [60, 50, 70])
        # The medians of the two ways, 200 and 270, differ by 70.
        self.assertEqual(host_report.added(self.WAYS, "everything"), 60)
        self.assertIsNone(host_report.added({"untraced": [], "everything": []}, "everything"))

    def test_spread_is_half_the_distance_of_the_quartiles(self):
        self.assertEqual(host_report.spread([1, 2, 3, 4, 5]), 1)
        self.assertIsNone(host_report.spread([1, 2]))

    def test_rounds_without_a_figure_are_passed_over(self):
        self.assertEqual(host_report.middle([{"bytes": 3}, {"bytes": None}, {}, {"bytes": 5}], "bytes"), 4)
        self.assertIsNone(host_report.middle([{}], "bytes"))


class Tables(unittest.TestCase):
    def test_bursts_are_summed_over_rounds(self):
        ways = {"untraced": [{"made": 9, "seconds": 2.0, "per_second": 4.5}], "everything": [burst(1_000, 990, 4), burst(3_000, 2_980, 6)]}
        text, _ = shown(host_report.show_bursts, ways)
        # 4,000 made, 3,970 kept, so 30 missing, of which gpuwhy knows 10; a second of CPU in four seconds.
        self.assertRegex(text, r"everything +1,000 +4,000 +3,970 +30 +10 +25 % +40 MB +30\.0")

    def test_a_new_stack_does_not_pay_for_the_start(self):
        starts = {"everything": [{"wall_s": 1.0, "cpu_s": 0.7}], "--no-stack": [{"wall_s": 0.8, "cpu_s": 0.5}]}
        cases = {
            "known site, 1 deep": {"untraced": [{"ns": 500}], "no stacks": [{"ns": 900, "own_cpu_s": 0.5}], "everything": [{"ns": 1_200, "own_cpu_s": 0.7, "stacks": 1}]},
            "new line": {"untraced": [{"ns": 500}], "no stacks": [{"ns": 900, "own_cpu_s": 0.6}], "everything": [{"ns": 3_000, "own_cpu_s": 1.0, "stacks": 10_000}]},
        }
        text, sites = shown(host_report.show_stacks, cases, starts)
        self.assertEqual(sites, {"known site, 1 deep": 300}, "lines that are new are no aim")
        # 0.4 s more, 0.2 s of it for the start: 20 µs for each of 10,000 stacks.
        self.assertRegex(text, r"new line +500 +900 +3,000 +2,100 .*10,000 +20\.0\n")

    def test_aims_count_loss_that_gpuwhy_does_not_know(self):
        switches = {"C": {"bystander": 100, "everything": 1_300}}
        text, _ = shown(host_report.show_aims, switches, {"everything": [burst(1_000, 990, 4)]}, {"known site, 1 deep": None})
        self.assertRegex(text, r"bystander's switch, µs: C +<= 0\.15 +0\.10  met")
        self.assertRegex(text, r"target's switch, µs: C +<= 1\.2 +1\.30  not met")
        self.assertRegex(text, r"lost at 500 switches/s +<= 0 +10\.00  not met")
        self.assertNotRegex(text, r"known site.*met")


if __name__ == "__main__":
    unittest.main()
