#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a selection of gpuwhy's tests on other kernels, in qemu with software emulation.

    tests/kernels/run.py [6.1] [6.12]        kernel series; both by default

The kernels are Debian's cloud kernels, downloaded as packages and kept under target/kernels. The virtual machine gets an
initial RAM disk with gpuwhy, the test programs that cargo built, Python and busybox, at the same paths as here.
tests.txt lists the tests. The exit code is 0 if every test passed on every kernel.
"""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
# A kernel that takes longer hangs, which is a failure.
MOST_SECONDS = 600


class Failure(Exception):
    """An error, in one sentence."""


def say(text):
    print(text, flush=True)


def output_of(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


# Kernels ---------------------------------------------------------------------------------------------------------------


def newest_package(series, names):
    """The newest cloud kernel of a series among package names: linux-image-6.1.0-56-cloud-amd64."""
    pattern = re.compile(rf"^linux-image-({re.escape(series)}[.-][\w.+~-]*)-cloud-amd64$")
    found = [name for name in names if pattern.match(name)]
    return max(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)], default=None)


def package_names(series):
    return output_of("apt-cache", "pkgnames", f"linux-image-{series}").split()


def kernel(series):
    """The image of the newest kernel of a series, downloaded if needed."""
    package = newest_package(series, package_names(series))
    if package is None:
        say("reading the package lists")
        subprocess.run([*([] if os.geteuid() == 0 else ["sudo"]), "apt-get", "update", "-qq"], check=True)
        package = newest_package(series, package_names(series))
    if package is None:
        raise Failure(f"no package linux-image-{series}*-cloud-amd64: give another series, such as 6.1")
    folder = TARGET / "kernels" / package
    if not folder.exists():
        say(f"downloading {package}")
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        # apt downloads as its own user, which may not write here, and warns about that.
        subprocess.run(["apt-get", "download", "-qq", package], cwd=making, check=True, stderr=subprocess.DEVNULL)
        [deb] = making.glob("*.deb")
        listing = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", making, "--wildcards", "./boot/vmlinuz-*"], stdin=listing.stdout, check=True)
        deb.unlink()
        making.rename(folder)
    [image] = folder.glob("boot/vmlinuz-*")
    return image


# The RAM disk ----------------------------------------------------------------------------------------------------------


class Archive:
    """A cpio archive in the kernel's format ("newc"), with files of this machine."""

    def __init__(self):
        self.parts = []
        self.paths = set()

    def entry(self, path, mode, data=b""):
        path = str(path).lstrip("/")
        if path in self.paths:
            return
        parent = str(Path(path).parent)
        if parent != ".":
            self.entry(parent, stat.S_IFDIR | 0o755)
        self.paths.add(path)
        name = path.encode() + b"\0"
        fields = [len(self.paths), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self.parts += [header, b"\0" * (-len(header) % 4), data, b"\0" * (-len(data) % 4)]

    def file(self, source, path=None):
        source = Path(source)
        self.entry(path or source, stat.S_IFREG | stat.S_IMODE(source.stat().st_mode), source.read_bytes())

    def link(self, path, to):
        self.entry(path, stat.S_IFLNK | 0o777, str(to).encode())

    def program(self, source, stripped):
        """Adds a program without debug info, at its own path, and the libraries it needs."""
        small = stripped / Path(source).name
        subprocess.run(["objcopy", "--strip-debug", source, small], check=True)
        self.file(small, source)
        self.libraries(source)

    def libraries(self, program):
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True).stdout):
            self.file(library)

    def gzip(self):
        self.entry("TRAILER!!!", 0)
        return gzip.compress(b"".join(self.parts), compresslevel=1)


def add_python(archive):
    """Adds the interpreter and its standard library, at the same paths, and as /usr/local/bin/python3."""
    program = Path(output_of("python3", "-c", "import os, sys; print(os.path.realpath(sys.executable))").strip())
    archive.file(program)
    archive.libraries(program)
    archive.link("/usr/local/bin/python3", program)
    library = output_of("python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").strip()
    left_out = {"test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "site-packages", "dist-packages"}
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith("config-")]
        if Path(folder).name == "__pycache__":
            files = [name for name in files if name.count(".") == 2]  # those without -O
        for name in files:
            path = Path(folder, name)
            if path.is_file() and path.suffix != ".a":
                archive.file(path)
                if path.suffix == ".so":
                    archive.libraries(path)


