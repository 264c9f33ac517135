"""Lock file of a backend, by which the processes of one user agree on the model that it holds: a node may have several.

Whoever has a request there holds it shared, whoever loads a model alone. What stands in it is the last load, and nothing while
one is under way. Where there can be no such file, each process goes by what it knows itself.
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
"""What is read of the file: load options are shorter."""


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A load: the model and its options, empty where that is not known, and the time when it was done. `id` tells loads apart."""

    id: str = ""
    model: str = ""
    load: str = ""
    at: float = 0.0


class Shared:
    """One process's end of the lock file of one backend."""

    def __init__(self, api: str) -> None:
        place = Path(tempfile.gettempdir()) / f"modelvine-loads-{os.getuid()}"
        self._path = place / sha256(api.encode()).hexdigest()[:32]
        self._file = -1

    def enter(self, *, makes: bool = True) -> bool:
        """Hold it with others, until it is left; say whether that can be. Who loads nothing makes no file."""
        return self._lock(fcntl.LOCK_SH, os.O_CREAT if makes else 0)

    def take(self) -> bool:
        """Hold it alone, until it is left; say whether that can be."""
        return self._lock(fcntl.LOCK_EX, os.O_CREAT)

    def leave(self) -> None:
        """Hold it no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self) -> LockRecord:
        """Return the last load; only for who holds it."""
        if self._file < 0:
            return LockRecord()
        with suppress(OSError, orjson.JSONDecodeError):
            match orjson.loads(os.pread(self._file, MAX_BYTES, 0)):
                case {"id": str(id_), "model": str(model), "load": str(load), "at": float(at)}:
                    return LockRecord(id_, model, load, at)
        return LockRecord()

    def write(self, model: str = "", load: str = "", at: float = 0.0) -> str:
        """Say what is loaded, or that it is not known, and return the id of that."""
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
