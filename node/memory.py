"""Memory of a serving process: when the garbage collector runs, and how much freed memory is kept for reuse."""

import asyncio
import ctypes
import gc

YOUNG_OBJECTS = 10_000
"""New objects after which the youngest generation is collected, by default 700; a request makes some hundred in cycles."""

# By default the oldest generation is collected after a hundred times as many. Objects are counted, not the memory that they hold:
# of ended connections of the mesh, a few objects each with buffers of hundreds of kilobytes, tens of megabytes waited for minutes
# (`make soak`). Even when its turn comes, the oldest generation is walked only once it has grown by a quarter: 12,000 in 0.5 ms.
_YOUNGER, _OLDER = 2, 2

KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of freed memory that the C library keeps.

By default it returns 15 MB to the kernel after each body of 5 MB, and takes them again for the next: a third of such a request's
time.
"""

MAPPED_BYTES = 16 * 1024 * 1024
"""Size from which a block is never kept: it is mapped on its own."""

GIVE_BACK_SECONDS = 60.0
"""Seconds between two returns of kept memory to the kernel."""

_C = ctypes.CDLL(None)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def configure_collector() -> None:
    """Exclude everything built so far from garbage collection, then enable it.

    Every full collection would walk these objects: the imports alone are 126,000 objects and 35 ms, during which no byte is
    passed on. The little garbage among them (4,000 objects) is kept, rather than collected while the ready line waits.
    """
    gc.freeze()
    # Memory that the imports have freed: 0.8 MB.
    _release()
    if hasattr(_C, "mallopt"):
        _C.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        _C.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    gc.set_threshold(YOUNG_OBJECTS, _YOUNGER, _OLDER)
    gc.enable()


async def release_forever(every: float = GIVE_BACK_SECONDS) -> None:
    """Return kept memory to the kernel every `every` seconds: 60 MB take 5 ms, and if nothing is kept it takes no time."""
    while True:
        await asyncio.sleep(every)
        _release()


def _release() -> None:
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
