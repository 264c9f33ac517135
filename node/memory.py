"""Memory of a process that serves: when garbage is looked for, and how much of what is freed is kept for what comes next."""

import asyncio
import ctypes
import gc

YOUNG_OBJECTS = 10_000
"""Objects after which garbage is looked for among them, by default 700: a request makes some hundred that refer to each other."""

# The default looks at the oldest after a hundred times as many. It counts objects, not what they hold: of connections of the
# mesh that ended, a few objects each with buffers of hundreds of kilobytes, tens of megabytes waited for minutes (`make soak`).
# However often it is their turn, they are walked only once a quarter as many as there are have come to them: 12,000 in 0.5 ms.
_YOUNGER, _OLDER = 2, 2

KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of freed memory that the C library keeps.

By default it gives 15 MB back after each body of 5 MB, and takes them anew for the next: a third of such a request's time.
"""

MAPPED_BYTES = 16 * 1024 * 1024
"""Bytes of a block that is never kept: it has pages of its own."""

GIVE_BACK_SECONDS = 60.0
"""Seconds for which what is kept waits to be needed."""

_C = ctypes.CDLL(None)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def settle() -> None:
    """Take what was built out of the garbage collector's sight, then let it look.

    Every full collection would walk it: the imports alone are 126,000 objects and 35 ms, in which no byte moves. What
    little of it is garbage (4,000 objects) is kept, rather than looked for while others wait for the ready line.
    """
    gc.freeze()
    # What the imports have freed: 0.8 MB.
    _give_back()
    if hasattr(_C, "mallopt"):
        _C.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        _C.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    gc.set_threshold(YOUNG_OBJECTS, _YOUNGER, _OLDER)
    gc.enable()


async def give_back(every: float = GIVE_BACK_SECONDS) -> None:
    """Give the kernel what is kept, every so many seconds: 60 MB take 5 ms, and nothing takes none."""
    while True:
        await asyncio.sleep(every)
        _give_back()


def _give_back() -> None:
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
