"""Supervisor of background tasks: logs and restarts a failed task; the others continue.

Signals that end the process: the first SIGTERM, Ctrl-C or SIGHUP starts a drain, the second ends it at once.

Locks against a second process: two nodes with one identity would contradict each other forever.

Threads are tried before the start, since libraries fail late and without saying why if there are too few.
"""

import asyncio
import fcntl
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from node.errors import CommandFailed
from node.secrets import secret_files


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT for Ctrl-C, and SIGHUP for a closed terminal unless it is ignored, as nohup makes it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,)))


class Signals:
    """Events of SIGTERM, Ctrl-C and a closed terminal: the first signal requests a drain, the second an immediate end."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._handle_signal)

    def _handle_signal(self) -> None:
        if self.first.is_set():
            self.second.set()
        self.first.set()


LOCK_FILE = "node.lock"

SPARE_THREADS = 16
"""Threads that a node may need, with some to spare: the mesh, the log, the store, and look-ups of names."""


def require_threads(count: int = SPARE_THREADS) -> None:
    """Raise `CommandFailed` unless the system allows this process so many more threads."""
    tried, enough = [], threading.Event()
    try:
        for _ in range(count):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            tried.append(thread)
    except RuntimeError as error:
        raise CommandFailed(
            f"the system allows {len(tried)} more threads, and a node needs {count}: raise the limit "
            "of threads (ulimit -u, TasksMax of systemd, the pids limit of a container) or of address space (ulimit -v)"
        ) from error
    finally:
        enough.set()
        for thread in tried:
            thread.join()


@contextmanager
def hold_data_dir_lock(data_dir: Path) -> Iterator[None]:
    """Hold the lock of a data directory; raise `CommandFailed` if another process holds it."""
    path = data_dir / LOCK_FILE
    message = (
        f"another node already runs with the data directory {data_dir}: "
        "stop it, or set another directory with --data-dir DIR"
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_file_lock(path, message))
        except OSError as error:
            raise CommandFailed(
                f"{secret_files.unwritable(path, error)}; set another with --data-dir DIR"
            ) from error
        yield


@contextmanager
def hold_file_lock(path: Path, message: str) -> Iterator[None]:
    """Hold the lock of a file, created if absent; raise `CommandFailed` with `message` if another process holds it, or `OSError`.

    The kernel releases the lock when the process ends, however it ends, so there is no stale lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(message) from error
        yield
    finally:
        os.close(descriptor)


log = logging.getLogger("modelvine.tasks")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    first_pause: float = _FIRST_PAUSE,
    well: float = 60.0,
) -> None:
    """Call `run` until it returns; after a failure wait `first_pause` seconds, and call it again.

    The pause grows each time that `run` fails within `well` seconds.
    """
    loop, pause = asyncio.get_running_loop(), first_pause
    while True:
        began = loop.time()
        try:
            await run()
        except Exception:
            pause = first_pause if loop.time() - began >= well else pause
            log.exception("%s failed; it restarts in %.1f s", name, pause)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
