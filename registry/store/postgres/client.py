"""Client of one PostgreSQL database: one connection, one round trip at a time, each bounded and tried once.

It creates the tables of the store, and reports errors in short sentences that quote neither the server nor the library.
"""

import asyncio
import errno
import os
import secrets
import select
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import psycopg
from psycopg import errors, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from registry.errors import StoreUnavailable

T = TypeVar("T")
Row = tuple[Any, ...]

_LOCK = 0x6D6F64656C76
"""Advisory lock of a node that creates tables, so that nodes that start together do not create them twice."""

# Keys and names are bytes, since text in PostgreSQL holds no zero byte, and in some databases no Unicode.
_STEPS = (
    """
    CREATE TABLE modelvine.entry (
        owner text NOT NULL, space text NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (owner, space, key)
    );
    CREATE TABLE modelvine.counter (
        name bytea PRIMARY KEY, amount float8 NOT NULL, due boolean NOT NULL, expires float8 NOT NULL
    ) WITH (fillfactor = 50)
    """,
)
SCHEMA = len(_STEPS)
"""The layout that this version writes: the number of `_STEPS`, to which steps are only ever added."""

_USAGE = (
    "use postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters in a password percent-encoded; the only "
    "options are host, port, user, password, dbname, passfile, target_session_attrs, channel_binding, require_auth and ssl…"
)
_OPTIONS = frozenset(
    {"host", "port", "user", "password", "dbname", "passfile"}
    | {"target_session_attrs", "channel_binding", "require_auth"}
)

_SYSTEM = (
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.ENOENT,
    errno.EACCES,
)
# When no connection is made, libpq gives no error code, only its own and the server's messages.
_REFUSALS = {os.strerror(number): os.strerror(number) for number in _SYSTEM} | {
    "failed to resolve host": "no such host",
    "password authentication failed": "wrong user or password",
    "no password supplied": "the server requires a password",
    "pg_hba.conf": "the server does not admit this user from here (pg_hba.conf)",
    "received invalid response": "it is not a PostgreSQL server",
    "certificate": "the TLS handshake failed",
    "private key": "the TLS handshake failed",
    "does not exist": "no such database or user",
    "too many": "the server has no free connection",
    "connection slots": "the server has no free connection",
    "starting up": "the server is starting",
    "shutting down": "the server is stopping",
    "SSL": "the TLS handshake failed",
    "closed the connection": "the server closed the connection",
}


class _Connection(psycopg.AsyncConnection[Row]):
    """Connection that is closed at once, with its query, when the task that waits for the answer is cancelled."""

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does, without the ten seconds that it spends to have a silent server stop the query."""
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, timeout)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise

    def has_input(self) -> bool:
        """Return whether an idle connection received something, which usually means that it was closed."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))


