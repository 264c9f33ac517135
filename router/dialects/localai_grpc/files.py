"""Files that a node and its backend exchange, and the lock file by which a node's processes agree on the backend's model.

Files are exchanged in a folder that is removed with its request. Folders that a killed node left are removed by the next one: a
folder in use is locked, and the lock ends with its process.

A backend reads and writes paths, so it must see the same files: it runs on this machine, as the node's own user or as root. No
path and no part of one comes from a caller, and a backend's file is read only if it is a plain file of a sensible size.

A process with a request at the backend holds a shared lock, a process that loads a model an exclusive one. The lock file contains
the last load, and no model while a load is under way. Where no such file is possible, each process relies on what it knows.
"""

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import orjson

from router.errors import WorkerFailed

MAX_MADE_BYTES = 64 * 1024 * 1024
"""The most bytes that a backend may write in one file, and in all files for one request."""

_PREFIX = "modelvine-files-"
_NO_FILE = "no file can be passed to the worker"


class Folder:
    """A folder that only this node's user can read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes_left = MAX_MADE_BYTES

    def path_for(self, name: str) -> str:
        """Return the path for a file that the backend is to make."""
        return str(self._path / name)

    async def write(self, name: str, content: bytes) -> str:
        """Write a file for the backend, and return its path; raise `WorkerFailed` if it cannot be written."""
        path = self._path / name
        try:
            await asyncio.to_thread(_write, path, content)
        except OSError as error:
            raise WorkerFailed(f"{_NO_FILE}: {error.strerror}") from error
        return str(path)

    async def read_and_remove(self, name: str) -> bytes:
        """Return a file that the backend made, and remove it; raise `WorkerFailed` if it is no plain file, empty or too large."""
        content = await asyncio.to_thread(_read, self._path / name, self._bytes_left)
        self._bytes_left -= len(content)
        return content


@asynccontextmanager
async def shared_folder() -> AsyncIterator[Folder]:
    """Make a folder, and finally remove it with its contents; raise `WorkerFailed` if none can be made."""
    try:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise WorkerFailed(f"{_NO_FILE}: {error.strerror}") from error
    try:
        # On a file system without locks, `remove_stale_folders` removes nothing either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield Folder(path)
    finally:
        os.close(descriptor)
        # Removed here, not in a thread: a cancelled task must not wait for anything more.
        shutil.rmtree(path, ignore_errors=True)


def remove_stale_folders() -> None:
    """Remove the folders that this user's ended processes left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and _free(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _free(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _read(path: Path, at_most: int) -> bytes:
    try:
        # Neither follow a link to another file nor block on a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise WorkerFailed("the worker reported a file that does not exist") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WorkerFailed("the worker's result is not a plain file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(at_most + 1)
    finally:
        os.close(descriptor)
    if len(content) > at_most:
        raise WorkerFailed(f"the worker's file has more than {MAX_MADE_BYTES:,} bytes")
    if not content:
        raise WorkerFailed("the worker's file is empty")
    path.unlink(missing_ok=True)
    return content


MAX_BYTES = 64 * 1024
"""The most bytes that are read of the file: load options are shorter."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A load: the model and its options, empty if unknown, and the time when it was done. `id` tells loads apart."""

    id: str = ""
    model: str = ""
    load: str = ""
    at: float = 0.0


class LockFile:
    """One process's end of the lock file of one backend."""

    def __init__(self, api: str) -> None:
        folder = Path(tempfile.gettempdir()) / f"modelvine-loads-{os.getuid()}"
        self._path = folder / sha256(api.encode()).hexdigest()[:32]
        self._file = -1

    def lock_shared(self, *, makes: bool = True) -> bool:
        """Take the shared lock until `unlock`; return false if another process loads. With `makes` false no file is created."""
        return self._lock(fcntl.LOCK_SH, os.O_CREAT if makes else 0)

    def lock_exclusive(self) -> bool:
        """Take the exclusive lock until `unlock`; return false if another process holds it."""
        return self._lock(fcntl.LOCK_EX, os.O_CREAT)

    def unlock(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self) -> LockRecord:
        """Return the last load. The caller must hold the lock."""
        if self._file < 0:
            return LockRecord()
        with suppress(OSError, orjson.JSONDecodeError):
            match orjson.loads(os.pread(self._file, MAX_BYTES, 0)):
                case {"id": str(id_), "model": str(model), "load": str(load), "at": float(at)}:
                    return LockRecord(id_, model, load, at)
        return LockRecord()

    def write(self, model: str = "", load: str = "", at: float = 0.0) -> str:
        """Record what is loaded, or by default that it is unknown, and return the record's id."""
        record = {"id": uuid4().hex, "model": model, "load": load, "at": at}
        with suppress(OSError):
            if self._file >= 0:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, orjson.dumps(record), 0)
        return str(record["id"])

    def _lock(self, how: int, makes: int) -> bool:
        if self._file < 0 and not self._open(makes):
            return True
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            return False
        except OSError:
            self.unlock()
        return True

    def _open(self, makes: int) -> bool:
        with suppress(OSError):
            if makes:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
            if self._path.parent.lstat().st_uid != os.getuid():
                return False
            flags = os.O_RDWR | makes | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        return self._file >= 0
