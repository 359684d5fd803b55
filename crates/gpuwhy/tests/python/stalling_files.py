# SPDX-License-Identifier: Apache-2.0
"""A process that has files of a CUDA runtime and a libpython mapped which nobody can read: they lie in a file system of
its own (FUSE, in a mount namespace of its own) that answers everything but reads. Says `ready`, and ends with its input.
"""
import ctypes
import os
import struct
import sys
import threading

FOLDER = sys.argv[1]
FILES = {b"libcudart.so.13": 2, b"libpython3.11.so.1.0": 3}
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 26, 36, 42
ENOENT, ENOSYS = 2, 38
SIZE = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def check(result):
    if result not in (0, None):
        sys.exit(os.strerror(ctypes.get_errno()))


def attributes(node):
    """struct fuse_attr"""
    mode, size = (0o40755, 0) if node == 1 else (0o100755, SIZE)
    return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(code, node, body):
    """The body of an answer, or an error's number."""
    if code == INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 8, 8, 1 << 16, 1, 16, 0, 0, *[0] * 7)
    if code == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + attributes(node)
    if code == LOOKUP:
        found = FILES.get(body.rstrip(b"\0"))
        return found and struct.pack("<QQQQII", found, 0, 60, 60, 0, 0) + attributes(found) or ENOENT
    if code == OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return b"" if code == RELEASE else ENOSYS


def serve(device):
    while True:
        request = os.read(device, 1 << 17)
        _length, code, unique, node = struct.unpack_from("<IIQQ", request)
        if code in (READ, FORGET, INTERRUPT, BATCH_FORGET):
            continue
        body = answer(code, node, request[40:])
        error = -body if isinstance(body, int) else 0
        body = b"" if error else body
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


check(libc.unshare(0x20000))
check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
check(libc.mount(b"stalling", FOLDER.encode(), b"fuse", 0, options.encode()))
threading.Thread(target=serve, args=(device,), daemon=True).start()
for at, name in enumerate(FILES):
    file = os.open(os.path.join(FOLDER.encode(), name), os.O_RDONLY)
    # Below everything else: PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED.
    libc.mmap(0x200000 + at * SIZE, SIZE, 5, 0x12, file, 0)
    # The kernel learns that nobody is told of a close: at this process's end nobody would be there to answer.
    os.close(file)
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
