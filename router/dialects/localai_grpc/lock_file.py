"""Lock file of a backend, by which the processes of one user, such as a node's, agree on the model that it has loaded.

A process with a request at the backend holds a shared lock, a process that loads a model an exclusive one. The file contains
the last load, and no model while a load is under way. Where no such file is possible, each process relies on what it knows.
"""

import fcntl
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import orjson

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
        place = Path(tempfile.gettempdir()) / f"modelvine-loads-{os.getuid()}"
        self._path = place / sha256(api.encode()).hexdigest()[:32]
        self._file = -1

    def enter(self, *, makes: bool = True) -> bool:
        """Take the shared lock until `leave`; return false if another process loads. With `makes` false no file is created."""
        return self._lock(fcntl.LOCK_SH, os.O_CREAT if makes else 0)

    def take(self) -> bool:
        """Take the exclusive lock until `leave`; return false if another process holds it."""
        return self._lock(fcntl.LOCK_EX, os.O_CREAT)

    def leave(self) -> None:
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
        said = {"id": uuid4().hex, "model": model, "load": load, "at": at}
        with suppress(OSError):
            if self._file >= 0:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, orjson.dumps(said), 0)
        return str(said["id"])

    def _lock(self, how: int, makes: int) -> bool:
        if self._file < 0 and not self._open(makes):
            return True
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.leave()
            return False
        except OSError:
            self.leave()
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
