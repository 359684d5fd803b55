#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every dependency to a list of licences and to one source, crates.io, without a network.

What it cannot tell is whether a version has a known fault: that takes the advisory database (docs/security.md).
"""
import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT",
    "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}
# What is built for other systems is not ours.
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def allows(expression, allowed=ALLOWED):
    """Whether an SPDX expression can be met with allowed licences alone. An old one has `/` for OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def alternatives():
        nonlocal at
        met = together()
        while at < len(words) and words[at] == "OR":
            at += 1
            met = together() or met
        return met

    def together():
        nonlocal at
        met = one()
        while at < len(words) and words[at] == "AND":
            at += 1
            met = one() and met
        return met

    def one():
        nonlocal at
        if at >= len(words):
            raise ValueError(f"no licence where one must be: {expression!r}")
        word = words[at]
        at += 1
        if word == "(":
            met = alternatives()
            if at >= len(words) or words[at] != ")":
                raise ValueError(f"a bracket is not closed: {expression!r}")
            at += 1
            return met
        if at + 1 < len(words) and words[at] == "WITH":
            word = f"{word} WITH {words[at + 1]}"
            at += 2
        return word in allowed

    met = alternatives()
    if at != len(words):
        raise ValueError(f"not understood: {expression!r}")
    return met


def complaints(packages, checksums):
    """What is wrong with packages as `cargo metadata` tells them; `checksums` has the names and versions that Cargo.lock pins."""
    wrong = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        source, licence = package["source"], package["license"]
        if source is not None and source != CRATES_IO:
            wrong.append(f"{name} comes from {source}, not from crates.io")
        if source is not None and (package["name"], package["version"]) not in checksums:
            wrong.append(f"{name} has no checksum in Cargo.lock")
        try:
            if not licence or not allows(licence):
                wrong.append(f"{name} has the licence {licence!r}, which is not allowed (scripts/dependencies.py)")
        except ValueError as error:
            wrong.append(f"{name}: {error}")
    return wrong


def pinned(lock):
    """Names and versions with a checksum in a Cargo.lock."""
    found = set()
    for block in lock.split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(\w+) = "(.*)"$', block, re.MULTILINE))
        if "checksum" in fields:
            found.add((fields["name"], fields["version"]))
    return found


def main():
    cargo = sys.argv[1] if len(sys.argv) > 1 else "cargo"
    command = [cargo, "metadata", "--format-version", "1", "--locked"]
    for platform in PLATFORMS:
        command += ["--filter-platform", platform]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    # The resolver's list is the filtered one; the other has whatever any platform would need.
    needed = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["id"] in needed]
    with open(f"{metadata['workspace_root']}/Cargo.lock", encoding="utf-8") as lock:
        wrong = complaints(packages, pinned(lock.read()))
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(packages)} packages: licences and sources are as they should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
