"""What is kept of freed memory, asked of the C library itself in a process of its own."""

import ctypes
import subprocess
import sys

import pytest

from app.cli.heap import ARENAS

HEAPS = """
import ctypes, sys, threading
from app.cli.heap import bound_heap
if sys.argv[1] == "bound":
    bound_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
together = threading.Barrier(8)

def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
file = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_threads_share_a_few_heaps_instead_of_one_for_each() -> None:
    heaps = {
        way: subprocess.run(
            [sys.executable, "-c", HEAPS, way], capture_output=True, text=True, check=True, timeout=60
        ).stdout.count("<heap nr")
        for way in ("bound", "free")
    }
    assert heaps["bound"] <= ARENAS < heaps["free"]
