# SPDX-License-Identifier: Apache-2.0
"""The cases: which problem (a "trouble") a job gets, how it varies, and what the explanation must say about it."""

import dataclasses
import os
import random
import string

SECONDS = 5.5
CPUS = sorted(os.sched_getaffinity(0))
WORDS = ("backup", "ffmpeg", "indexer", "node", "render", "rsync", "scan", "sync", "telemetry", "updater")


@dataclasses.dataclass
class Hog:
    """A process that uses CPU time."""

    name: str
    cpus: list
    busy_ms: float = 1000.0
    rest_ms: float = 0.0


@dataclasses.dataclass
class Scene:
    """One variation: the job's options and its surroundings."""

    job: list
    hogs: list = dataclasses.field(default_factory=list)
    gpu_user: str = ""  # name of a second process on the GPU, not traced
    shared: bool = False
    quota_percent: int = 0  # of one CPU
    memory_mb: int = 0  # limit of its cgroup
    disk_iops: int = 0  # reads per second that its cgroup allows, because some disks are too fast to wait for
    file_mb: int = 0
    nvml: bool = True
    names: list = dataclasses.field(default_factory=list)  # the finding must name one of them as the root cause


@dataclasses.dataclass
class Case:
    """A trouble. `expected`: pairs of kind and root_cause.kind that are right for the top finding."""

    name: str
    about: str
    draw: object
    expected: list
    troubles: list = dataclasses.field(default_factory=list)  # in the job's own code: each has lines to blame
    control: bool = False
    shares_gpu: bool = False  # the GPU is busy, but not only with the job
    says: str = ""  # a word that the top finding must contain


# ---- variation ----


