# SPDX-License-Identifier: Apache-2.0
"""Makes its own command line as long as the number of bytes given, as any user may, then waits for its input to end."""
import ctypes
import mmap
import sys

PR_SET_MM, PR_SET_MM_MAP = 35, 14
FIELDS = ("start_code end_code start_data end_data start_brk brk start_stack "
          "arg_start arg_end env_start env_end").split()


class Map(ctypes.Structure):
    """struct prctl_mm_map."""
    _fields_ = [(name, ctypes.c_uint64) for name in FIELDS] + [
        ("auxv", ctypes.c_void_p), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
size = int(sys.argv[1])
MAP_NORESERVE = 0x4000
words = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
number = lambda field: int(stat[field - 3])
wanted = dict(start_code=number(26), end_code=number(27), start_stack=number(28), start_data=number(45),
              end_data=number(46), start_brk=number(47), brk=number(47), arg_start=words, arg_end=words + size,
              env_start=number(50), env_end=number(51), exe_fd=0xFFFFFFFF)
made = Map(**wanted)
if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(made), ctypes.sizeof(made), 0) != 0:
    sys.exit(f"prctl: {ctypes.get_errno()}")
print("ready", flush=True)
sys.stdin.read()
