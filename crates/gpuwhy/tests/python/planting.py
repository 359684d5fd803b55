# SPDX-License-Identifier: Apache-2.0
"""Plants CUDA calls and writes down, right before each, the true stack it is made from.

The truth is one JSON object a line in the file $TRUTH: which call (by its process, thread, op and a value nobody else
uses), what it returns, and its frames, innermost first. Runs on Python 3.8 and later.
"""
import ctypes
import itertools
import json
import os
import sys
import threading
from ctypes import byref, c_size_t, c_void_p

cudart = ctypes.CDLL("libcudart.so.13")
cudart.simgpuKernel.restype = c_void_p
# Each line is one write to a file that only grows, so lines of several threads and processes do not mix.
truth_file = os.open(os.environ["TRUTH"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
sizes = itertools.count(1_000_001)
OUT_OF_MEMORY = 2


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def frames_from(frame):
    frames = []
    while frame:
        code = frame.f_code
        frames.append([code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    return frames


def write_down(row):
    row["pid"], row["tid"] = os.getpid(), threading.get_native_id()
    os.write(truth_file, (json.dumps(row) + "\n").encode())


def note(situation, op, column, value, ret=0):
    """Says that the caller is about to make a call; returns None, for use as `note(...) or call(...)`."""
    row = {"what": "call", "situation": situation, "op": op, "column": column, "value": value, "ret": ret}
    row["frames"] = frames_from(sys._getframe(1))
    write_down(row)


# In the following functions truth and call share a line, so that the line written down is the line of the call.


def plant(situation):
    size, pointer = next(sizes), c_void_p()
    note(situation, "cudaMalloc", "arg0", size) or cudart.cudaMalloc(byref(pointer), c_size_t(size))
    return size, pointer


def plant_failure(situation):
    size, pointer = 2**60 + next(sizes), c_void_p()
    note(situation, "cudaMalloc", "arg0", size, OUT_OF_MEMORY) or cudart.cudaMalloc(byref(pointer), c_size_t(size))


def plant_free(situation):
    size, pointer = plant(situation)
    note(situation, "cudaFree", "arg0", size) or cudart.cudaFree(pointer)


def plant_copy(situation):
    size, pointer = plant(situation)
    host = ctypes.create_string_buffer(size)
    note(situation, "cudaMemcpy", "arg0", size) or cudart.cudaMemcpy(pointer, host, c_size_t(size), 1)


def new_stream():
    stream = c_void_p()
    cudart.cudaStreamCreate(byref(stream))
    return stream


def plant_wait(situation):
    stream = new_stream()
    note(situation, "cudaStreamSync", "stream", stream.value) or cudart.cudaStreamSynchronize(stream)


def plant_launch(situation):
    stream, kernel = new_stream(), c_void_p(cudart.simgpuKernel(b"planted", ctypes.c_uint64(1000)))
    one, none, op = Dim3(1, 1, 1), c_size_t(0), "cudaLaunchKernel"
    note(situation, op, "stream", stream.value) or cudart.cudaLaunchKernel(kernel, one, one, None, none, stream)
