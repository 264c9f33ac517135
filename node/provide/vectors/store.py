"""Store of vectors: texts of files, searched by the distance of their vectors. A text and its vector are one transaction.

Several providers may share it: each file is indexed by the one that has leased it.
Calls block; code with an event loop runs them in one thread.
"""

import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from node.provide.database import Database, DatabaseError, Row, Superseded, migrate

_TABLES = """
CREATE TABLE IF NOT EXISTS store (
  number {serial}, id TEXT UNIQUE NOT NULL, created_at {int} NOT NULL, active_at {int} NOT NULL,
  name TEXT NOT NULL, model TEXT NOT NULL, size {int} NOT NULL DEFAULT 0, metadata TEXT NOT NULL
) {strict};
CREATE TABLE IF NOT EXISTS member (
  {rowid} store {int} NOT NULL REFERENCES store (number) ON DELETE CASCADE, file TEXT NOT NULL, created_at {int} NOT NULL,
  name TEXT NOT NULL, status TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', batch TEXT NOT NULL, attributes TEXT NOT NULL,
  chunk {int} NOT NULL, overlap {int} NOT NULL, PRIMARY KEY (store, file)
) {strict};
CREATE TABLE IF NOT EXISTS text (
  id {serial}, store {int} NOT NULL, file TEXT NOT NULL, text TEXT NOT NULL
) {strict};
CREATE INDEX IF NOT EXISTS text_of ON text (store, file, id);
"""

_LEASES = """
ALTER TABLE member ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE member ADD COLUMN until {real} NOT NULL DEFAULT 0;
"""

LEASE = 120.0
"""Seconds without progress until other providers may take over a file; some texts may wait long for their embeddings."""

MAX_NEAREST = 4_096
"""Most texts that one search returns; sqlite-vec has this limit."""

MAX_DIMENSIONS = 8_192

_ALL = 2**31 - 1

_STORE = "(SELECT number FROM store WHERE id = ?)"


class VectorDatabase(Database, Protocol):
    """Database that also stores vectors. `vector` is `size` little-endian 32-bit floats."""

    def keep_vector(self, text: int, store: int, size: int, vector: bytes) -> None:
        """Store the vector of a text."""

    def drop_vectors(self, store: int, size: int, file: str) -> None:
        """Delete the vectors of a file's texts."""

    def nearest(self, store: int, size: int, vector: bytes, limit: int) -> list[tuple[int, float]]:
        """Return the numbers of the nearest texts, each with its distance: 1 minus the cosine."""


@dataclass(frozen=True, slots=True)
class Member:
    """A store's file that is to be indexed; `chunk` and `overlap` are in tokens."""

    store: str
    file: str
    model: str
    chunk: int
    overlap: int


@dataclass(frozen=True, slots=True)
class FoundText:
    """Text found by a search; `score` is the cosine of its vector's angle to the query's."""

    file: str
    name: str
    attributes: Mapping[str, Any]
    text: str
    score: float


class WrongVector(Exception):
    """A vector has another length than those in the store, no numbers or too many, or a number that is too large."""


class NoStore(Exception):
    """The store has been deleted meanwhile."""


