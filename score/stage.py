# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a run: bystanders, cgroups, files, settings of the simulated NVML. All are removed afterwards."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

NVML_SETTINGS = """\
count 1
memory_used 4294967296
memory_total 17179869184
memory_rate 20
sm_mhz 1980
memory_mhz 3201
power_mw 345678
temperature_c 61
logs {logs}
"""
PERIOD_US = 100_000  # of a CPU quota
GPU_USER_US = 5000  # length of each of its kernels: it gets at least a third of the GPU


class Unavailable(Exception):
    """This machine lacks something that a case needs."""


def controller_root(controller):
    """The folder of a cgroup controller, and whether that is the unified hierarchy (v2)."""
    mounts = [line.split(" ") for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and controller in options.split(","):
            return pathlib.Path(folder), False
    controller = "io" if controller == "blkio" else controller
    for _, folder, kind, *_ in mounts:
        if kind == "cgroup2":
            root = pathlib.Path(folder)
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+" + controller)
            if controller in (root / "cgroup.subtree_control").read_text().split():
                return root, True
    raise Unavailable(f"no cgroup controller {controller}")


def remove_group(group):
    """Removes a group whose processes have ended. The kernel may need a short time."""
    for _ in range(50):
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)


def disk_of(path):
    """The disk that a file is on, as cgroups name it (`major:minor`)."""
    number = os.stat(path).st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if (device / "partition").exists():
        device = device.parent
    return (device / "dev").read_text().strip()


class Stage:
    """The surroundings of one run."""

    def __init__(self, lib, folder, scene):
        self.lib = lib
        self.folder = folder
        self.scene = scene
        self.cleanup = contextlib.ExitStack()
        self.arguments = []  # for the job

    def __enter__(self):
        with self.cleanup:
            self.prepare()
            self.cleanup = self.cleanup.pop_all()
        return self

    def __exit__(self, *_):
        self.cleanup.close()

    def prepare(self):
        scene = self.scene
        if scene.quota_percent:
            quota = scene.quota_percent * PERIOD_US // 100
            old = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
            self.limit("cpu", old, {"cpu.max": f"{quota} {PERIOD_US}"})
        if scene.memory_mb:
            size = str(scene.memory_mb << 20)
            self.limit("memory", {"memory.limit_in_bytes": size}, {"memory.max": size})
        if scene.disk_iops:
            disk = disk_of(self.folder)
            self.limit(
                "blkio",
                {"blkio.throttle.read_iops_device": f"{disk} {scene.disk_iops}"},
                {"io.max": f"{disk} riops={scene.disk_iops}"},
            )
        if scene.file_mb:
            self.arguments += ["--file", str(self.cold_file(scene.file_mb))]
        for hog in scene.hogs:
            cpus = ",".join(map(str, hog.cpus))
            self.bystander(hog.name, "--cpus", cpus, "--busy-ms", str(hog.busy_ms), "--rest-ms", str(hog.rest_ms))
        if scene.gpu_user:
            self.bystander(scene.gpu_user, "--gpu-us", str(GPU_USER_US))

    def environment(self, with_nvml):
        """For the job and the bystanders; with NVML also for gpuwhy."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SIMGPU_", "SUDO_"))}
        kept |= {
            "LD_LIBRARY_PATH": str(self.lib),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SIMGPU_LOG": str(self.folder / "log"),
            "SIMGPU_LOG_LEVEL": "full",
            "TROUBLE_TRUTH": str(self.folder / "job.json"),
        }
        if self.scene.shared:
            kept["SIMGPU_SHARED"] = str(self.folder / "engines")
        if with_nvml:
            settings = self.folder / "nvml.conf"
            settings.write_text(NVML_SETTINGS.format(logs=self.folder / "log"))
            kept["SIMGPU_NVML"] = str(settings)
        return kept

    def limit(self, controller, version1, version2):
        """Makes a group, which the job enters on its own. The settings are for either version of cgroups."""
        root, common = controller_root(controller)
        group = root / f"gpuwhy-score-{os.getpid()}"
        group.mkdir(exist_ok=True)  # in the unified hierarchy one group has all limits
        self.cleanup.callback(remove_group, group)
        for file, value in (version2 if common else version1).items():
            (group / file).write_text(value)
        self.arguments += ["--cgroup", str(group)]

    def cold_file(self, megabytes):
        """A file that is not in the page cache."""
        path = self.folder / "data"
        self.cleanup.callback(path.unlink, missing_ok=True)
        with path.open("wb") as file:
            piece = os.urandom(1 << 20)
            for _ in range(megabytes):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    def bystander(self, name, *arguments):
        """Starts a process that is not a child of the job."""
        command = [sys.executable, str(self.lib / "bystander.py"), "--name", name, *arguments]
        process = subprocess.Popen(command, env=self.environment(False), stdout=subprocess.PIPE, text=True)
        self.cleanup.callback(process.wait)
        self.cleanup.callback(process.stdout.close)
        self.cleanup.callback(process.terminate)
        if process.stdout.readline() != "ready\n":
            raise Unavailable(f"{' '.join(command)} did not start")
