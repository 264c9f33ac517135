"""Database of a provider: SQLite in its folder, or PostgreSQL that the providers of a site share.

Statements are in what both understand, with `?` for each value; `words` has what they call otherwise.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Values = Sequence[Any]
Row = tuple[Any, ...]


class DatabaseError(Exception):
    """The disk is full, the file is damaged, or the server is away."""


class Superseded(Exception):
    """Another provider has taken this work over, because its lease had run out."""


class Database(Protocol):
    """Tables of one provider. Calls block; one thread at a time makes them, and each may raise `DatabaseError`."""

    words: Mapping[str, str]
    """Types and clauses by the name that a statement has for them."""
    shared: bool
    """Whether other providers use the same tables."""

    def now(self) -> float:
        """Return Unix time in seconds, one for all who share the database."""

    def rows(self, asked: str, values: Values = ()) -> list[Row]:
        """Return what a statement finds."""

    def change(self, asked: str, values: Values = ()) -> int:
        """Return how many rows a statement changed."""

    def transaction(
        self, *, alone: bool = False, durable: bool = True
    ) -> AbstractContextManager[None]:
        """Have all that is changed within, or nothing; one within another is part of it. No two are `alone` at one time.

        What is not `durable` does not wait for the disk, and may be forgotten in a power cut.
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
"""`rowid` is a column that SQLite has by itself; `locked` and `unlocked` end a SELECT within a transaction."""


def cid_of(database: Database) -> str:
    """Return what names a shared database, "" for one that is not shared."""
    if not database.shared:
        return ""
    with database.transaction(alone=True):
        database.change("CREATE TABLE IF NOT EXISTS site (cid TEXT NOT NULL)")
        if not database.rows("SELECT cid FROM site"):
            database.change("INSERT INTO site VALUES (?)", (secrets.token_hex(8),))
        return str(database.rows("SELECT cid FROM site")[0][0])


def migrate(database: Database, steps: Sequence[str]) -> None:
    """Take the steps that this database has not seen; each is several statements, and steps are only ever added."""
    with database.transaction(alone=True):
        database.change(
            "CREATE TABLE IF NOT EXISTS migration (steps {int})".format_map(database.words)
        )
        taken: int = database.rows("SELECT coalesce(max(steps), 0) FROM migration")[0][0]
        for step in steps[taken:]:
            for statement in step.format_map(database.words).split(";"):
                if statement.strip():
                    database.change(statement)
        if len(steps) > taken:
            database.change("INSERT INTO migration VALUES (?)", (len(steps),))
