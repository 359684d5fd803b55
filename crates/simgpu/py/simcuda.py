# SPDX-License-Identifier: Apache-2.0
"""A thin ctypes layer over the simulated CUDA runtime and caching allocator.

The libraries are looked for in $SIMGPU_LIB, else beside this file.
"""

import ctypes
import os
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p

HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2


class Dim3(ctypes.Structure):
    """CUDA's dim3, passed by value."""

    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class CudaError(RuntimeError):
    """An API call returned an error."""


def _library(name):
    folder = os.environ.get("SIMGPU_LIB") or os.path.dirname(os.path.abspath(__file__))
    return ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)


def _checked(library, name, *argtypes):
    function = getattr(library, name)
    function.argtypes = argtypes
    function.restype = c_int

    def check(result, _function, _arguments):
        if result != 0:
            raise CudaError("%s: error %d" % (name, result))
        return result

    function.errcheck = check
    return function


class Cuda:
    """The functions of libcudart and libc10 that the training program uses."""

    def __init__(self):
        _library("libcuda.so.1")
        cudart = _library("libcudart.so.13")
        c10 = _library("libc10.so")
        self._set_device = _checked(cudart, "cudaSetDevice", c_int)
        self._stream_create = _checked(cudart, "cudaStreamCreate", c_void_p)
        self._malloc_host = _checked(cudart, "cudaMallocHost", c_void_p, c_size_t)
        self._free_host = _checked(cudart, "cudaFreeHost", c_void_p)
        self._launch = _checked(
            cudart, "cudaLaunchKernel", c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p
        )
        self._copy = _checked(
            cudart, "cudaMemcpyAsync", c_void_p, c_void_p, c_size_t, c_int, c_void_p
        )
        self._stream_synchronize = _checked(cudart, "cudaStreamSynchronize", c_void_p)
        self._device_synchronize = _checked(cudart, "cudaDeviceSynchronize")
        self._event_create = _checked(cudart, "cudaEventCreate", c_void_p)
        self._event_record = _checked(cudart, "cudaEventRecord", c_void_p, c_void_p)
        self._event_synchronize = _checked(cudart, "cudaEventSynchronize", c_void_p)
        self._malloc = _checked(cudart, "cudaMalloc", c_void_p, c_size_t)
        self._free_device = _checked(cudart, "cudaFree", c_void_p)
        self._alloc = _checked(c10, "c10sim_alloc", c_size_t, c_int, c_void_p)
        self._alloc_elsewhere = _checked(c10, "c10sim_alloc_elsewhere", c_size_t, c_int, c_void_p)
        self._free = _checked(c10, "c10sim_free", c_void_p)
        self._empty_cache = _checked(c10, "c10sim_empty_cache")
        self._kernel = cudart.simgpuKernel
        self._kernel.argtypes = (ctypes.c_char_p, c_uint64)
        self._kernel.restype = c_void_p

    def set_device(self, device):
        """Makes a device current on this thread."""
        self._set_device(device)

    def stream(self):
        """Creates a stream."""
        out = c_void_p()
        self._stream_create(ctypes.byref(out))
        return out

    def kernel(self, name, duration_us):
        """A kernel that keeps the simulated GPU busy for a time."""
        return self._kernel(name.encode(), int(duration_us * 1000))

    def launch(self, kernel, stream, blocks=64, threads=256):
        """Launches a kernel."""
        self._launch(kernel, Dim3(blocks, 1, 1), Dim3(threads, 1, 1), None, 0, stream)

    def alloc(self, size, device=0, elsewhere=False):
        """Device memory from the caching allocator; elsewhere is on a thread that runs no Python."""
        out = c_void_p()
        (self._alloc_elsewhere if elsewhere else self._alloc)(size, device, ctypes.byref(out))
        return out.value

    def free(self, pointer):
        """Gives device memory back to the caching allocator."""
        self._free(pointer)

    def malloc(self, size):
        """Device memory straight from the driver."""
        out = c_void_p()
        self._malloc(ctypes.byref(out), size)
        return out.value

    def free_device(self, pointer):
        """Gives memory back to the driver."""
        self._free_device(pointer)

    def empty_cache(self):
        """Gives the allocator's unused memory back to the device."""
        self._empty_cache()

    def pinned(self, size):
        """Page-locked host memory, as an address."""
        out = c_void_p()
        self._malloc_host(ctypes.byref(out), size)
        return out.value

    def free_pinned(self, pointer):
        """Frees page-locked host memory."""
        self._free_host(pointer)

    def copy_to_device(self, device, host, size, stream):
        """Queues a copy from the host."""
        self._copy(device, host, size, HOST_TO_DEVICE, stream)

    def copy_to_host(self, host, device, size, stream):
        """Queues a copy to the host."""
        self._copy(host, device, size, DEVICE_TO_HOST, stream)

    def synchronize(self, stream):
        """Waits for a stream."""
        self._stream_synchronize(stream)

    def device_synchronize(self):
        """Waits for everything."""
        self._device_synchronize()

    def event(self):
        """Creates an event."""
        out = c_void_p()
        self._event_create(ctypes.byref(out))
        return out

    def record(self, event, stream):
        """Notes in an event what the stream has got to do so far."""
        self._event_record(event, stream)

    def wait_for(self, event):
        """Waits until all that an event has noted is done."""
        self._event_synchronize(event)
