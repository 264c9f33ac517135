"""PostgreSQL that the providers of a site share: a schema of its own for each kind of provider, and a clock for all.

A connection that broke is opened again at the next call. No call waits longer than `LONGEST_CALL`, whatever the server does.
"""

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
"""Whoever makes tables holds this, so that two that start together do not make them twice."""

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
    """Connection whose calls end: libpq has no limit for a server that has stopped."""

    def wait(
        self, gen: PQGen[_Result], interval: float = 0.1, timeout: float | None = None
    ) -> _Result:
        """Wait as psycopg does, but no longer than `LONGEST_CALL`, and close the connection then."""
        try:
            return super().wait(gen, interval, timeout or LONGEST_CALL)
        except psycopg.Error:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class PostgresDatabase:
    """One schema of a database. `url` is a URL or words of libpq; a password may be where libpq looks for it."""

    words: Mapping[str, str] = _WORDS
    shared = True

    def __init__(self, url: str, schema: str) -> None:
        """Connect, and make the schema; raise `DatabaseError`."""
        try:
            self._place = make_conninfo(
                url, connect_timeout=CONNECT_SECONDS, application_name="modelvine"
            )
        except psycopg.Error:
            # Its words repeat the password.
            raise DatabaseError("PostgreSQL: this is no URL of a database") from None
        self._schema = sql.Identifier(schema)
        self._depth = 0
        self._ahead = 0.0
        self._connection = self._connected()

    def now(self) -> float:
        """Return the server's Unix time in seconds, as it was compared at the last connection."""
        return time.time() + self._ahead

    def rows(self, asked: str, values: Values = ()) -> list[Row]:
        """Return what a statement finds."""
        return self._execute(asked, values).fetchall()

    def change(self, asked: str, values: Values = ()) -> int:
        """Return how many rows a statement changed."""
        return self._execute(asked, values).rowcount

    @contextmanager
    def transaction(self, *, alone: bool = False, durable: bool = True) -> Iterator[None]:
        """Have all that is changed within, or nothing; one within another is part of it. No two are `alone` at one time."""
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

    def _execute(self, asked: str, values: Values) -> psycopg.Cursor[Row]:
        connection = self._alive()
        # The column is of no character set that has it, and SQLite takes it.
        bound = [
            v.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(v, str) else v
            for v in values
        ]
        try:
            return connection.execute(asked.replace("?", "%s").encode(), bound)
        except psycopg.Error as error:
            raise DatabaseError(_said(error)) from error

    def _alive(self) -> _Bounded:
        # What was begun on a connection that broke is lost, and is not gone on with on another one.
        if self._connection.closed and self._depth == 0:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> _Bounded:
        made = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(self._schema)
        searched = sql.SQL("SET search_path TO {}, public").format(self._schema)
        try:
            connection = _Bounded.connect(
                self._place,
                autocommit=True,
                prepare_threshold=None,
            )
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                connection.execute(made)
            connection.execute(searched)
            asked = "SELECT extract(epoch FROM clock_timestamp())::double precision"
            row = connection.execute(asked).fetchone()
        except psycopg.Error as error:
            raise DatabaseError(_said(error)) from error
        self._ahead = (row[0] if row else time.time()) - time.time()
        return connection


def _said(error: psycopg.Error) -> str:
    """Return what is wrong in one line; psycopg names no password."""
    words = str(error).split("\n")[0].strip() or type(error).__name__
    return f"PostgreSQL: {words}"
