"""Files of a provider: what they are called in a table, their bytes in a folder, and how many bytes all may have."""

import asyncio
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
  id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, bytes INTEGER NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL
) STRICT;
"""

KEEP = 20 * 1000**3
"""Bytes of all files."""

T = TypeVar("T")


class NoRoom(OSError):
    """The files that are kept are too many for one more."""


class FileTable:
    """What is known of files. Plain calls that block."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def add(self, id_: str, now: int, size: int, name: str, purpose: str) -> dict[str, Any]:
        """Note a file that is there; `now` is Unix time in seconds, `size` bytes."""
        row = (id_, now, size, name, purpose)
        self._database.execute("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)", row)
        return _shown(row)

    def find(self, id_: str) -> dict[str, Any] | None:
        """Return a file as OpenAI shows it."""
        row = self._database.execute("SELECT * FROM file WHERE id = ?", (id_,)).fetchone()
        return None if row is None else _shown(row)

    def all(self) -> list[dict[str, Any]]:
        """Return all files, the newest first."""
        rows = self._database.execute("SELECT * FROM file ORDER BY created_at DESC, rowid DESC")
        return [_shown(row) for row in rows]

    def bytes_held(self) -> int:
        """Return the bytes of all files."""
        held: int = self._database.execute("SELECT coalesce(sum(bytes), 0) FROM file").fetchone()[0]
        return held

    def remove(self, id_: str) -> bool:
        """Forget a file; say whether there was one."""
        return self._database.execute("DELETE FROM file WHERE id = ?", (id_,)).rowcount > 0


class Files:
    """The files of one folder, and the thread of its disk."""

    def __init__(self, folder: Path, table: FileTable, *, keep: int = KEEP) -> None:
        """`keep` is how many bytes all files may have. What was not whole when the last process died is removed."""
        self.folder = folder
        self.table = table
        self._bound = keep
        # One thread, so that the database is written by one at a time and no loop waits for the disk.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="provider")
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.part"):
            part.unlink()

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Do what blocks, after all that was asked before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def require_room(self, size: int) -> None:
        """Raise `NoRoom` where the files that are kept leave none for so many bytes more."""
        held = await self.run_in_thread(self.table.bytes_held)
        if held + size > self._bound:
            raise NoRoom(f"{held:,} of {self._bound:,} bytes are taken by files: delete some")

    def path(self, id_: str) -> Path:
        """Return where the bytes of a file are."""
        return self.folder / id_

    def close(self) -> None:
        """Wait for the disk."""
        self._thread.shutdown(wait=True)


def new_id(kind: str) -> str:
    """Return an id that nobody can guess."""
    return f"{kind}{secrets.token_hex(12)}"


def write_file(path: Path, rows: Iterable[bytes]) -> int:
    """Write a file whole or not at all, none where there is nothing to write; return its bytes."""
    part, size = path.with_name(f"{path.name}.part"), 0
    with part.open("wb") as file:
        for row in rows:
            size += file.write(row)
        file.flush()
        os.fsync(file.fileno())
    if size:
        part.replace(path)
    else:
        part.unlink()
    return size


def _shown(row: tuple[Any, ...]) -> dict[str, Any]:
    id_, created, size, name, purpose = row
    return {
        "id": id_, "object": "file", "bytes": size, "created_at": created, "filename": name, "purpose": purpose,
        "status": "processed",
    }  # fmt: skip