class Draw(random.Random):
    """Random numbers of one variation. They depend on the seed, not on which other cases run."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, case, number, seed):
        super().__init__(f"{seed}/{case}/{number}")
        self.case, self.number, self.drawn_with = case, number, seed

    def turn(self, what, choices):
        """Takes the choices in turns, so that a few variations cover all of them."""
        first = random.Random(f"{self.drawn_with}/{self.case}/{what}").randrange(len(choices))
        return choices[(first + self.number) % len(choices)]

    def nvml(self):
        """Two of three variations have NVML."""
        return self.turn("nvml", (True, True, False))


def a_name(rng):
    """A realistic process name."""
    return rng.choice(WORDS) + "-" + "".join(rng.choices(string.ascii_lowercase + string.digits, k=4))


def shape(rng, **fixed):
    """Options that must not change the verdict, and those that the case fixes."""
    options = {
        "seconds": SECONDS,
        "sync": rng.turn("sync", ("spin", "block")),
        "streams": rng.turn("streams", (1, 2)),
        "wait": "event",
        "workers": rng.choice((1, 2)),
        "worker_name": rng.choice(("pt_data_worker", a_name(rng))),
        "name": rng.choice(("", a_name(rng))),
        "kernels": rng.choice((32, 40, 56)),
        "kernel_us": rng.choice((220, 250, 300)),
    }
    options.update(fixed)
    arguments = []
    for key, value in options.items():
        if value != "":
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            arguments += ["--" + key.replace("_", "-"), text]
    return arguments


def step_ms(kernels, kernel_us):
    """GPU time of one step, ms."""
    return kernels * kernel_us / 1000.0


def a_step(rng):
    """Kernels in a step and their length: 10 to 16 ms in total."""
    return {"kernels": rng.choice((40, 52)), "kernel_us": rng.choice((250, 300))}


def two_cores(rng):
    """One core for the trouble, and the other cores."""
    core = rng.turn("core", CPUS)
    return core, [cpu for cpu in CPUS if cpu != core] or [core]


def busy_host(rng):
    """Launching takes most of the GPU's time: with a whole core Python keeps up, with half a core it does not.

    The GPU then idles between launches although, from the host's view, work is queued. Such cases need NVML.
    """
    kernel_us = rng.choice((250, 320))
    return {"kernel_us": kernel_us, "host_us": round(kernel_us * rng.uniform(0.70, 0.76))}


# ---- the job and a CPU ----


def hog(rng):
    core, rest = two_cores(rng)
    count = rng.turn("hogs", (1, 2, 3))
    name = a_name(rng)
    busy, pause = rng.choice(((1000, 0), (60, 2), (200, 5)))
    return Scene(
        shape(rng, cpus=[core], worker_cpus=rest, **busy_host(rng)),
        hogs=[Hog(name, [core], busy, pause) for _ in range(count)],
        names=[name],
    )


def many_hogs(rng):
    names = [a_name(rng) for _ in range(len(CPUS) * rng.choice((2, 3)))]
    return Scene(
        shape(rng, workers=3, batch_ms=0.1, **(busy_host(rng) | {"kernels": 56})),
        hogs=[Hog(name, CPUS, rng.choice((1000, 300)), 0) for name in names],
        names=names,
    )


def quota(rng):
    return Scene(
        shape(rng, workers=1, batch_ms=0.2, **busy_host(rng)),
        quota_percent=rng.turn("quota", (30, 40, 50)),
    )


def host_work(rng):
    kernel_us = rng.choice((150, 200))
    return Scene(shape(rng, trouble="host_work", kernel_us=kernel_us, host_us=round(kernel_us * rng.uniform(1.6, 2.4))))


# ---- data workers ----


def worker_cpu(rng):
    step = a_step(rng)
    workers = len(CPUS)
    batch = step_ms(**step) * workers * rng.uniform(1.6, 2.4)
    return Scene(
        shape(rng, trouble="worker_cpu", sync="block", workers=workers, batch_ms=round(batch, 1), **step),
        nvml=rng.nvml(),
    )


def too_few(rng):
    step = a_step(rng)
    batch = step_ms(**step) * rng.uniform(1.6, 2.6)
    return Scene(shape(rng, trouble="worker_cpu", workers=1, batch_ms=round(batch, 1), **step), nvml=rng.nvml())


def worker_disk(rng):
    step = a_step(rng)
    workers = rng.choice((1, 2))
    batch = step_ms(**step) * workers * rng.uniform(1.6, 2.4)
    return Scene(
        shape(rng, trouble="worker_disk", workers=workers, batch_ms=round(batch, 1), **step),
        disk_iops=rng.choice((400, 800)),
        file_mb=256,
        nvml=rng.nvml(),
    )


def worker_sleep(rng):
    step = a_step(rng)
    workers = rng.choice((1, 2, 4))
    batch = step_ms(**step) * workers * rng.uniform(1.6, 3.0)
    wait = rng.turn("wait", ("event", "stream", "never"))
    return Scene(shape(rng, trouble="worker_sleep", workers=workers, batch_ms=round(batch, 1), wait=wait, **step))


def worker_preempted(rng):
    core, rest = two_cores(rng)
    step = a_step(rng)
    name = a_name(rng)
    count = rng.choice((2, 3, 4))
    batch = step_ms(**step) * rng.uniform(0.70, 0.85)
    return Scene(
        shape(rng, cpus=rest, worker_cpus=[core], workers=1, batch_ms=round(batch, 1), **step),
        hogs=[Hog(name, [core]) for _ in range(count)],
        names=[name],
    )


# ---- the job's own process ----


def lock(rng):
    step = a_step(rng)
    hard = step_ms(**step) * rng.uniform(1.5, 2.2)
    threads = rng.turn("threads", (1, 2))
    return Scene(shape(rng, trouble="lock", hard_ms=round(hard, 1), threads=threads, sync="block", **step))


def gil(rng):
    threads = rng.turn("threads", (1, 2))
    return Scene(shape(rng, trouble="gil", kernels=10, kernel_us=rng.choice((2200, 2800)), threads=threads))


def memory(rng):
    step = a_step(rng)
    hard = step_ms(**step) * rng.uniform(1.4, 2.0)
    return Scene(
        shape(rng, trouble="memory", hard_ms=round(hard, 1), workers=1, **step),
        memory_mb=rng.choice((64, 80, 96)),
        disk_iops=rng.choice((1000, 2000, 4000)),
        file_mb=768,
        nvml=rng.nvml(),
    )


def fork_storm(rng):
    workers, kernels = rng.turn("workers", (1, 2, 3)), rng.choice((24, 32))
    return Scene(shape(rng, trouble="fork_storm", workers=workers, batch_ms=0.2, kernels=kernels), nvml=rng.nvml())


def host_sleep(rng):
    step = a_step(rng)
    hard = step_ms(**step) * rng.uniform(0.7, 2.0)
    return Scene(shape(rng, trouble="host_sleep", hard_ms=round(hard, 1), **step), nvml=rng.nvml())


# ---- CUDA calls ----


def sync_each(rng):
    sync = rng.turn("sync", ("spin", "block"))
    kernel_us = rng.choice((120, 160))
    # How late a blocked thread wakes is known only from the driver's samples.
    nvml = sync == "block" or rng.nvml()
    step = {"kernels": 80, "kernel_us": kernel_us, "host_us": kernel_us // 2}
    return Scene(shape(rng, trouble="sync_each", sync=sync, **step), nvml=nvml)


def pageable(rng):
    speed = rng.choice((2.0, 3.0))
    step = a_step(rng)
    size = max(4, round(step_ms(**step) * speed * rng.uniform(0.7, 1.3)))
    return Scene(shape(rng, trouble="pageable", copy_mb=size, pageable_gbps=speed, **step), nvml=rng.nvml())


def alloc_churn(rng):
    return Scene(shape(rng, trouble="alloc_churn", alloc_us=rng.choice((1200, 1600, 2000)), **a_step(rng)))


def gpu_shared(rng):
    name = a_name(rng)
    if rng.turn("traced", (True, False)):  # as a child of the job
        return Scene(shape(rng, second=name), shared=True, nvml=rng.nvml(), names=[name])
    return Scene(shape(rng), shared=True, gpu_user=name, names=[name])


def two_troubles(rng):
    workers = rng.choice((1, 2))
    kernels, kernel_us = 60, rng.choice((60, 80))
    # Waiting for each kernel makes a step up to three times as long. The workers take even longer.
    batch = step_ms(kernels, kernel_us) * workers * rng.uniform(4.5, 6.0)
    trouble = {"trouble": "worker_sleep,sync_each", "workers": workers, "batch_ms": round(batch, 1)}
    return Scene(shape(rng, kernels=kernels, kernel_us=kernel_us, host_us=20, **trouble))


# ---- controls ----


def healthy(rng):
    # Long steps: waiting for the end of each leaves the GPU idle briefly, which must stay a small share.
    step = {"kernels": 80, "kernel_us": rng.choice((500, 600))}
    wait = rng.turn("wait", ("event", "stream", "never"))
    return Scene(shape(rng, streams=1, sync="block", wait=wait, **step), nvml=rng.nvml())


def two_streams(rng):
    return Scene(shape(rng, streams=2), nvml=rng.nvml())


def queued_sleep(rng):
    step = a_step(rng)
    hard = step_ms(**step) * rng.uniform(0.4, 0.6)
    return Scene(shape(rng, trouble="queued_sleep", hard_ms=round(hard, 1), **step), nvml=rng.nvml())


def spinning(rng):
    return Scene(shape(rng, sync="spin", workers=1), nvml=rng.nvml())


def busy_machine(rng):
    core, rest = two_cores(rng)
    names = [a_name(rng) for _ in range(rng.choice((1, 2, 3)))]
    return Scene(
        shape(rng, cpus=[core], worker_cpus=[core], sync="block", batch_ms=0.2),
        hogs=[Hog(name, rest) for name in names],
    )


GPU_BOUND = [("gpu_bound", "gpu_bound")]
CONTENDED = [("cpu_contention", "cpu_contention")]
DECODING = [("input_starved", "cpu_bound_worker")]

CASES = [
    Case("hog", "a process on the job's core", hog, CONTENDED),
    Case("many_hogs", "processes on every core", many_hogs, CONTENDED),
    Case("quota", "a cgroup's CPU quota", quota, [("cpu_throttled", "cpu_throttled")]),
    Case("worker_cpu", "data workers compute", worker_cpu, DECODING, ["worker_cpu"]),
    Case("worker_disk", "data workers read from disk", worker_disk, [("input_starved", "disk_io")], ["worker_disk"]),
    Case("worker_sleep", "data workers sleep", worker_sleep, [("input_starved", "host_sleep")], ["worker_sleep"]),
    Case("worker_preempted", "a process on the worker's core", worker_preempted, [("input_starved", "cpu_contention")]),
    Case("too_few", "one worker, and a core to spare", too_few, DECODING, ["worker_cpu"]),
    Case("lock", "another thread holds a lock", lock, [("lock_contention", "lock_contention")], ["lock"]),
    Case("gil", "a Python thread computes", gil, [("lock_contention", "lock_contention")], ["gil"], says="GIL"),
    Case(
        "memory",
        "a cgroup's memory is too small",
        memory,
        [("host_memory_pressure", "host_memory_pressure")],
        ["memory"],
    ),
    Case(
        "fork_storm",
        "new workers for every batch",
        fork_storm,
        [("process_churn", "process_churn"), ("input_starved", "process_churn")],
        ["fork_storm"],
    ),
    Case("sync_each", "a sync after every kernel", sync_each, [("sync_bound", "sync_bound")], ["sync_each"]),
    Case("pageable", "copies of pageable memory", pageable, [("copy_bound", "copy_bound")], ["pageable"]),
    Case("alloc_churn", "cudaMalloc in every step", alloc_churn, [("alloc_churn", "alloc_churn")], ["alloc_churn"]),
    Case("gpu_shared", "a second process on the GPU", gpu_shared, [("gpu_shared", "gpu_shared")], shares_gpu=True),
    Case("host_sleep", "the main thread sleeps", host_sleep, [("host_sleep", "host_sleep")], ["host_sleep"]),
    Case("host_work", "the main thread computes", host_work, [("launch_bound", "launch_bound")], ["host_work"]),
    Case(
        "two_troubles",
        "data workers sleep, and a sync after every kernel",
        two_troubles,
        [("input_starved", "host_sleep"), ("sync_bound", "sync_bound")],
        ["worker_sleep", "sync_each"],
    ),
    Case("healthy", "control: the GPU is the limit", healthy, GPU_BOUND, control=True),
    Case("two_streams", "control: the same on two streams", two_streams, GPU_BOUND, control=True),
    Case("queued_sleep", "control: Python sleeps, the GPU has work", queued_sleep, GPU_BOUND, control=True),
    Case("spinning", "control: waiting for the GPU spins", spinning, GPU_BOUND, control=True),
    Case("busy_machine", "control: the other cores are busy", busy_machine, GPU_BOUND, control=True),
]


def by_name(name):
    """The case with this name."""
    return next(case for case in CASES if case.name == name)


def variation(case, number, seed):
    """One variation of a case."""
    scene = case.draw(Draw(case.name, number, seed))
    if not scene.nvml and not case.control and "event" in scene.job:
        # A job that waits for the step before the last never shows when the GPU is done; only the driver knows.
        scene.job[scene.job.index("event")] = "stream"
    return scene
