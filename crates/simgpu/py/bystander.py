#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process beside the job: it takes the time of some CPUs, or of the GPU, until it is ended.

With --gpu-us it keeps kernels of that length queued; processes that name the same file in SIMGPU_SHARED share the
GPU. Else it computes for --busy-ms and rests for --rest-ms, in turns.
"""

import argparse
import os
import signal
import time

import trouble_data

QUEUED = 4


def wait_for_something_in(folder):
    """Returns as soon as the folder is not empty."""
    while not os.listdir(folder):
        time.sleep(0.02)


def compute(busy_ms, rest_ms):
    """Takes a CPU's time."""
    while True:
        value = 1
        deadline = time.monotonic() + busy_ms / 1000.0
        while time.monotonic() < deadline:
            for _ in range(500):
                value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
        if rest_ms:
            time.sleep(rest_ms / 1000.0)


def use_gpu(kernel_us):
    """Keeps a few kernels queued. Told to end, it waits for them: the truth log has no work that was not done."""
    import simcuda  # here: a process without GPU work must not load the libraries

    cuda = simcuda.Cuda()
    cuda.set_device(0)
    stream = cuda.stream()
    kernel = cuda.kernel("inference", kernel_us)
    events = [cuda.event() for _ in range(QUEUED)]
    number = 0
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    while not told:
        event = events[number % QUEUED]
        if number >= QUEUED:
            cuda.wait_for(event)
        cuda.launch(kernel, stream)
        cuda.record(event, stream)
        number += 1
    cuda.device_synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--name", default="bystander")
    parser.add_argument("--cpus", default="", help="CPUs to be pinned to, such as 0,1")
    parser.add_argument("--busy-ms", type=float, default=1000.0)
    parser.add_argument("--rest-ms", type=float, default=0.0)
    parser.add_argument("--when", default="", metavar="FOLDER", help="start when a file appears in it")
    parser.add_argument("--gpu-us", type=float, default=0.0)
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",") if cpu]
    trouble_data.become_child(options.name, cpus or os.sched_getaffinity(0))
    print("ready", flush=True)
    if options.when:
        wait_for_something_in(options.when)
    if options.gpu_us:
        use_gpu(options.gpu_us)
    else:
        compute(options.busy_ms, options.rest_ms)


if __name__ == "__main__":
    main()
