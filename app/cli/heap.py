"""What the C library may keep of freed memory, where it is glibc. Another one is left as it is.

glibc gives each thread a heap of its own, and lets them grow by what a single large body once took: what was freed
there stays with a thread that needs it no more. The readers of a database alone are several threads. Bounding it takes
a third off what the process grows by under 100,000 requests at random (`python -m bench.fuzz`).
"""

import contextlib
import ctypes

# numbers and units as in malloc.h, bytes where they are not counts
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
ARENAS = 2  # heaps for all threads
LARGE = 256 << 10  # what is larger goes back to the system when it is freed
SPARE = 1 << 20  # free at the end of a heap, before it shrinks


def bound_heap() -> None:
    """To be called before there are threads; what `MALLOC_…` says in the environment is overridden."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such function, or no C library to ask
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, LARGE), (_TRIM_THRESHOLD, SPARE)):
            mallopt(option, value)
