"""SQLite as providers use it: one file, durable at each commit, and one process that has it."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from node.provide.database import SQLITE_WORDS, DatabaseError, Row, Values


class SqliteDatabase:
    """One file, opened or made."""

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
        """Return what a statement finds."""
        try:
            return self._connection.execute(asked, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    def change(self, asked: str, values: Values = ()) -> int:
        """Return how many rows a statement changed."""
        try:
            return self._connection.execute(asked, values).rowcount
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    @contextmanager
    def transaction(self, *, alone: bool = False, durable: bool = True) -> Iterator[None]:  # noqa: ARG002 (each is alone)
        """Have all that is changed within, or nothing; one within another is part of it."""
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
            # A full disk may end it by itself.
            if self._connection.in_transaction:
                self.change("ROLLBACK")
            self.rows("PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