class VectorStore:
    """Stores, their files, and the texts of those. `now` is Unix time in seconds."""

    def __init__(self, database: VectorDatabase) -> None:
        """Create missing tables. An unshared database frees all leases."""
        self._database = database
        self._owner = secrets.token_hex(8)
        migrate(database, (_TABLES, _LEASES))
        if not database.shared:
            database.change("UPDATE member SET until = 0")

    def close(self) -> None:
        """Free this provider's leases, and close the database."""
        # If the database does not answer, the leases expire by themselves.
        with suppress(DatabaseError):
            self._database.change("UPDATE member SET until = 0 WHERE owner = ?", (self._owner,))
        self._database.close()

    def add(self, id_: str, now: int, name: str, model: str, metadata: Mapping[str, Any]) -> None:
        """Create a store, unless it exists."""
        row = (id_, now, now, name, model, orjson.dumps(metadata).decode())
        statement = "INSERT INTO store (id, created_at, active_at, name, model, metadata) VALUES (?, ?, ?, ?, ?, ?)"
        self._database.change(f"{statement} ON CONFLICT DO NOTHING", row)

    def change(self, id_: str, name: str, metadata: Mapping[str, Any]) -> None:
        """Change a store's name and metadata."""
        row = (name, orjson.dumps(metadata).decode(), id_)
        self._database.change("UPDATE store SET name = ?, metadata = ? WHERE id = ?", row)

    def ids(self) -> list[str]:
        """Return the ids of all stores, the newest first."""
        return [row[0] for row in self._database.rows("SELECT id FROM store ORDER BY number DESC")]

    def find(self, id_: str) -> dict[str, Any] | None:
        """Return a store in OpenAI's shape, with the model of its embeddings, `None` if there is none."""
        statement = (
            "SELECT number, created_at, active_at, name, model, metadata FROM store WHERE id = ?"
        )
        rows = self._database.rows(statement, (id_,))
        if not rows:
            return None
        number, created, active, name, model, metadata = rows[0]
        counts = self._counts("store = ?", (number,))
        statement = "SELECT coalesce(sum(length(text)), 0) FROM text WHERE store = ?"
        (size,) = self._database.rows(statement, (number,))[0]
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
        """Delete a store and its texts."""
        with self._database.transaction():
            for (file,) in self._database.rows(
                "SELECT file FROM member JOIN store ON store = number WHERE id = ?", (id_,)
            ):
                self._forget(id_, file)
            self._database.change("DELETE FROM store WHERE id = ?", (id_,))

    def join(
        self,
        id_: str,
        files: Iterable[tuple[str, str]],
        now: int,
        attributes: Mapping[str, Any],
        chunk: tuple[int, int],
        batch: str = "",
    ) -> None:
        """Add files, given by id and name, to a store; they are indexed in the background."""
        encoded = orjson.dumps(attributes).decode()
        with self._database.transaction():
            for file, name in files:
                self._leave(id_, file)
                statement = (
                    "INSERT INTO member (store, file, created_at, name, status, batch, attributes, chunk, overlap) "
                    "SELECT number, ?, ?, ?, 'in_progress', ?, ?, ?, ? FROM store WHERE id = ?"
                )
                self._database.change(statement, (file, now, name, batch, encoded, *chunk, id_))

    def leave(self, id_: str, file: str) -> None:
        """Remove a file from a store."""
        with self._database.transaction():
            self._leave(id_, file)

    def members(self, id_: str, batch: str = "") -> list[dict[str, Any]]:
        """Return the files of a store, or of one of its batches, the newest first, in OpenAI's shape."""
        statement = (
            "SELECT file, m.created_at, status, error, attributes, chunk, overlap FROM member m JOIN store ON store = number "
            "WHERE id = ? AND (? = '' OR batch = ?) ORDER BY m.created_at DESC, m.rowid DESC"
        )
        return [_member(id_, row) for row in self._database.rows(statement, (id_, batch, batch))]

    def counts_of_batch(self, batch: str) -> dict[str, int]:
        """Return the number of a batch's files by state."""
        return self._counts("batch = ?", (batch,))

    def cancel(self, batch: str) -> None:
        """Cancel the files of a batch that are not indexed yet, and delete their texts."""
        statement = (
            "UPDATE member SET status = 'cancelled' WHERE batch = ? AND status = 'in_progress' "
            "RETURNING (SELECT id FROM store WHERE number = member.store), file"
        )
        with self._database.transaction():
            for id_, file in self._database.rows(statement, (batch,)):
                self._forget(id_, file)

    def waiting(self, now: float, paused: Sequence[str] = ()) -> Member | None:
        """Lease the oldest file that is to be indexed, of a model that is not paused; return `None` if there is none."""
        other = f"AND model NOT IN ({', '.join('?' * len(paused))})" if paused else ""
        statement = (
            "SELECT id, file, model, chunk, overlap FROM member JOIN store ON store = number "  # noqa: S608
            f"WHERE status = 'in_progress' AND (until <= ? OR owner = ?) {other} ORDER BY member.rowid LIMIT 1"
        )
        # Only the member's row is locked, not its store, which may be searched meanwhile.
        unlocked = "FOR UPDATE OF member SKIP LOCKED" if self._database.shared else ""
        with self._database.transaction():
            rows = self._database.rows(f"{statement} {unlocked}", (now, self._owner, *paused))
            if not rows:
                return None
            member = Member(*rows[0])
            leased = f"UPDATE member SET owner = ?, until = ? WHERE file = ? AND store = {_STORE}"  # noqa: S608
            self._database.change(leased, (self._owner, now + LEASE, member.file, member.store))
        return member

    def put_off(self, member: Member, due: float) -> None:
        """Free a file to be indexed again, not before `due`."""
        statement = f"UPDATE member SET owner = '', until = ? WHERE file = ? AND store = {_STORE} AND owner = ?"  # noqa: S608
        self._database.change(statement, (due, member.file, member.store, self._owner))

    def settle(self, member: Member, error: str = "") -> None:
        """Mark a file as indexed, or as failed with an error."""
        statement = (
            f"UPDATE member SET status = ?, error = ? WHERE file = ? AND store = {_STORE} "  # noqa: S608
            "AND status = 'in_progress' AND owner IN ('', ?)"
        )
        status = "failed" if error else "completed"
        with self._database.transaction():
            settled = self._database.change(
                statement, (status, error, member.file, member.store, self._owner)
            )
            if error and settled:
                self._forget(member.store, member.file)

    def forget(self, member: Member, now: float) -> None:
        """Delete the texts of a file that is to be indexed from the start; raise `Superseded`."""
        with self._database.transaction():
            self._hold(member, now)
            self._forget(member.store, member.file)

    def put(
        self, member: Member, now: float, texts: Sequence[str], vectors: Sequence[Sequence[float]]
    ) -> None:
        """Add texts of a file; raise `WrongVector`, or `Superseded` if the file is gone or another provider has it."""
        with self._database.transaction():
            self._hold(member, now)
            statement = (
                f"SELECT number, size FROM store WHERE id = ? {self._database.words['locked']}"  # noqa: S608
            )
            number, size = self._database.rows(statement, (member.store,))[0]
            for text, vector in zip(texts, vectors, strict=True):
                size = size or len(vector)
                if len(vector) != size or not 0 < size <= MAX_DIMENSIONS:
                    raise WrongVector(f"an embedding has {len(vector):,} numbers, not {size:,}")
                self._database.change("UPDATE store SET size = ? WHERE number = ?", (size, number))
                added = "INSERT INTO text (store, file, text) VALUES (?, ?, ?) RETURNING id"
                ((id_,),) = self._database.rows(added, (number, member.file, text))
                self._database.keep_vector(id_, number, size, _packed(vector))

    def texts(self, id_: str, file: str = "", *, newest: int = 0) -> list[str]:
        """Return the texts of a file in order, or the newest texts of a store."""
        order = "DESC" if newest else "ASC"
        statement = (
            "SELECT text FROM text WHERE store = (SELECT number FROM store WHERE id = ?) AND (? = '' OR file = ?) "  # noqa: S608
            f"ORDER BY id {order} LIMIT ?"
        )
        return [row[0] for row in self._database.rows(statement, (id_, file, file, newest or _ALL))]

    def search(
        self, id_: str, vector: Sequence[float], now: int, limit: int = MAX_NEAREST
    ) -> list[FoundText]:
        """Return the texts nearest to a vector, the nearest first; raise `WrongVector` or `NoStore`."""
        stores = self._database.rows("SELECT number, size FROM store WHERE id = ?", (id_,))
        if not stores:
            raise NoStore(id_)
        number, size = stores[0]
        self._database.change("UPDATE store SET active_at = ? WHERE number = ?", (now, number))
        if not size:
            return []
        if len(vector) != size:
            raise WrongVector(f"an embedding has {len(vector):,} numbers, not {size:,}")
        near = self._database.nearest(number, size, _packed(vector), min(limit, MAX_NEAREST))
        if not near:
            return []
        statement = (
            "SELECT t.id, t.file, name, attributes, text FROM text t JOIN member m ON m.store = t.store AND m.file = t.file "  # noqa: S608
            f"WHERE t.id IN ({', '.join('?' * len(near))})"
        )
        rows = {row[0]: row[1:] for row in self._database.rows(statement, [id_ for id_, _ in near])}
        return [_found(rows[id_], distance) for id_, distance in near if id_ in rows]

    def _hold(self, member: Member, now: float) -> None:
        """Renew the lease of a file; raise `Superseded`, also if the file was cancelled."""
        statement = (
            f"UPDATE member SET until = ? WHERE file = ? AND owner IN ('', ?) AND store = {_STORE} "  # noqa: S608
            "AND status = 'in_progress'"
        )
        if not self._database.change(
            statement, (now + LEASE, member.file, self._owner, member.store)
        ):
            raise Superseded(member.file)

    def _leave(self, id_: str, file: str) -> None:
        self._forget(id_, file)
        self._database.change(
            f"DELETE FROM member WHERE file = ? AND store = {_STORE}",  # noqa: S608
            (file, id_),
        )

    def _forget(self, id_: str, file: str) -> None:
        rows = self._database.rows("SELECT number, size FROM store WHERE id = ?", (id_,))
        if rows and rows[0][1]:
            number, size = rows[0]
            self._database.drop_vectors(number, size, file)
            self._database.change("DELETE FROM text WHERE store = ? AND file = ?", (number, file))

    def _counts(self, condition: str, values: tuple[Any, ...]) -> dict[str, int]:
        statement = f"SELECT status, count(*) FROM member WHERE {condition} GROUP BY status"  # noqa: S608
        by_status = {status: count for status, count in self._database.rows(statement, values)}  # noqa: C416 (typed)
        counts = {
            name: by_status.get(name, 0)
            for name in ("in_progress", "completed", "failed", "cancelled")
        }
        return {**counts, "total": sum(counts.values())}


def _found(row: Row, distance: float) -> FoundText:
    file, name, attributes, text = row
    return FoundText(file, name, orjson.loads(attributes), text, 1.0 - distance)


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
