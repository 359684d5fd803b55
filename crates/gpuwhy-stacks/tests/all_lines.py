# SPDX-License-Identifier: Apache-2.0
"""Writes the line table of every function in the standard library to standard output, with the lines Python itself
finds in it. Little-endian: first line i32, size of the table u32, number of ranges u32, the table, and for each range
of instructions begin u32, end u32, line i32 (-1: none)."""
import dis
import io
import os
import struct
import sys
import tokenize
import types

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "__pycache__"}


def ranges(code):
    if hasattr(code, "co_lines"):
        return [(begin, end, -1 if line is None else line) for begin, end, line in code.co_lines()]
    starts = list(dis.findlinestarts(code))
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, code.co_firstlineno))
    ends = [begin for begin, _ in starts[1:]] + [len(code.co_code)]
    return [(begin, end, line) for (begin, line), end in zip(starts, ends)]


def write(code, out):
    table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
    found = ranges(code)
    out.write(struct.pack("<iII", code.co_firstlineno, len(table), len(found)) + table)
    for row in found:
        out.write(struct.pack("<IIi", *row))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            write(constant, out)


def main():
    out = io.BufferedWriter(sys.stdout.buffer.raw, 1 << 20)
    for folder, folders, files in os.walk(os.path.dirname(os.__file__)):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with tokenize.open(path) as file:
                    write(compile(file.read(), path, "exec", dont_inherit=True), out)
    out.flush()


sys.setrecursionlimit(10000)
main()
