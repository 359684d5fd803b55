# SPDX-License-Identifier: Apache-2.0
"""Puts a thread into each kind of place Python code can be called from, and has it write down where it is.

    situations.py FOLDER

Each thread appends its true stack to FOLDER/truth, one JSON object a line, and then waits in a C call (reading a pipe
that is this program's standard input) for the rest of its life. Prints "ready" when all are there. Runs on
Python 3.8 and later.
"""
import asyncio
import functools
import gc
import importlib
import json
import os
import sys
import threading
import zipfile

folder = sys.argv[1]
truth = open(os.path.join(folder, "truth"), "a", encoding="ascii")
written = threading.Semaphore(0)
lock = threading.Lock()
situation_of = threading.local()


def write_down(frame):
    frames = []
    while frame:
        code = frame.f_code
        # What stands for bytes that are no UTF-8 cannot be written as such by anyone.
        file = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in code.co_filename)
        frames.append([file, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
        frame = frame.f_back
    row = {
        "situation": situation_of.name,
        "thread_pointer": threading.get_ident(),
        "tid": threading.get_native_id(),
        "frames": frames,
    }
    with lock:
        truth.write(json.dumps(row) + "\n")
        truth.flush()
    written.release()


def park(*_ignored):
    # One line, so that the place written down is the place waited at.
    write_down(sys._getframe()) or os.read(0, 1)
    return 0


def plain():
    park()


def recursion(depth=100):
    if depth:
        return recursion(depth - 1)
    park()


def too_deep():
    recursion(300)


def generator():
    def numbers():
        for n in range(3):
            yield n
            if n == 1:
                park()

    for _ in numbers():
        pass


def generator_chain():
    def inner():
        yield 1
        yield park()

    def outer():
        yield from inner()

    list(outer())


def sorted_key():
    sorted(
        [1, 2],
        key=lambda n: park(),
    )


def through_map():
    list(map(park, [1]))


def through_reduce():
    functools.reduce(lambda a, b: park(a, b), [1, 2, 3])


def c_and_python_in_turn():
    def one(n):
        return max([n], key=two)

    def two(n):
        return sum(map(three, [n]))

    def three(n):
        return functools.partial(park, n)()

    one(1)


class Things:
    def __init__(self):
        self.n = 1

    @property
    def value(self):
        return park()

    def __len__(self):
        return self.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        park()

    def __getattr__(self, name):
        return park()

    @staticmethod
    def fixed():
        park()

    @classmethod
    def of_class(cls):
        park()

    def __call__(self):
        return park()


def slots_of_a_class():
    len(Things())


def missing_attribute():
    Things().nothing


def leaving_a_with():
    with Things():
        pass


def static_method():
    Things.fixed()


def class_method():
    Things.of_class()


def called_object():
    Things()()


def in_an_init():
    class Made:
        def __init__(self):
            park()

    Made()


def in_a_class_body():
    class Body:
        x = park()


def a_lambda():
    (lambda: park())()


def list_comprehension():
    return [park(n) for n in range(1)]


def dict_comprehension():
    return {n: park(n) for n in range(1)}


def generator_expression():
    return sum(park(n) for n in range(1))


def a_decorator():
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)

        return wrapper

    @decorate
    def decorated(n):
        return park(n)

    decorated(1)


def executed_text():
    exec("def made_here():\n    x = 1\n\n    park()\n\nmade_here()", {"park": park})


def evaluated_text():
    eval("[park(n)\n for n in (1,)]", {"park": park})


def with_cells(n=1):
    a, b, c = n, n, n

    def inner():
        nonlocal a
        a = b + c
        return park()

    inner()


def a_call_over_lines():
    print(
        1,
        park(
            2,
            3,
        ),
        file=sys.stderr,
    )


def in_an_except():
    try:
        raise ValueError("on purpose")
    except ValueError:
        park()


def in_a_finally():
    try:
        pass
    finally:
        park()


def coroutine():
    async def leaf():
        await asyncio.sleep(0)
        park()

    async def branch():
        await leaf()

    async def root():
        await asyncio.gather(branch())

    asyncio.run(root())


def async_generator():
    async def numbers():
        yield 1
        park()
        yield 2

    async def root():
        async for _ in numbers():
            pass

    asyncio.run(root())


def asynchronous_comprehension():
    async def root():
        return [park(n) for n in [1] if await asyncio.sleep(0, True)]

    asyncio.run(root())


def write_module(name, text, where=folder):
    os.makedirs(where, exist_ok=True)
    path = os.path.join(where, name + ".py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def at_import():
    write_module("parks_when_imported", "import __main__\n\n__main__.park()\n")
    importlib.import_module("parks_when_imported")


def in_a_zip():
    path = os.path.join(folder, "packed.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("packed.py", "def go(park):\n    return park()\n")
    sys.path.insert(0, path)
    importlib.import_module("packed").go(park)


def latin_names():
    write_module("caf\u00e9", "def gr\u00fc\u00dfe(park):\n    park()\n")
    getattr(importlib.import_module("caf\u00e9"), "gr\u00fc\u00dfe")(park)


def wide_names():
    write_module("\u8a13\u7df4", "def \u5b66\u7fd2(park):\n    park()\n")
    getattr(importlib.import_module("\u8a13\u7df4"), "\u5b66\u7fd2")(park)


def widest_names():
    write_module("\U0002000b", "def \U0002000b\u5b66(park):\n    park()\n")
    getattr(importlib.import_module("\U0002000b"), "\U0002000b\u5b66")(park)


def a_file_far_down():
    deep = os.path.join(folder, *["a_folder_with_quite_a_long_name_%d" % n for n in range(9)])
    path = write_module("far_down", "def go(park):\n    park()\n", deep)
    space = {}
    exec(compile(open(path).read(), path, "exec"), space)
    space["go"](park)


def a_long_function():
    lines = ["    x = (park, 'some', 'work', %d)" % n for n in range(3000)]
    text = "def long(park):\n" + "\n".join(lines) + "\n    park()\n" + "\n".join(lines) + "\nlong(park)\n"
    exec(compile(text, "<long>", "exec"), {"park": park})


def far_from_the_line_before():
    text = "def far(park):\n    x = 1\n" + "\n" * 5000 + "    park()\n    x = 2\nfar(park)\n"
    exec(compile(text, "<far>", "exec"), {"park": park})


def surrogate_file_name():
    name = os.fsdecode(b"/tmp/not\xff\xfeutf8.py")
    exec(compile("park()", name, "exec"), {"park": park})


def hot_code():
    def often(n):
        return n + 1 if n < 5000 else park()

    for n in range(5001):
        often(n)


def collected_while_a_generator_begins():
    # Up to 3.11 collecting garbage may start while a generator's frame is there but has not begun.
    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            park()

    def numbers():
        yield 1

    gc.disable()
    Cycle()
    gc.set_threshold(1)
    gc.enable()
    numbers()


SITUATIONS = [
    plain, recursion, too_deep, generator, generator_chain, sorted_key, through_map, through_reduce,
    c_and_python_in_turn, slots_of_a_class, missing_attribute, leaving_a_with, static_method, class_method,
    called_object, in_an_init, in_a_class_body, a_lambda, list_comprehension, dict_comprehension,
    generator_expression, a_decorator, executed_text, evaluated_text, with_cells, a_call_over_lines, in_an_except,
    in_a_finally, coroutine, async_generator, asynchronous_comprehension, in_a_zip, latin_names, wide_names,
    widest_names, a_file_far_down, a_long_function, far_from_the_line_before, surrogate_file_name, hot_code,
    collected_while_a_generator_begins,
    # Last: it holds a lock of the import machinery for as long as it waits.
    at_import,
]


def run(situation):
    situation_of.name = situation.__name__
    situation()


def main():
    sys.path.insert(0, folder)
    for situation in SITUATIONS:
        threading.Thread(target=run, args=(situation,), daemon=True).start()
        written.acquire()
    print("ready", flush=True)
    situation_of.name = "main_thread"
    park()
    os._exit(0)


main()
