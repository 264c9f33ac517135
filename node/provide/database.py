"""SQLite as providers use it: one file, durable at each commit, transactions that are whole or nothing."""

import sqlite3
from pathlib import Path

DatabaseError = sqlite3.Error
"""What any call may raise: the disk is full, or the file is damaged."""


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a file, or make it. The connection may be used by any thread, by one at a time."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.executescript(schema)
    return database


class Transaction:
    """All of it or nothing."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._database.execute("ROLLBACK" if failure else "COMMIT")
