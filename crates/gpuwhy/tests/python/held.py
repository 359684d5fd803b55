# SPDX-License-Identifier: Apache-2.0
"""Two threads that were there before gpuwhy came plant calls once they may: a line on standard input says so."""
import sys
import threading

from planting import plant

go = threading.Event()


def waiting_thread():
    go.wait()
    for _ in range(3):
        plant("attached_thread")


def new_thread():
    plant("thread_after_attaching")


def main():
    thread = threading.Thread(target=waiting_thread)
    thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    plant("attached_main")
    thread.join()
    thread = threading.Thread(target=new_thread)
    thread.start()
    thread.join()


main()
