"""Database of a provider: SQLite in its folder, or PostgreSQL that the providers of a site share.

Statements use the SQL that both understand, with `?` for each value; `words` has the terms that differ.
"""

import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

Values = Sequence[Any]
Row = tuple[Any, ...]


class DatabaseError(Exception):
    """The disk is full, the file is damaged, or the server does not answer."""


class Superseded(Exception):
    """Another provider has taken over this work, because its lease had expired."""


class Database(Protocol):
    """Tables of one provider. Calls block, must come from one thread at a time, and may raise `DatabaseError`."""

    words: Mapping[str, str]
    """SQL types and clauses, by their placeholder in a statement."""
    shared: bool
    """Whether other providers use the same tables."""

    def now(self) -> float:
        """Return Unix time in seconds, by one clock for all providers that share the database."""

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        """Run a statement, and return its rows."""

    def change(self, statement: str, values: Values = ()) -> int:
        """Run a statement, and return how many rows it changed."""

    def transaction(
        self, *, alone: bool = False, durable: bool = True
    ) -> AbstractContextManager[None]:
        """Return a context that commits all changes within it, or none; a nested one is part of the outer one.

        Transactions with `alone` exclude each other. One that is not `durable` does not wait for the disk, and may be lost in
        a power cut.
        """

    def close(self) -> None:
        """Close it."""


SQLITE_WORDS = {
    "int": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
    "serial": "INTEGER PRIMARY KEY",
    "rowid": "",
    "strict": "STRICT",
    "keyed": "STRICT, WITHOUT ROWID",
    "locked": "",
    "unlocked": "",
}
"""SQLite has the column `rowid` by itself; `locked` and `unlocked` end a SELECT within a transaction."""


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

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        """Run a statement, and return its rows."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(str(error)) from error

    def change(self, statement: str, values: Values = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        try:
            return self._connection.execute(statement, values).rowcount
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


def cid_of(database: Database) -> str:
    """Return the id of a shared database, created at the first call; "" for one that is not shared."""
    if not database.shared:
        return ""
    with database.transaction(alone=True):
        database.change("CREATE TABLE IF NOT EXISTS site (cid TEXT NOT NULL)")
        if not database.rows("SELECT cid FROM site"):
            database.change("INSERT INTO site VALUES (?)", (secrets.token_hex(8),))
        return str(database.rows("SELECT cid FROM site")[0][0])


def migrate(database: Database, steps: Sequence[str]) -> None:
    """Apply the steps that this database has not had yet. A step is several statements; steps are only ever appended."""
    with database.transaction(alone=True):
        database.change(
            "CREATE TABLE IF NOT EXISTS migration (steps {int})".format_map(database.words)
        )
        applied: int = database.rows("SELECT coalesce(max(steps), 0) FROM migration")[0][0]
        for step in steps[applied:]:
            for statement in step.format_map(database.words).split(";"):
                if statement.strip():
                    database.change(statement)
        if len(steps) > applied:
            database.change("INSERT INTO migration VALUES (?)", (len(steps),))
