"""PostgreSQL that the providers of a site share: a schema for each kind of provider, and one clock for all.

A broken connection is reopened by the next call. No call waits longer than `LONGEST_CALL`, whatever the server does.
"""

import math
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from node.provide.database import DatabaseError, Row, Values

LONGEST_CALL = 30.0
"""Seconds that a statement may take."""

CONNECT_SECONDS = 5

_LOCK = 0x6D6F64656C
"""Advisory lock held while tables are created, so that two providers that start together do not create them twice."""

_WORDS = {
    "int": "BIGINT",
    "real": "DOUBLE PRECISION",
    "bytes": "BYTEA",
    "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "rowid": "rowid BIGINT GENERATED ALWAYS AS IDENTITY,",
    "strict": "",
    "keyed": "",
    "locked": "FOR UPDATE",
    "unlocked": "FOR UPDATE SKIP LOCKED",
}


_Result = TypeVar("_Result")


class _Bounded(psycopg.Connection[Row]):
    """Connection whose calls have a time limit: libpq has none for a server that has stopped."""

    def wait(
        self, gen: PQGen[_Result], interval: float = 0.1, timeout: float | None = None
    ) -> _Result:
        """Wait as psycopg does, but at most `LONGEST_CALL`; after that, close the connection."""
        try:
            return super().wait(gen, interval, timeout or LONGEST_CALL)
        except psycopg.Error:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class PostgresDatabase:
    """One schema of a database. `url` is a URL or a libpq connection string; the password may be where libpq looks for it."""

    words: Mapping[str, str] = _WORDS
    shared = True

    def __init__(self, url: str, schema: str) -> None:
        """Connect, and create the schema; raise `DatabaseError`."""
        try:
            self._conninfo = make_conninfo(
                url, connect_timeout=CONNECT_SECONDS, application_name="modelvine"
            )
        except psycopg.Error:
            # The error's text would repeat the password.
            raise DatabaseError("PostgreSQL: this is no URL of a database") from None
        self._schema = sql.Identifier(schema)
        self._depth = 0
        self._ahead = 0.0
        self._connection = self._connected()

    def now(self) -> float:
        """Return the server's Unix time in seconds, by the offset measured at the last connection."""
        return time.time() + self._ahead

    def rows(self, statement: str, values: Values = ()) -> list[Row]:
        """Run a statement, and return its rows."""
        return self._execute(statement, values).fetchall()

    def change(self, statement: str, values: Values = ()) -> int:
        """Run a statement, and return how many rows it changed."""
        return self._execute(statement, values).rowcount

    @contextmanager
    def transaction(self, *, alone: bool = False, durable: bool = True) -> Iterator[None]:
        """Commit all changes within, or none; a nested one is part of the outer one. Those with `alone` exclude each other."""
        connection = self._alive()
        self._depth += 1
        try:
            with connection.transaction():
                if not durable:
                    connection.execute("SET LOCAL synchronous_commit TO off")
                if alone:
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                yield
        except psycopg.Error as error:
            raise DatabaseError(_said(error)) from error
        finally:
            self._depth -= 1

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _execute(self, statement: str, values: Values) -> psycopg.Cursor[Row]:
        connection = self._alive()
        # PostgreSQL's text cannot hold NUL, which SQLite accepts.
        bound = [
            v.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(v, str) else v
            for v in values
        ]
        try:
            return connection.execute(statement.replace("?", "%s").encode(), bound)
        except psycopg.Error as error:
            raise DatabaseError(_said(error)) from error

    def _alive(self) -> _Bounded:
        # A transaction on a broken connection is lost, and must not continue on another connection.
        if self._connection.closed and self._depth == 0:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> _Bounded:
        create_schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(self._schema)
        searched = sql.SQL("SET search_path TO {}, public").format(self._schema)
        try:
            connection = _Bounded.connect(
                self._conninfo,
                autocommit=True,
                prepare_threshold=None,
            )
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                connection.execute(create_schema)
            connection.execute(searched)
            statement = "SELECT extract(epoch FROM clock_timestamp())::double precision"
            row = connection.execute(statement).fetchone()
        except psycopg.Error as error:
            raise DatabaseError(_said(error)) from error
        self._ahead = (row[0] if row else time.time()) - time.time()
        return connection


def _said(error: psycopg.Error) -> str:
    """Return an error as one line; psycopg's texts contain no password."""
    text = str(error).split("\n")[0].strip() or type(error).__name__
    return f"PostgreSQL: {text}"


class PgVectors(PostgresDatabase):
    """One schema of a database that has the extension, or allows creating it."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema)
        with self.transaction(alone=True):
            try:
                self.change("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
            except DatabaseError as error:
                advice = (
                    "install it on the server, where a superuser says once: CREATE EXTENSION vector"
                )
                raise DatabaseError(f"{error}; vectors need pgvector: {advice}") from error
            self.change(
                "CREATE TABLE IF NOT EXISTS near (text BIGINT PRIMARY KEY, store BIGINT NOT NULL, vector vector NOT NULL)"
            )
            self.change("CREATE INDEX IF NOT EXISTS near_of ON near (store)")

    def keep_vector(self, text: int, store: int, size: int, vector: bytes) -> None:
        """Store the vector of a text; `vector` is `size` little-endian 32-bit floats."""
        self.change("INSERT INTO near VALUES (?, ?, ?::vector)", (text, store, _told(vector, size)))

    def drop_vectors(self, store: int, size: int, file: str) -> None:  # noqa: ARG002 (one table for all lengths)
        """Delete the vectors of a file's texts."""
        inside = "SELECT id FROM text WHERE store = ? AND file = ?"
        self.change(f"DELETE FROM near WHERE text IN ({inside})", (store, file))  # noqa: S608

    def nearest(self, store: int, size: int, vector: bytes, limit: int) -> list[tuple[int, float]]:
        """Return the numbers of the nearest texts, each with its distance: 1 minus the cosine."""
        statement = "SELECT text, vector <=> ?::vector AS distance FROM near WHERE store = ? ORDER BY distance, text LIMIT ?"
        rows = self.rows(statement, (_told(vector, size), store, limit))
        return [(text, 1.0 if math.isnan(distance) else distance) for text, distance in rows]


def _told(vector: bytes, size: int) -> str:
    """Return a vector in pgvector's text form."""
    return f"[{','.join(map(repr, struct.unpack(f'<{size}f', vector)))}]"
