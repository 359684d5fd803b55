# SPDX-License-Identifier: Apache-2.0
"""Tests that run.py chooses the right kernel and reports success only if the tests passed."""

import unittest

import run


class Packages(unittest.TestCase):
    def test_the_newest_of_the_series_is_taken(self):
        names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64-unsigned",
            "linux-image-6.1.0-57-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.99+deb12-cloud-amd64",
            "linux-image-6.12-cloud-amd64",
        ]
        self.assertEqual(run.newest_package("6.1", names), "linux-image-6.1.0-56-cloud-amd64")
        self.assertEqual(run.newest_package("6.12", names), "linux-image-6.12.117+deb12-cloud-amd64")
        self.assertIsNone(run.newest_package("5.15", names))


class Judgement(unittest.TestCase):
    COMMANDS = ["/deps/exact-1 --exact a b", "/deps/told-2 --exact c"]

    CHECKED = "ok       eBPF programs   loaded, probes by uprobe plain"

    def printed(self, *lines, check=CHECKED):
        return "\r\n".join(["guest: Linux 6.1.0", check, *lines, "guest: done", ""])

    def test_all_passed(self):
        printed = self.printed(
            "test result: ok. 2 passed; 0 failed; 0 ignored",
            "guest: exit 0 after 4.5 to 9.2 s: /deps/exact-1 --exact a b",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
            "guest: exit 0 after 9.2 to 12.0 s: /deps/told-2 --exact c",
        )
        self.assertEqual(run.judge(printed, self.COMMANDS), ([], 3))

    def test_a_failure_and_a_command_that_never_ended_are_named(self):
        printed = self.printed(
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "guest: exit 101 after 4.5 to 9.2 s: /deps/exact-1 --exact a b",
            "guest: start /deps/told-2 --exact c",
        )
        failed, passed = run.judge(printed, self.COMMANDS)
        self.assertEqual(failed, ["exit 101: /deps/exact-1 --exact a b", "did not end: /deps/told-2 --exact c"])
        self.assertEqual(passed, 0)

    def test_a_kernel_that_refuses_a_program_fails(self):
        ends = [f"guest: exit 0 after 1.0 to 2.0 s: {command}" for command in self.COMMANDS]
        refused = "absent   eBPF programs   loaded, probes by uprobe plain, but disk requests are not recorded"
        failed, _ = run.judge(self.printed(*ends, check=refused), self.COMMANDS)
        self.assertEqual(len(failed), 1)
        self.assertIn("absent loaded", failed[0])
        failed, _ = run.judge(self.printed(*ends, check=""), self.COMMANDS)
        self.assertEqual(failed, ["check: eBPF programs: not printed"])
        coloured = "\x1b[32mok     \x1b[0m  eBPF programs   loaded, probes by uprobe plain"
        self.assertEqual(run.judge(self.printed(*ends, check=coloured), self.COMMANDS), ([], 0))

    def test_a_list_may_have_comments(self):
        text = "# why\nexact one two  # and why\n\ntold three\n"
        self.assertEqual(run.read_list(text), [("exact", ["one", "two"]), ("told", ["three"])])


class RamDisk(unittest.TestCase):
    def test_what_is_packed_is_what_cpio_unpacks(self):
        import gzip

        archive = run.Archive()
        archive.entry("/etc/name", 0o100644, b"five!")
        data = gzip.decompress(archive.gzip())
        self.assertEqual(len(data) % 4, 0)
        names, at = [], 0
        while data[at : at + 6] == b"070701":
            size, length = int(data[at + 54 : at + 62], 16), int(data[at + 94 : at + 102], 16)
            names.append(data[at + 110 : at + 110 + length - 1].decode())
            start = at + 110 + length + -(110 + length) % 4
            if names[-1] == "etc/name":
                self.assertEqual(data[start : start + size], b"five!")
            at = start + size + -size % 4
        self.assertEqual(names, ["etc", "etc/name", "TRAILER!!!"])


if __name__ == "__main__":
    unittest.main()
