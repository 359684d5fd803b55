# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the MCP benchmark."""
import contextlib
import io
import itertools
import random
import unittest

import mcp


class Quantiles(unittest.TestCase):
    def test_of_a_hundred_the_99th_is_not_the_largest(self):
        values = list(range(100, 0, -1))
        self.assertEqual([mcp.quantile(values, q) for q in (0.0, 0.5, 0.99, 1.0)], [1, 50, 99, 100])

    def test_few_values_are_their_own_quantiles(self):
        self.assertEqual([mcp.quantile([7], q) for q in (0.5, 0.99)], [7, 7])
        self.assertEqual([mcp.quantile([3, 1], q) for q in (0.5, 0.99)], [1, 3])


class Rows(unittest.TestCase):
    def test_times_are_milliseconds_beside_the_smallest_question(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            mcp.row("get_stacks", [i / 1000 for i in range(1, 101)], 0.5)
        self.assertEqual(out.getvalue().split(), "get_stacks 100 50.00 99.00 100.00 198 times".split())


class Questions(unittest.TestCase):
    def test_they_are_the_same_each_time_and_within_the_run(self):
        asked = [list(itertools.islice(mcp.questions(random.Random(mcp.SEED), 60), 200)) for _ in range(2)]
        self.assertEqual(*asked)
        times = [arguments["at"] for tool, arguments in asked[0] if "at" in arguments]
        self.assertTrue(times and all(0 <= at < 60 for at in times))


if __name__ == "__main__":
    unittest.main()
