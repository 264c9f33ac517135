"""SQLite with sqlite-vec, whose search is exact, with a table for each length of vectors.

It is opened by apsw, because Python's own `sqlite3` often cannot load extensions.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw
import sqlite_vec

from node.provide.database import SQLITE_WORDS, DatabaseError, Row, Values


class SqliteVectors:
    """One file, created if it does not exist."""

    words: Mapping[str, str] = SQLITE_WORDS
    shared = False

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.enable_load_extension(True)  # noqa: FBT003 (apsw's)
        self._connection.load_extension(sqlite_vec.loadable_path())
        self._connection.enable_load_extension(False)  # noqa: FBT003
        for line in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self.rows(f"PRAGMA {line}")

    def now(self) -> float:
        """Return Unix time in seconds."""
        return time.time()

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        """Run a statement, and return its rows."""
        try:
            return list(self._connection.execute(statement, tuple(values)))
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def change(self, statement: str, values: Values = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        before = self._connection.total_changes()
        self.rows(statement, values)
        return self._connection.total_changes() - before

    @contextmanager
    def transaction(self, *, alone: bool = False, durable: bool = True) -> Iterator[None]:  # noqa: ARG002 (each is both)
        """Commit all changes within, or none; a nested one is part of the outer one."""
        try:
            with self._connection:
                yield
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def keep_vector(self, text: int, store: int, size: int, vector: bytes) -> None:
        """Store the vector of a text; `vector` is `size` little-endian 32-bit floats."""
        self.rows(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS near_{size} USING "
            f"vec0 (store INTEGER PARTITION KEY, vector float[{size}] distance_metric=cosine)"
        )
        row = (text, store, vector)
        self.rows(f"INSERT INTO near_{size} (rowid, store, vector) VALUES (?, ?, ?)", row)  # noqa: S608

    def drop_vectors(self, store: int, size: int, file: str) -> None:
        """Delete the vectors of a file's texts."""
        inside = "SELECT id FROM text WHERE store = ? AND file = ?"
        self.rows(f"DELETE FROM near_{size} WHERE rowid IN ({inside})", (store, file))  # noqa: S608

    def nearest(self, store: int, size: int, vector: bytes, limit: int) -> list[tuple[int, float]]:
        """Return the numbers of the nearest texts, each with its distance: 1 minus the cosine."""
        statement = f"SELECT rowid, distance FROM near_{size} WHERE vector MATCH ? AND store = ? AND k = ? ORDER BY distance"  # noqa: S608
        return [
            (row[0], 1.0 if row[1] is None else row[1])
            for row in self.rows(statement, (vector, store, limit))
        ]
