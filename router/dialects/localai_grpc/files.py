"""Files that a node and its backend hand to each other: in a folder of one request, which is gone with it.

What a node left that was killed, the next one removes: a folder in use is locked, and its lock goes with its process.

A backend reads and writes paths, so it must see the same files: it runs on this machine, as the node's own user or as root. No
path and no part of one comes from a caller, and what a backend wrote is read only if it is a plain file of a sensible size.
"""

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from router.errors import WorkerFailed

MAX_MADE_BYTES = 64 * 1024 * 1024
"""The largest file that a backend may make, and all that it makes for one request together."""

_PREFIX = "modelvine-files-"
_NO_FILE = "no file can be passed to the worker"


class Folder:
    """A folder that only this node's user may look into."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = MAX_MADE_BYTES

    def place(self, name: str) -> str:
        """Return the path for a file that the backend is to make."""
        return str(self._path / name)

    async def put(self, name: str, content: bytes) -> str:
        """Write a file for the backend, and return its path; raise `WorkerFailed` where there is no room for it."""
        path = self._path / name
        try:
            await asyncio.to_thread(_write, path, content)
        except OSError as error:
            raise WorkerFailed(f"{_NO_FILE}: {error.strerror}") from error
        return str(path)

    async def take(self, name: str) -> bytes:
        """Return what the backend made, and remove it; raise `WorkerFailed` where that is no file, empty or too large."""
        content = await asyncio.to_thread(_read, self._path / name, self._left)
        self._left -= len(content)
        return content


@asynccontextmanager
async def folder() -> AsyncIterator[Folder]:
    """Make a folder, and remove it with all that is in it, whatever happens; raise `WorkerFailed` where none can be made."""
    try:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise WorkerFailed(f"{_NO_FILE}: {error.strerror}") from error
    try:
        # Where there are no locks, nothing is swept either.
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield Folder(path)
    finally:
        os.close(held)
        # At once, not in a thread: whoever is cancelled may wait for nothing more.
        shutil.rmtree(path, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of this user's processes that are no more."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(found).st_uid == os.getuid() and _free(found):
                shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(found)


def _free(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(made, "wb") as file:
        file.write(content)


def _read(path: Path, at_most: int) -> bytes:
    try:
        # Neither a link to another file nor a pipe, which would be waited for.
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise WorkerFailed("the worker reported a file that does not exist") from error
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise WorkerFailed("the worker's result is not a plain file")
        with os.fdopen(found, "rb", closefd=False) as file:
            content = file.read(at_most + 1)
    finally:
        os.close(found)
    if len(content) > at_most:
        raise WorkerFailed(f"the worker's file has more than {MAX_MADE_BYTES:,} bytes")
    if not content:
        raise WorkerFailed("the worker's file is empty")
    path.unlink(missing_ok=True)
    return content
