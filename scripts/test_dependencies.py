# SPDX-License-Identifier: Apache-2.0
"""Tests of dependencies.py."""
import unittest

from dependencies import CRATES_IO, allows, complaints, pinned


class Licences(unittest.TestCase):
    def test_expressions(self):
        for good in ["MIT", "MIT OR GPL-3.0", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
                     "(MIT OR GPL-2.0) AND Unicode-3.0", "MIT OR Apache-2.0 AND GPL-2.0"]:
            self.assertTrue(allows(good), good)
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 WITH something", "(MIT OR Apache-2.0) AND AGPL-3.0", "LGPL-3.0 OR GPL-2.0"]:
            self.assertFalse(allows(bad), bad)
        for broken in ["", "MIT OR", "(MIT", "MIT MIT", "MIT)"]:
            with self.assertRaises(ValueError, msg=broken):
                allows(broken)


class Packages(unittest.TestCase):
    def package(self, **changed):
        return {"name": "x", "version": "1.0.0", "source": CRATES_IO, "license": "MIT"} | changed

    def test_complaints(self):
        known = {("x", "1.0.0")}
        own = self.package(name="own", source=None, license="Apache-2.0")
        self.assertEqual(complaints([self.package(), own], known), [])
        for changed, said in [
            ({"source": "git+https://example.org/x"}, "not from crates.io"),
            ({"source": "registry+https://example.org/index"}, "not from crates.io"),
            ({"license": "GPL-3.0"}, "not allowed"),
            ({"license": None}, "not allowed"),
            ({"license": "(MIT"}, "not closed"),
            ({"version": "2.0.0"}, "no checksum"),
        ]:
            found = complaints([self.package(**changed)], known)
            self.assertTrue(any(said in line for line in found), (changed, found))

    def test_lock(self):
        lock = '[[package]]\nname = "x"\nversion = "1.0.0"\nchecksum = "ab"\n\n[[package]]\nname = "own"\nversion = "2.0.0"\n'
        self.assertEqual(pinned(lock), {("x", "1.0.0")})


if __name__ == "__main__":
    unittest.main()
