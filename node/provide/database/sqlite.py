"""SQLite database of a provider: one file, durable at each commit, used by one process."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from node.provide.database import SQLITE_WORDS, DatabaseError, Row, Values


class SqliteDatabase:
    """One file, created if it does not exist."""

    words: Mapping[str, str] = SQLITE_WORDS
    shared = False

    def __init__(self, path: Path) -> None:
        self._depth = 0
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: {error}") from error
        self.rows("PRAGMA journal_mode = WAL")
        self.rows("PRAGMA synchronous = FULL")

    def now(self) -> float:
        """Return Unix time in seconds."""
        return time.time()

    def rows(self, asked: str, values: Values = ()) -> list[Row]:
        """Run a statement, and return its rows."""
        try:
            return self._connection.execute(asked, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    def change(self, asked: str, values: Values = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        try:
            return self._connection.execute(asked, values).rowcount
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    @contextmanager
    def transaction(self, *, alone: bool = False, durable: bool = True) -> Iterator[None]:  # noqa: ARG002 (each is alone)
        """Commit all changes within, or none; a nested one is part of the outer one."""
        if self._depth:
            yield
            return
        self.rows(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.change("BEGIN IMMEDIATE")
        self._depth = 1
        try:
            yield
            self.change("COMMIT")
        finally:
            self._depth = 0
            # A full disk may already have ended the transaction.
            if self._connection.in_transaction:
                self.change("ROLLBACK")
            self.rows("PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
