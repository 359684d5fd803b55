#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every dependency has an allowed licence and comes from crates.io. Needs no network.

It does not check for known vulnerabilities; that needs the advisory database (docs/security.md).
"""
import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT",
    "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}
# Dependencies of other platforms are not checked.
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def allows(expression, allowed=ALLOWED):
    """Whether allowed licences alone satisfy an SPDX expression. Old expressions use `/` for OR."""
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
            raise ValueError(f"a licence is missing in {expression!r}")
        word = words[at]
        at += 1
        if word == "(":
            met = alternatives()
            if at >= len(words) or words[at] != ")":
                raise ValueError(f"a bracket is not closed in {expression!r}")
            at += 1
            return met
        if at + 1 < len(words) and words[at] == "WITH":
            word = f"{word} WITH {words[at + 1]}"
            at += 2
        return word in allowed

    met = alternatives()
    if at != len(words):
        raise ValueError(f"invalid licence expression {expression!r}")
    return met


def complaints(packages, checksums):
    """Problems of packages in the form of `cargo metadata`. `checksums`: names and versions with a checksum in Cargo.lock."""
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
    """Names and versions that have a checksum in a Cargo.lock."""
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
    # Only the resolver's list is filtered by platform.
    needed = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["id"] in needed]
    with open(f"{metadata['workspace_root']}/Cargo.lock", encoding="utf-8") as lock:
        wrong = complaints(packages, pinned(lock.read()))
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(packages)} packages: all licences and sources are allowed")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
