# SPDX-License-Identifier: Apache-2.0
"""Makes planted calls from every kind of place that Python code can be called from. See planting.py.

    plants.py            all situations
    plants.py again      what the process that ran `exec` becomes: one call
"""
import asyncio
import ctypes
import functools
import importlib
import multiprocessing
import os
import sys
import threading
import zipfile

from planting import plant, plant_copy, plant_failure, plant_free, plant_launch, plant_wait, write_down
import planting

FOLDER = os.path.dirname(os.path.abspath(__file__))
DEEP, TOO_DEEP = 100, 200
FAR = [3, 9, 30]


def main_thread():
    plant("main_thread")


def other_calls():
    plant_failure("failed")
    plant_free("free")
    plant_copy("copy")
    plant_wait("wait")
    plant_launch("launch")


def two_threads():
    both = threading.Barrier(2)

    def one():
        for _ in range(20):
            both.wait()
            plant("threads")

    def other():
        for _ in range(20):
            both.wait()
            plant("threads")

    threads = [threading.Thread(target=one), threading.Thread(target=other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def recursion(name="recursion", depth=DEEP):
    if depth:
        return recursion(name, depth - 1)
    return plant(name)


def generator():
    def numbers():
        for n in range(3):
            yield n
            if n == 1:
                plant("generator")

    def chained():
        yield from numbers()

    for _ in chained():
        pass


def coroutine():
    async def leaf():
        await asyncio.sleep(0)
        plant("coroutine")

    async def branch():
        await leaf()

    async def root():
        await asyncio.gather(branch(), branch())

    asyncio.run(root())


def a_lambda():
    (lambda: plant("lambda"))()


def comprehensions():
    [plant("comprehension") for _ in range(2)]
    {n: plant("comprehension") for n in range(1)}
    sum(plant("comprehension")[0] for _ in range(1))


def sorted_key():
    sorted(
        [1, 2],
        key=lambda n: plant("sorted")[0],
    )


def c_and_python_in_turn():
    def three(n):
        return functools.partial(plant, "turns")()[0]

    def two(n):
        return sum(map(three, [n]))

    max([1], key=two)


def called_by_c():
    """libc calls a Python function, which is neither an interpreter's frame's callee nor its own thread's beginning."""
    compare_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(_one, _other):
        plant("callback")
        return 0

    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, ctypes.c_size_t(2), ctypes.c_size_t(4), compare_type(compare))


class Things:
    def method(self):
        return plant("method")

    @classmethod
    def of_class(cls):
        return plant("method")

    @property
    def value(self):
        return plant("method")

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        plant("method")


def methods():
    with Things() as things:
        things.method()
        Things.of_class()
        things.value


def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@decorate
def decorated(name):
    return plant(name)


def a_decorator():
    decorated("decorator")


def executed_text():
    exec("def made_here():\n    x = 1\n\n    plant('exec')\n\nmade_here()", {"plant": plant})


def memory_used_again():
    """Code objects that die and others that come to lie at their addresses, alike but for name and line."""
    for n in range(30):
        text = "\n" * n + "def made_%02d():\n    plant('again')\nmade_%02d()" % (n, n)
        exec(compile(text, "<text %02d>" % n, "exec"), {"plant": plant})


def cells():
    """As in a notebook: each cell is compiled, run and forgotten, and the next comes to lie where it was."""
    for n, cell in enumerate(["x = 1\nplant('cells')\n", "y = 2\nplant('cells')\n", "z = 3\n\nplant('cells')\n"] * 3):
        exec(compile(cell, "<cell %d>" % n, "exec"), {"plant": plant})


def in_an_except():
    try:
        raise ValueError("on purpose")
    except ValueError:
        plant("except")


def two_callers():
    def shared():
        return plant("callers")

    def first():
        return shared()

    def second():
        return shared()

    for _ in range(3):
        first()
        second()
    shared()


def far_callers():
    """Two callers that reach the same place through the same frames: layers of a model do, with wrappers between."""
    for distance in FAR:
        recursion("far_%d" % distance, distance)
        recursion("far_%d" % distance, distance)


def lines_of_one_caller():
    plant("lines")
    plant("lines")
    for _ in range(2):
        plant("lines")


def write_module(name, text):
    with open(os.path.join(FOLDER, name + ".py"), "w", encoding="utf-8") as file:
        file.write(text)


def non_ascii_names():
    for name, function in [("caf\u00e9", "gr\u00fc\u00dfe"), ("\u8a13\u7df4", "\u5b66\u7fd2")]:
        write_module(name, "import planting\n\ndef %s():\n    planting.plant('names')\n" % function)
        getattr(importlib.import_module(name), function)()


def at_import():
    write_module("plants_when_imported", "import planting\n\nplanting.plant('import')\n")
    importlib.import_module("plants_when_imported")


def in_a_zip():
    path = os.path.join(FOLDER, "packed.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("packed.py", "import planting\n\n\ndef go():\n    return planting.plant('zip')\n")
    sys.path.insert(0, path)
    importlib.import_module("packed").go()


def forked_worker():
    """A child that makes one call and is gone."""
    child = os.fork()
    if not child:
        plant("fork")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def one_call():
    plant("spawn")
    os._exit(0)


def spawned_worker():
    worker = multiprocessing.get_context("spawn").Process(target=one_call)
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def exec_again():
    child = os.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "again"])
    assert os.waitpid(child, 0)[1] == 0


def run_in_c_thread(function):
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, function, None) == 0
    libc.pthread_join(thread, None)


def thread_made_by_c():
    """A thread that Python did not start runs Python for a while."""
    start_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    run_in_c_thread(start_type(lambda _: plant("c_thread") and None))


def thread_without_python():
    """The thread begins with the CUDA call itself. Its stack, and so its thread pointer, was just a Python thread's."""
    thread = threading.Thread(target=plant, args=("before_bare",))
    thread.start()
    thread.join()
    write_down({"what": "bare", "op": "cudaDeviceSync"})
    run_in_c_thread(planting.cudart.cudaDeviceSynchronize)


def main():
    if sys.argv[1:] == ["again"]:
        return plant("execve")
    situations = [
        main_thread, other_calls, two_threads, recursion, generator, coroutine, a_lambda, comprehensions,
        sorted_key, c_and_python_in_turn, called_by_c, methods, a_decorator, executed_text, memory_used_again,
        cells, in_an_except, two_callers, far_callers, lines_of_one_caller, non_ascii_names, at_import,
        in_a_zip, forked_worker, spawned_worker, exec_again, thread_made_by_c, thread_without_python,
    ]
    for situation in situations:
        situation()
    return recursion("too_deep", TOO_DEEP)


if __name__ == "__main__":
    main()