def ram_disk(commands, programs):
    archive = Archive()
    stripped = TARGET / "kernels" / "stripped"
    stripped.mkdir(parents=True, exist_ok=True)
    for program in programs:
        archive.program(program, stripped)
    add_python(archive)
    archive.file(shutil.which("busybox"), "/bin/busybox")
    archive.file(HERE / "init", "/init")
    archive.entry("/tests", stat.S_IFREG | 0o644, "".join(f"{command}\n" for command in commands).encode())
    archive.entry("/etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    archive.entry("/etc/group", stat.S_IFREG | 0o644, b"root:x:0:\n")
    for folder in ("proc", "sys", "dev", "run", "tmp", "root"):
        archive.entry(folder, stat.S_IFDIR | 0o755)
    path = TARGET / "kernels" / "init.gz"
    path.write_bytes(archive.gzip())
    return path


# Tests -----------------------------------------------------------------------------------------------------------------


def read_list(text):
    """Parses lines of `PROGRAM TEST …`; # begins a comment."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return [(words[0], words[1:]) for words in lines if words]


def built(programs):
    """Paths of the built test programs and of gpuwhy."""
    command = ["cargo", "test", "--release", "--locked", "-p", "gpuwhy", "--no-run", "--message-format=json"]
    for program in programs:
        command += ["--test", program]
    paths = {}
    for line in output_of(*command, cwd=ROOT).splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            paths[message["target"]["name"]] = message["executable"]
    return paths


def boot(image, disk):
    """Boots the virtual machine and returns what it printed."""
    # One processor: with two, the emulator sometimes runs a breakpoint of a kernel that patches its own code (6.12).
    command = ["qemu-system-x86_64", "-cpu", "max", "-smp", "1", "-m", "3000", "-nographic", "-no-reboot", "-net", "none"]
    command += ["-kernel", image, "-initrd", disk, "-append", "console=ttyS0 quiet panic=-1"]
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + f"\nnot finished after {MOST_SECONDS} s\n"
    return run.stdout.decode(errors="replace")


def judge(printed, commands):
    """Failures in words (none if all commands succeeded and check accepts the programs), and the number of passed tests."""
    failed = []
    ends = re.findall(r"^guest: exit (\d+) after [^:]*: (.*?)\r?$", printed, re.M)
    ended = {command: code for code, command in ends}
    for command in commands:
        if command not in ended:
            failed.append(f"did not end: {command}")
        elif ended[command] != "0":
            failed.append(f"exit {ended[command]}: {command}")
    colour = r"(?:\x1b\[[\d;]*m)*"
    check = re.search(rf"^{colour}(\w+)\W.*?eBPF programs +(.*?)\r?$", printed, re.M)
    if check is None or check.group(1) != "ok":
        failed.append(f"check: eBPF programs: {' '.join(check.groups()) if check else 'not printed'}")
    passed = sum(int(n) for n in re.findall(r"^test result: ok\. (\d+) passed", printed, re.M))
    return failed, passed


def main():
    series = sys.argv[1:] or ["6.1", "6.12"]
    tests = read_list((HERE / "tests.txt").read_text())
    paths = built([program for program, _ in tests])
    commands = [f"{paths['gpuwhy']} check -v"]
    commands += [f"{paths[program]} --test-threads=1 --exact {' '.join(names)}" for program, names in tests]
    archive = ram_disk(commands, paths.values())
    wanted = sum(len(names) for _, names in tests)
    bad = False
    for one in series:
        began = time.monotonic()
        image = kernel(one)
        printed = boot(image, archive)
        failed, passed = judge(printed, commands)
        release = re.search(r"^guest: Linux (\S+)", printed, re.M)
        if passed != wanted:
            failed.append(f"{passed} of {wanted} tests passed")
        if failed:
            bad = True
            say(printed)
        for reason in failed:
            say(f"Linux {one}: {reason}")
        name = release.group(1) if release else one
        say(f"Linux {name}: {passed} tests passed, {len(failed)} failures, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, subprocess.CalledProcessError) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
