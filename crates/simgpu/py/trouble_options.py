# SPDX-License-Identifier: Apache-2.0
"""What can be set of the job with a trouble: its shape, and how hard the trouble is."""

import argparse
import os

# Each name is one trouble; those of the data workers say what a worker does for `--batch-ms`.
WORKER_TROUBLES = ("worker_cpu", "worker_disk", "worker_sleep")
MAIN_TROUBLES = (
    "alloc_churn",
    "fork_storm",
    "gil",
    "host_sleep",
    "host_work",
    "lock",
    "memory",
    "pageable",
    "queued_sleep",
    "sync_each",
)
TROUBLES = ("none", *WORKER_TROUBLES, *MAIN_TROUBLES)


def numbers(text):
    """A list such as 0,1; empty for nothing."""
    return [int(part) for part in text.split(",") if part]


def add_shape(parser):
    """The job as it would be without any trouble."""
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--name", default="", help="process name; empty: the interpreter's")
    parser.add_argument("--kernels", type=int, default=40, help="kernels per step")
    parser.add_argument("--kernel-us", type=float, default=250.0)
    parser.add_argument("--host-us", type=float, default=15.0, help="Python work before each launch")
    parser.add_argument("--streams", type=int, choices=(1, 2), default=1)
    parser.add_argument("--sync", choices=("spin", "block"), default="block", help="how the library waits")
    parser.add_argument(
        "--wait",
        choices=("event", "stream", "never"),
        default="event",
        help="wait for the previous step, for this step, or only when the queue is full",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker-name", default="pt_data_worker")
    parser.add_argument("--batch-ms", type=float, default=0.5, help="worker time per batch")
    parser.add_argument("--cpus", type=numbers, default=[], help="CPUs of the main process")
    parser.add_argument("--worker-cpus", type=numbers, default=[])


def add_trouble(parser):
    """The trouble itself."""
    parser.add_argument("--trouble", default="none", help="one of %s, or two separated by a comma" % ", ".join(TROUBLES))
    parser.add_argument("--hard-ms", type=float, default=10.0, help="duration of a trouble in the main thread")
    parser.add_argument("--threads", type=int, default=1, help="threads that hold the lock or compute")
    parser.add_argument("--file", default="", help="file that workers read or map")
    parser.add_argument("--cgroup", action="append", default=[], help="folder of a cgroup to join")
    parser.add_argument("--copy-mb", type=int, default=16, help="pageable memory copied per step")
    parser.add_argument("--alloc-us", type=int, default=0, help="duration of one cudaMalloc")
    parser.add_argument("--pageable-gbps", type=float, default=0)
    parser.add_argument("--second", default="", help="name of a second process on the GPU, a child of this one")


def parse():
    """Reads the command line and passes the libraries their settings."""
    parser = argparse.ArgumentParser(description="A training job with a known trouble, on the simulated CUDA stack.")
    add_shape(parser)
    add_trouble(parser)
    options = parser.parse_args()
    options.trouble = options.trouble.split(",")
    unknown = set(options.trouble) - set(TROUBLES)
    if unknown:
        parser.error("unknown trouble: %s" % ", ".join(sorted(unknown)))
    os.environ["SIMGPU_SYNC"] = options.sync
    if options.alloc_us:
        os.environ["SIMGPU_ALLOC_US"] = str(options.alloc_us)
    if options.pageable_gbps:
        os.environ["SIMGPU_PAGEABLE_GBPS"] = str(options.pageable_gbps)
    return options
