"""Files of a provider: their metadata in a table, their bytes in a folder, and a limit of the total bytes."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from node.provide.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
  {rowid} id TEXT PRIMARY KEY, created_at {int} NOT NULL, bytes {int} NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL
) {strict};
"""

PIECES = """
CREATE TABLE IF NOT EXISTS piece (
  file TEXT NOT NULL REFERENCES file (id) ON DELETE CASCADE, number {int} NOT NULL, bytes {bytes} NOT NULL,
  PRIMARY KEY (file, number)
) {strict};
"""
"""Table with the bytes of files, used if providers share a database; otherwise they are only in the folder."""

PIECE_BYTES = 1024 * 1024

KEEP = 20 * 1000**3
"""Default limit of the bytes of all files."""

_COLUMNS = "id, created_at, bytes, filename, purpose"
_PART = ".part"

T = TypeVar("T")


class NoRoom(OSError):
    """The stored files leave no room for another one."""


class FileTable:
    """Metadata of files. Calls block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.shared = database.shared

    def add(self, id_: str, now: int, name: str, purpose: str, path: Path) -> dict[str, Any]:
        """Add a file whose bytes are at `path`; `now` is Unix time in seconds."""
        row = (id_, now, path.stat().st_size, name, purpose)
        with self._database.transaction():
            self._database.change("DELETE FROM file WHERE id = ?", (id_,))
            self._database.change(f"INSERT INTO file ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", row)  # noqa: S608
            if self.shared:
                self._share(id_, path)
        return _shown(row)

    def find(self, id_: str) -> dict[str, Any] | None:
        """Return a file in OpenAI's shape, `None` if there is none with this id."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM file WHERE id = ?", (id_,))  # noqa: S608
        return _shown(rows[0]) if rows else None

    def all(self) -> list[dict[str, Any]]:
        """Return all files, the newest first."""
        statement = f"SELECT {_COLUMNS} FROM file ORDER BY created_at DESC, rowid DESC"  # noqa: S608
        return [_shown(row) for row in self._database.rows(statement)]

    def bytes_held(self) -> int:
        """Return the bytes of all files."""
        return int(self._database.rows("SELECT coalesce(sum(bytes), 0) FROM file")[0][0])

    def remove(self, id_: str) -> bool:
        """Remove a file; return whether there was one."""
        return self._database.change("DELETE FROM file WHERE id = ?", (id_,)) > 0

    def pieces(self, id_: str) -> Iterator[bytes]:
        """Yield the bytes of a file that are in the database, in pieces."""
        statement, number = "SELECT bytes FROM piece WHERE file = ? AND number = ?", 0
        while rows := self._database.rows(statement, (id_, number)):
            yield rows[0][0]
            number += 1

    def _share(self, id_: str, path: Path) -> None:
        with path.open("rb") as file:
            for number, piece in enumerate(iter(lambda: file.read(PIECE_BYTES), b"")):
                self._database.change("INSERT INTO piece VALUES (?, ?, ?)", (id_, number, piece))


class Files:
    """The files of one folder, and the thread that uses its disk and database."""

    def __init__(self, folder: Path, table: FileTable, *, keep: int = KEEP) -> None:
        """`keep` is the limit of the bytes of all files. Incomplete files of a process that died are removed."""
        self.folder = folder
        self.table = table
        self._max_bytes = keep
        # A single thread, so that writes to the database are serial and no event loop waits for the disk.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="provider")
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob(f"*{_PART}"):
            part.unlink()

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run a blocking call in the thread, after all earlier ones."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def require_room(self, size: int) -> None:
        """Raise `NoRoom` if the stored files leave no room for so many more bytes."""
        used = await self.run_in_thread(self.table.bytes_held)
        if used + size > self._max_bytes:
            raise NoRoom(f"{used:,} of {self._max_bytes:,} bytes are used by files: delete some")

    def path(self, id_: str) -> Path:
        """Return the path for a file's bytes."""
        return self.folder / id_

    def add(self, id_: str, now: int, name: str, purpose: str) -> dict[str, Any]:
        """Add a file whose bytes are at its path; delete them if that fails. Blocks."""
        path = self.path(id_)
        try:
            return self.table.add(id_, now, name, purpose, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def fetch(self, id_: str) -> Path:
        """Return the path of a file's bytes, after fetching them from the database if another provider stored them. Blocks."""
        path = self.path(id_)
        if self.table.shared and not path.exists():
            sizes = {file["id"]: file["bytes"] for file in self.table.all()}
            for old in self.folder.iterdir():
                # Files that other providers have deleted meanwhile.
                if old.name not in sizes and old.suffix != _PART:
                    old.unlink()
            if not write_file(path, self.table.pieces(id_)) and sizes.get(id_) == 0:
                path.touch()
        return path

    def close(self) -> None:
        """Wait for the thread, and end it."""
        self._thread.shutdown(wait=True)


def new_id(kind: str) -> str:
    """Return an unguessable id."""
    return f"{kind}{secrets.token_hex(12)}"


def write_file(path: Path, rows: Iterable[bytes]) -> int:
    """Write a file atomically, and none if there are no bytes; return its number of bytes."""
    part, size = path.with_name(f"{path.name}{_PART}"), 0
    try:
        with part.open("wb") as file:
            for row in rows:
                size += file.write(row)
            file.flush()
            os.fsync(file.fileno())
        if size:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size


def _shown(row: tuple[Any, ...]) -> dict[str, Any]:
    id_, created, size, name, purpose = row
    return {
        "id": id_, "object": "file", "bytes": size, "created_at": created, "filename": name, "purpose": purpose,
        "status": "processed",
    }  # fmt: skip
