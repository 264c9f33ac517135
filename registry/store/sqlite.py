"""Store in SQLite, which survives restarts: one table in one SQLite file, used by one thread of its own.

A write is durable when it returns: write-ahead log, synced at every commit. A damaged file is never deleted,
replaced or repaired; the error says what a person can do. After any failure the next call opens the file again.
"""

import asyncio
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import MAX_VALUES, Change, Put, Space, Store, check_limits, within_limits

T = TypeVar("T")

SCHEMA = 1
"""The layout that this version writes, kept in the file as `user_version`."""

_log = logging.getLogger("modelvine.registry")
_FILE_NAME = "modelvine.db"

# SQLite does not wait for this lock as it does for others, so two processes that open a new file need retries.
_LOG_TRIES = 50
_LOG_PAUSE = 0.01

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DAMAGE = "the database is damaged"


class SqliteStore:
    """Keeps values in one file. Several processes may use it at a time; a lock is waited for."""

    shared = False

    def __init__(self, path: Path, *, timeout: float = 1.0) -> None:
        self._path = path
        self._timeout = timeout
        self._database: sqlite3.Connection | None = None
        self._closed = False
        # One thread, so that calls are applied in the order they were made, and a slow disk blocks nothing else.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    async def read(self, space: Space) -> Mapping[str, bytes]:
        """Return everything in one space; raise `StoreUnavailable`."""
        return await self._run(lambda: self._select(space))

    async def write(self, *changes: Change) -> None:
        """Apply all changes or none; raise `StoreUnavailable`, or `LimitReached` for what is too long.

        After a timeout on a stuck disk the write may still happen; writing again is harmless.
        """
        check_limits(changes)
        await self._run(lambda: self._apply(changes))

    async def close(self) -> None:
        """Close the file; harmless when called twice."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2 * self._timeout):
                await loop.run_in_executor(self._thread, self._close_database)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._path} could not be closed in time") from error
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        try:
            # SQLite itself waits `timeout` for a lock; the same time again is left for the disk.
            async with asyncio.timeout(2 * self._timeout):
                return await loop.run_in_executor(self._thread, self._run_translating_errors, work)
        except TimeoutError as error:
            late = f"did not answer within {2 * self._timeout:g} s"
            raise StoreUnavailable(
                f"{self._path} {late}", public_reason=f"the store {late}"
            ) from error

    # The methods below run in the store's own thread only.

    def _run_translating_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            self._close_database()
            raise StoreUnavailable(
                _explain(self._path, error), public_reason=_public_reason(error)
            ) from error
        except OSError as error:
            self._close_database()
            reason = error.strerror or type(error).__name__
            raise StoreUnavailable(
                f"{self._path}: {reason}", public_reason=reason.lower()
            ) from error
        except StoreUnavailable:
            self._close_database()
            raise

    def _select(self, space: Space) -> dict[str, bytes]:
        rows = self._opened().execute(
            "SELECT CAST(key AS BLOB), value FROM entry WHERE space = ? LIMIT ?",
            (space, MAX_VALUES + 1),
        )
        entries = dict(rows)
        if len(entries) > MAX_VALUES:
            raise StoreUnavailable(f"{self._path} holds more than {MAX_VALUES} values in {space}")
        return within_limits(entries)

    def _apply(self, changes: Iterable[Change]) -> None:
        database = self._opened()
        database.execute("BEGIN IMMEDIATE")
        for change in changes:
            if isinstance(change, Put):
                database.execute(
                    "INSERT INTO entry (space, key, value) VALUES (?, ?, ?) "
                    "ON CONFLICT (space, key) DO UPDATE SET value = excluded.value",
                    (change.space, change.key, change.value),
                )
            else:
                database.execute(
                    "DELETE FROM entry WHERE space = ? AND key = ?", (change.space, change.key)
                )
        database.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            _make_private(self._path)
            self._database = sqlite3.connect(
                self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            _prepare(self._database, self._path)
        return self._database

    def _close_database(self) -> None:
        """Close the file; what was not committed is rolled back."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _make_private(path: Path) -> None:
    """Make the file unreadable for other users, and create it if it is missing; SQLite gives its log the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        # By name, never through a descriptor: closing one would release SQLite's locks in this process.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise StoreUnavailable(f"{path} is not a file: choose a file with `store`") from None
        if status.st_mode & 0o077:
            path.chmod(0o600)
        if status.st_size == 0:
            _log.warning(
                "%s is empty: if models were registered or keys created here, restore it from a backup",
                path,
            )


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    """Check what the file is, before anything is written to it, and create the table in a new one."""
    # One transaction for both queries: another process may create the table at this moment.
    database.execute("BEGIN")
    version = _only(database, "PRAGMA user_version")
    tables = _only(database, "SELECT count(*) FROM sqlite_master")
    database.execute("COMMIT")
    if version > SCHEMA:
        raise StoreUnavailable(
            f"{path} was written by a newer modelvine (layout {version}, this one knows {SCHEMA}): "
            "upgrade this one, or choose another file with `store`"
        )
    if version == 0 and tables:
        raise StoreUnavailable(
            f"{path} belongs to another program: choose another file with `store`"
        )
    if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise StoreUnavailable(_damaged(path), public_reason=_DAMAGE)
    if version == 0:
        database.execute("BEGIN IMMEDIATE")
        # Two processes may start at once; the second finds the work done.
        database.execute(
            "CREATE TABLE IF NOT EXISTS entry (space TEXT NOT NULL, key TEXT NOT NULL, "
            "value BLOB NOT NULL, PRIMARY KEY (space, key)) WITHOUT ROWID"
        )
        database.execute(f"PRAGMA user_version = {SCHEMA}")
        database.execute("COMMIT")
    _keep_log(database)
    database.execute("PRAGMA synchronous = FULL")


def _keep_log(database: sqlite3.Connection) -> None:
    """Switch a new file to the write-ahead log, a mode that the file keeps."""
    for _ in range(_LOG_TRIES):
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_LOG_PAUSE)
        else:
            return
    raise sqlite3.OperationalError("database is locked")


def _only(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])


def _explain(path: Path, error: sqlite3.Error) -> str:
    return _damaged(path) if _code(error) in _DAMAGED else f"{path}: {error}"


def _public_reason(error: sqlite3.Error) -> str:
    """Return what SQLite found; its messages name no file."""
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full"
    return _DAMAGE if code in _DAMAGED else str(error)


def _code(error: sqlite3.Error) -> int | None:
    # The low byte is the primary code; some errors of the module itself carry none at all.
    return error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else None


def _damaged(path: Path) -> str:
    return (
        f"{path} is damaged: stop the node, move the file away together with {path.name}-wal and {path.name}-shm, "
        "or restore a backup, and start again; records of other nodes return by themselves, but register this node's "
        "models again"
    )


def open_url(url: str, *, data_dir: Path, node: PeerId, timeout: float) -> Store:
    """Return a store for `sqlite`, in the data directory, or for `sqlite:PATH`."""
    del node  # One node, one file: everything in it is its own.
    path = url.removeprefix("sqlite").removeprefix(":")
    if path.startswith("//") or url == "sqlite:":
        raise ValueError(f"use `sqlite` or `sqlite:PATH`, not {url!r}")
    return SqliteStore(data_dir / (path or _FILE_NAME), timeout=timeout)
