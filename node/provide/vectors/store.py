"""Store of vectors: one SQLite file with sqlite-vec, whose search is exact. A text and its vector are one transaction.

Plain calls that block; whoever has an event loop runs them in one thread.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import orjson
import sqlite_vec

from node.provide.database import DatabaseError

SCHEMA = """
CREATE TABLE IF NOT EXISTS store (
  number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, created_at INTEGER NOT NULL, active_at INTEGER NOT NULL,
  name TEXT NOT NULL, model TEXT NOT NULL, size INTEGER NOT NULL DEFAULT 0, metadata TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS member (
  store INTEGER NOT NULL REFERENCES store (number) ON DELETE CASCADE, file TEXT NOT NULL, created_at INTEGER NOT NULL,
  name TEXT NOT NULL, status TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', batch TEXT NOT NULL, attributes TEXT NOT NULL,
  chunk INTEGER NOT NULL, overlap INTEGER NOT NULL, PRIMARY KEY (store, file)
) STRICT;
CREATE TABLE IF NOT EXISTS text (
  id INTEGER PRIMARY KEY, store INTEGER NOT NULL, file TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS text_of ON text (store, file, id);
"""

MAX_NEAREST = 4_096
"""What sqlite-vec returns of one search at most."""

MAX_DIMENSIONS = 8_192


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a store that is to be read: `chunk` and `overlap` are in tokens."""

    store: str
    file: str
    model: str
    chunk: int
    overlap: int


@dataclass(frozen=True, slots=True)
class Found:
    """A text that was found; `score` is the cosine of the angle to what was asked for."""

    file: str
    name: str
    attributes: Mapping[str, Any]
    text: str
    score: float


class WrongVector(Exception):
    """A vector of another length than those that are there, or of none."""


class VectorStore:
    """Stores, their files, and the texts of those. `now` is Unix time in seconds."""

    def __init__(self, path: Path) -> None:
        self._database = apsw.Connection(str(path))
        self._database.enable_load_extension(True)  # noqa: FBT003 (apsw's)
        self._database.load_extension(sqlite_vec.loadable_path())
        self._database.enable_load_extension(False)  # noqa: FBT003
        for line in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self._all(f"PRAGMA {line}")
        self._database.execute(SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, id_: str, now: int, name: str, model: str, metadata: Mapping[str, Any]) -> None:
        """Make a store."""
        row = (id_, now, now, name, model, orjson.dumps(metadata).decode())
        asked = "INSERT INTO store (id, created_at, active_at, name, model, metadata) VALUES (?, ?, ?, ?, ?, ?)"
        self._all(asked, row)

    def change(self, id_: str, name: str, metadata: Mapping[str, Any]) -> None:
        """Call a store otherwise."""
        row = (name, orjson.dumps(metadata).decode(), id_)
        self._all("UPDATE store SET name = ?, metadata = ? WHERE id = ?", row)

    def ids(self) -> list[str]:
        """Return the ids of all stores, the newest first."""
        return [row[0] for row in self._all("SELECT id FROM store ORDER BY number DESC")]

    def find(self, id_: str) -> dict[str, Any] | None:
        """Return a store as OpenAI shows it, and the model of its embeddings."""
        rows = self._all("SELECT * FROM store WHERE id = ?", (id_,))
        if not rows:
            return None
        number, _, created, active, name, model, _, metadata = rows[0]
        counts = self._counts("store = ?", (number,))
        asked = "SELECT coalesce(sum(length(text)), 0) FROM text WHERE store = ?"
        (size,) = self._all(asked, (number,))[0]
        return {
            "id": id_,
            "object": "vector_store",
            "created_at": created,
            "last_active_at": active,
            "name": name,
            "usage_bytes": size,
            "file_counts": counts,
            "status": "in_progress" if counts["in_progress"] else "completed",
            "metadata": orjson.loads(metadata),
            "embedding_model": model,
        }

    def remove(self, id_: str) -> None:
        """Forget a store and its texts."""
        with self._whole():
            for (file,) in self._all(
                "SELECT file FROM member JOIN store ON store = number WHERE id = ?", (id_,)
            ):
                self._forget(id_, file)
            self._all("DELETE FROM store WHERE id = ?", (id_,))

    def join(
        self,
        id_: str,
        files: Iterable[tuple[str, str]],
        now: int,
        attributes: Mapping[str, Any],
        chunk: tuple[int, int],
        batch: str = "",
    ) -> None:
        """Put files, by id and name, in a store; they are read in the background."""
        said = orjson.dumps(attributes).decode()
        with self._whole():
            for file, name in files:
                self._forget(id_, file)
                asked = (
                    "INSERT OR REPLACE INTO member SELECT number, ?, ?, ?, 'in_progress', '', ?, ?, ?, ? "
                    "FROM store WHERE id = ?"
                )
                self._all(asked, (file, now, name, batch, said, *chunk, id_))

    def leave(self, id_: str, file: str) -> None:
        """Take a file out of a store."""
        with self._whole():
            self._forget(id_, file)
            self._all(
                "DELETE FROM member WHERE file = ? AND store = (SELECT number FROM store WHERE id = ?)",
                (file, id_),
            )

    def members(self, id_: str, batch: str = "") -> list[dict[str, Any]]:
        """Return the files of a store, or of one of its batches, the newest first, as OpenAI shows them."""
        asked = (
            "SELECT file, m.created_at, status, error, attributes, chunk, overlap FROM member m JOIN store ON store = number "
            "WHERE id = ? AND (? = '' OR batch = ?) ORDER BY m.created_at DESC, m.rowid DESC"
        )
        return [_member(id_, row) for row in self._all(asked, (id_, batch, batch))]

    def counts_of_batch(self, batch: str) -> dict[str, int]:
        """Return how many files of a batch are in which state."""
        return self._counts("batch = ?", (batch,))

    def cancel(self, batch: str) -> None:
        """Read no further file of a batch."""
        self._all(
            "UPDATE member SET status = 'cancelled' WHERE batch = ? AND status = 'in_progress'",
            (batch,),
        )

    def waiting(self) -> Member | None:
        """Return a file that is to be read, the oldest first."""
        asked = (
            "SELECT id, file, model, chunk, overlap FROM member JOIN store ON store = number "
            "WHERE status = 'in_progress' ORDER BY member.rowid LIMIT 1"
        )
        rows = self._all(asked)
        return Member(*rows[0]) if rows else None

    def settle(self, member: Member, error: str = "") -> None:
        """Note that a file was read, or why not."""
        asked = (
            "UPDATE member SET status = ?, error = ? WHERE file = ? AND status = 'in_progress' "
            "AND store = (SELECT number FROM store WHERE id = ?)"
        )
        self._all(asked, ("failed" if error else "completed", error, member.file, member.store))
        if error:
            with self._whole():
                self._forget(member.store, member.file)

    def forget(self, member: Member) -> None:
        """Remove the texts of a file that is read again."""
        with self._whole():
            self._forget(member.store, member.file)

    def put(self, member: Member, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Add texts of a file; raise `WrongVector`."""
        with self._whole():
            rows = self._all("SELECT number, size FROM store WHERE id = ?", (member.store,))
            if not rows:
                return
            number, size = rows[0]
            for text, vector in zip(texts, vectors, strict=True):
                size = size or len(vector)
                if len(vector) != size or not 0 < size <= MAX_DIMENSIONS:
                    raise WrongVector(f"an embedding has {len(vector):,} numbers, not {size:,}")
                self._all("UPDATE store SET size = ? WHERE id = ?", (size, member.store))
                self._all(
                    f"CREATE VIRTUAL TABLE IF NOT EXISTS near_{size} USING "
                    f"vec0 (store INTEGER PARTITION KEY, vector float[{size}] distance_metric=cosine)"
                )
                self._all(
                    "INSERT INTO text (store, file, text) VALUES (?, ?, ?)",
                    (number, member.file, text),
                )
                row = (self._database.last_insert_rowid(), number, _packed(vector))
                self._all(f"INSERT INTO near_{size} (rowid, store, vector) VALUES (?, ?, ?)", row)  # noqa: S608

    def texts(self, id_: str, file: str = "", *, newest: int = 0) -> list[str]:
        """Return the texts of a file in their order, or the newest of a store."""
        order = "DESC" if newest else "ASC"
        asked = (
            "SELECT text FROM text WHERE store = (SELECT number FROM store WHERE id = ?) AND (? = '' OR file = ?) "  # noqa: S608
            f"ORDER BY id {order} LIMIT ?"
        )
        return [row[0] for row in self._all(asked, (id_, file, file, newest or -1))]

    def search(
        self, id_: str, vector: Sequence[float], now: int, most: int = MAX_NEAREST
    ) -> list[Found]:
        """Return what is nearest, the nearest first; raise `WrongVector`."""
        number, size = self._all("SELECT number, size FROM store WHERE id = ?", (id_,))[0]
        self._all("UPDATE store SET active_at = ? WHERE number = ?", (now, number))
        if not size:
            return []
        if len(vector) != size:
            raise WrongVector(f"an embedding has {len(vector):,} numbers, not {size:,}")
        asked = (
            f"WITH near AS (SELECT rowid AS id, distance FROM near_{size} WHERE vector MATCH ? AND store = ? AND k = ?) "  # noqa: S608
            "SELECT t.file, name, attributes, text, distance FROM near JOIN text t ON t.id = near.id "
            "JOIN member m ON m.store = t.store AND m.file = t.file ORDER BY distance, t.id"
        )
        rows = self._all(asked, (_packed(vector), number, min(most, MAX_NEAREST)))
        return [
            Found(f, name, orjson.loads(said), text, 0.0 if d is None else 1.0 - d)
            for f, name, said, text, d in rows
        ]

    def _forget(self, id_: str, file: str) -> None:
        rows = self._all("SELECT number, size FROM store WHERE id = ?", (id_,))
        if rows and rows[0][1]:
            number, size = rows[0]
            inside = "SELECT id FROM text WHERE store = ? AND file = ?"
            self._all(f"DELETE FROM near_{size} WHERE rowid IN ({inside})", (number, file))  # noqa: S608
            self._all("DELETE FROM text WHERE store = ? AND file = ?", (number, file))

    def _counts(self, where: str, values: tuple[Any, ...]) -> dict[str, int]:
        asked = f"SELECT status, count(*) FROM member WHERE {where} GROUP BY status"  # noqa: S608
        found = dict(self._all(asked, values))
        counts = {
            name: found.get(name, 0) for name in ("in_progress", "completed", "failed", "cancelled")
        }
        return {**counts, "total": sum(counts.values())}

    def _all(self, asked: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return list(self._database.execute(asked, values))
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All of it or nothing."""
        try:
            with self._database:
                yield
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error


def _packed(vector: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(vector)}f", *vector)
    except OverflowError as error:
        raise WrongVector("a number of a vector is too large") from error


def _member(store: str, row: tuple[Any, ...]) -> dict[str, Any]:
    file, created, status, error, attributes, chunk, overlap = row
    return {
        "id": file,
        "object": "vector_store.file",
        "created_at": created,
        "vector_store_id": store,
        "status": status,
        "usage_bytes": 0,
        "last_error": {"code": "unsupported_file", "message": error} if error else None,
        "attributes": orjson.loads(attributes),
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": chunk, "chunk_overlap_tokens": overlap},
        },
    }
