"""Supervisor of background tasks: logs and restarts a failed task; the others continue.

Signals that ask the process to end. SIGTERM and Ctrl-C: the first for a drain, the second at once.

Memory: no garbage collection in what was built before a process serves; some is kept for the next long body.

Lock of a data directory against a second node: two with one identity would contradict each other for ever.
"""

import asyncio
import ctypes
import fcntl
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node.errors import CommandFailed
from node.secrets import files as secret_files


class Signals:
    """The first SIGTERM or Ctrl-C asks for a drain, the second for an end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()


# A request makes some hundred objects that refer to each other; the default looks for garbage after 700.
_YOUNG_OBJECTS = 10_000

# The default looks at the oldest after a hundred times as many. It counts objects, not what they hold: of connections of the
# mesh that ended, a few objects each with buffers of hundreds of kilobytes, tens of megabytes waited for minutes (`make soak`).
# However often it is their turn, they are walked only once a quarter as many as there are have come to them: 12,000 in 0.5 ms.
_YOUNGER, _OLDER = 2, 2


# Of freed memory the C library keeps so much for what comes next. By default it gives 15 MB back after each body of 5 MB, and
# takes them anew for the next: 3,800 page faults, which is a third of such a request's time.
_KEPT_BYTES = 16 * 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def settle() -> None:
    """Take what was built out of the garbage collector's sight, then let it look.

    Every full collection would walk it: the imports alone are 126,000 objects and 35 ms, in which no byte moves. What
    little of it is garbage (4,000 objects) is kept, rather than looked for while others wait for the ready line.
    """
    gc.freeze()
    # The C library would keep what the imports have given back: 0.8 MB.
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNGER, _OLDER)
    gc.enable()


LOCK_FILE = "node.lock"


@contextmanager
def only_node_in(data_dir: Path) -> Iterator[None]:
    """Hold the directory; raise `CommandFailed` when another process does.

    The kernel lets go of the lock when the process ends, however it ends, so a stale one cannot be.
    """
    path = data_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandFailed(
            f"{secret_files.unwritable(path, error)}; set another with --data-dir DIR"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(
                f"another node already runs with the data directory {data_dir}: "
                "stop it, or set another directory with --data-dir DIR"
            ) from error
        yield
    finally:
        os.close(descriptor)


log = logging.getLogger("modelvine.tasks")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


async def supervise(
    name: str, run: Callable[[], Awaitable[None]], *, first_pause: float = _FIRST_PAUSE
) -> None:
    """Run until it returns; after a failure wait `first_pause` seconds, longer each time, and run again."""
    pause = first_pause
    while True:
        try:
            await run()
        except Exception:
            log.exception("%s failed; it restarts in %.1f s", name, pause)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