class PostgresClient:
    """Makes round trips to a database. The connection is opened at the first one, and again after it was lost."""

    def __init__(self, url: str, *, timeout: float) -> None:
        """`timeout` is seconds for a round trip; raise `ValueError`, which never repeats a password."""
        self.place, options = _check(url)
        """Where the database is, without user and password."""
        self._timeout = timeout
        # By this name `_prepare` finds server processes that are left of closed connections.
        self._name = f"modelvine {secrets.token_hex(8)}"
        # One host of several that does not answer must not block the others for ever.
        several = {"load_balance_hosts": "random"} if "," in options["host"] else {}
        self._conninfo = make_conninfo(
            **options | several,
            gssencmode="disable",
            application_name=self._name,
            client_encoding="UTF8",
            # The server gives up first: a query whose caller has timed out must not run later.
            options=f"-c statement_timeout={timeout * 900:.0f}ms",
        )
        self._connection: _Connection | None = None
        self._gave_up = False
        self._closed = False
        # One round trip at a time, so that writes arrive in the order they were made.
        self._lock = asyncio.Lock()

    async def rows(self, statement: str, values: Sequence[object] = ()) -> Sequence[Row]:
        """Make one round trip, and return the rows of a statement; raise `StoreUnavailable`."""

        async def answered(connection: _Connection) -> Sequence[Row]:
            cursor = await connection.execute(statement.encode(), values, binary=True)
            return await cursor.fetchall() if cursor.description else []

        return await self._bounded(answered)

    async def close(self) -> None:
        """Close the connection after the round trip in progress; harmless when called twice."""
        self._closed = True
        async with self._lock:
            self._give_up()

    async def _bounded(self, call: Callable[[_Connection], Awaitable[T]]) -> T:
        """Make one round trip within the timeout, which includes waiting for our turn and for a connection.

        What the server or the library says may repeat a password, so only its kind is passed on, and the chain of
        causes is cut.
        """
        try:
            async with asyncio.timeout(self._timeout), self._lock:
                connection = await self._opened()
                try:
                    return await call(connection)
                except psycopg.Error:
                    # Whatever the error is, the next call prepares a new connection: the tables may be gone.
                    self._give_up()
                    raise
        except (TimeoutError, errors.QueryCanceled):
            reason = f"no answer within {self._timeout:g} s"
        except (psycopg.Error, OSError, ValueError) as error:
            reason = _reason(error)
        raise StoreUnavailable(
            f"PostgreSQL at {self.place}: {reason}", public_reason=f"PostgreSQL: {reason}"
        )

    async def _opened(self) -> _Connection:
        """Return the connection, opened again if the last one has ended."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        current = self._connection
        if current is not None and not current.closed and not current.has_input():
            return current
        self._give_up()
        connection = await _Connection.connect(
            self._conninfo, autocommit=True, prepare_threshold=None
        )
        with ExitStack() as failed:
            failed.callback(connection.pgconn.finish)
            await self._prepare(connection)
            failed.pop_all()
        self._connection = connection
        return connection

    async def _prepare(self, connection: _Connection) -> None:
        """Ensure that no earlier query of ours is still running, and that the tables exist."""
        if self._gave_up:
            cursor = await connection.execute(
                "SELECT coalesce(bool_and(pg_terminate_backend(pid, %s)), true) FROM pg_stat_activity "
                "WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()",
                (max(1, int(self._timeout * 1000)), self._name),
            )
            if await cursor.fetchone() != (True,):
                raise StoreUnavailable(
                    f"PostgreSQL at {self.place}: an earlier query is still running"
                )
            self._gave_up = False
        try:
            version = await _version(connection)
        except errors.UndefinedTable:
            version = 0
        if version < SCHEMA:
            version = await _lay_out(connection)
        if version > SCHEMA:
            raise StoreUnavailable(
                f"PostgreSQL at {self.place} was written by a newer modelvine (layout {version}, this one knows {SCHEMA}): "
                "upgrade this one, or choose another database with `store`"
            )

    def _give_up(self) -> None:
        """Close the connection; a query that was sent over it may still run."""
        if self._connection is not None:
            self._connection.pgconn.finish()
            self._connection, self._gave_up = None, True


async def _version(connection: _Connection) -> int:
    cursor = await connection.execute("SELECT coalesce(max(version), 0)::int FROM modelvine.layout")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def _lay_out(connection: _Connection) -> int:
    """Run the steps that this database has not seen, one node at a time, and return its layout."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        # A user who may not create schemas may have been given this one.
        cursor = await connection.execute("SELECT to_regnamespace('modelvine') IS NULL")
        if (await cursor.fetchone()) == (True,):
            await connection.execute("CREATE SCHEMA modelvine")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS modelvine.layout (version int NOT NULL)"
        )
        version = await _version(connection)
        for step in _STEPS[version:]:
            await connection.execute(step)
        if version < SCHEMA:
            await connection.execute("INSERT INTO modelvine.layout VALUES (%s)", (SCHEMA,))
    return max(version, SCHEMA)


_STATES = {
    "25006": "the server takes no writes: it is a standby or read-only",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "53300": "the server has no free connection",
    "57P01": "the server is stopping",
}
"""SQLSTATEs of errors on an open connection (PostgreSQL's appendix A)."""


def _reason(error: Exception) -> str:
    """Return what went wrong, in none of the library's or server's words."""
    if isinstance(error, errors.InsufficientPrivilege):
        return (
            "this user may not do that: let the database's owner run CREATE SCHEMA modelvine AUTHORIZATION with this "
            f"user's name ({type(error).__name__})"
        )
    if isinstance(error, psycopg.Error) and error.sqlstate:
        code = f"{type(error).__name__} {error.sqlstate}"
        reason = _STATES.get(error.sqlstate)
        return f"{reason} ({code})" if reason else code
    text = str(error)
    return next((r for fragment, r in _REFUSALS.items() if fragment in text), type(error).__name__)


def _check(url: str) -> tuple[str, dict[str, Any]]:
    """Return where the server is, without user and password, and what the URL says; raise `ValueError`."""
    try:
        options = dict(conninfo_to_dict(url))
    except psycopg.Error:
        raise ValueError(_USAGE) from None
    # Other options of the library would lift our limits.
    if not all(option in _OPTIONS or option.startswith("ssl") for option in options):
        raise ValueError(_USAGE)
    if not options.get("host") or "//" not in url:
        raise ValueError(_USAGE)
    return f"{options['host']}:{options.get('port', 5432)}/{options.get('dbname', '')}", options
