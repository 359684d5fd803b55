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

cudart = ctypes.CDLL("libcudart.so.13")
cudart.simgpuKernel.restype = ctypes.c_void_p
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


def note(situation, op, column, value, frame, ret=0):
    """Says that `frame` is about to make a call; returns None, for use as `note(...) or call(...)`."""
    row = {"what": "call", "situation": situation, "op": op, "column": column, "value": value, "ret": ret}
    row["frames"] = frames_from(frame)
    write_down(row)


# In the following functions truth and call share a line, so that the line written down is the line of the call.


def plant(situation):
    size, pointer = next(sizes), ctypes.c_void_p()
    note(situation, "cudaMalloc", "arg0", size, sys._getframe()) or cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    return size, pointer


def plant_failure(situation):
    size, pointer = 2**60 + next(sizes), ctypes.c_void_p()
    return note(situation, "cudaMalloc", "arg0", size, sys._getframe(), OUT_OF_MEMORY) or cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))


def plant_free(situation):
    size, pointer = plant(situation)
    return note(situation, "cudaFree", "arg0", size, sys._getframe()) or cudart.cudaFree(pointer)


def plant_copy(situation):
    size, pointer = plant(situation)
    host = ctypes.create_string_buffer(size)
    return note(situation, "cudaMemcpy", "arg0", size, sys._getframe()) or cudart.cudaMemcpy(pointer, host, ctypes.c_size_t(size), 1)


def new_stream():
    stream = ctypes.c_void_p()
    cudart.cudaStreamCreate(ctypes.byref(stream))
    return stream


def plant_wait(situation):
    stream = new_stream()
    return note(situation, "cudaStreamSync", "stream", stream.value, sys._getframe()) or cudart.cudaStreamSynchronize(stream)


def plant_launch(situation):
    stream, kernel = new_stream(), ctypes.c_void_p(cudart.simgpuKernel(b"planted", ctypes.c_uint64(1000)))
    blocks, threads = Dim3(4, 1, 1), Dim3(32, 1, 1)
    return note(situation, "cudaLaunchKernel", "stream", stream.value, sys._getframe()) or cudart.cudaLaunchKernel(kernel, blocks, threads, None, ctypes.c_size_t(0), stream)
