"""Pool of HTTP connections to workers and peers.

A connection that was closed while idle is skipped before anything is written to it. llama.cpp closes its connection after each
stream, unannounced, and simple servers after each answer: so connections rest after a stream, and where that was seen after any
answer, until it would have been seen again. A request that was written is never written again, since the worker that read it
may have died of it, except for a GET without any answer, which is idempotent (RFC 9110 9.2.2). A request that is given up cuts
its connection at once, so that the worker notices. Each address is checked when it is connected to, whatever its name resolved
to before; no redirect is followed.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache

from yarl import URL

from router.http.connection import Connection
from router.http.dial import tcp_dialer
from router.http.errors import CannotConnect, ConnectTimeout, HungUp, tls_failure
from router.http.reply import Reply
from router.http.write_batch import WriteBatch
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard

WORKERS_IDLE_SECONDS = 2.0
"""Idle timeout of connections to workers, below the five seconds after which most model servers close them.

The difference is more than a busy machine is late to see an answer's end. A request that is written while the server closes is
lost, and not written again.
"""

WORKERS_REST_SECONDS = 0.5
"""Seconds for which a connection is left alone after an answer, while its worker is not known to keep it open."""

_IDLE_SECONDS = 15.0
_MAX_POOLS = 4096
_REPEATABLE = b"GET "

Dial = Callable[[Callable[[], Connection]], Awaitable[Connection]]
"""Function that opens a connection whose protocol the given function makes; raises `OSError`."""

Origin = tuple[str, str, int]
"""Scheme, host and port of a URL."""


class ConnectionPool:
    """Pool of at most `connections_per_worker` connections to one place, which are kept while they are used."""

    def __init__(
        self,
        dial: Dial,
        settings: RouterSettings,
        *,
        idle: float = _IDLE_SECONDS,
        rest: float = 0.0,
    ) -> None:
        """Keep idle connections for `idle` seconds; after a stream they rest for `rest`, until one was seen to outlast that.

        After other answers they rest once one was closed within that time.
        """
        self._dial = dial
        self._idle_timeout = idle
        self._rest_seconds = rest
        self._kept_open = [True, rest == 0]
        """Whether connections are kept open after answers in one piece, and after streams."""
        self._limit = settings.connections_per_worker
        self._connect_timeout = settings.connect_timeout
        self._connections: dict[Connection, None] = {}
        self._idle: dict[Connection, float] = {}
        """Connections for the next requests, with the time when each was freed, the newest last."""
        self._resting: dict[Connection, float] = {}
        """Connections that rest, the oldest first."""
        self._dialling = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.batch = WriteBatch()
        """Batch in which requests that begin at once are written."""
        self.closed = self._retired = False

    @property
    def is_unused(self) -> bool:
        """Whether it has no connection."""
        return not (self._connections or self._dialling)

    @property
    def has_room(self) -> bool:
        """Whether another connection may be opened."""
        return len(self._connections) + self._dialling < self._limit

    async def ask(self, head: bytes, body: bytes) -> Reply:
        """Send a request; return the answer once its head is there, or raise `HttpError`."""
        # Usually a connection is idle, and there is nothing to wait for.
        connection = self.take_idle() or await self._wait_for_idle()
        if connection is not None:
            try:
                return await connection.ask(head, body)
            except CannotConnect:
                pass  # refused: the request was not read
            except HungUp as error:
                if not (error.untouched and head.startswith(_REPEATABLE)):
                    raise
        return await (await self._open_connection()).ask(head, body)

    async def resume(self, reply: Reply, head: bytes, body: bytes) -> Reply:
        """Wait for the head of the reply to a request that was sent, and return it; send the request anew if it is refused."""
        try:
            await reply.wait_for_head_or_abort()
        except CannotConnect:
            return await self.ask(head, body)
        return reply

    def take_idle(self) -> Connection | None:
        """Take a connection on which a request may be sent at once, `None` if there is none."""
        if self._resting:
            self._end_rest()
        # The most recently used connection is the most likely to be still open.
        while self._idle:
            connection, since = self._idle.popitem()
            reusable = connection.is_reusable
            if reusable and connection.loop.time() - since < self._idle_timeout:
                self._kept_open[connection.streamed] = True
                return connection
            if not reusable:
                self._note_early_close(connection, since)
            connection.abort()
        return None

    async def open_spare(self) -> None:
        """Open a connection for the next request, to prove that it is possible; raise `HttpError`."""
        self.release(await self._open_connection())

    def close(self) -> None:
        """Cut every connection, and end all waits for one."""
        self.closed = self._retired = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in self._connections:
            connection.abort()
        self._idle.clear()
        self._resting.clear()
        while self._waiting:
            self._wake_next()

    def retire(self) -> None:
        """Keep no connection any more: cut the idle ones now, and each other one after its request."""
        self._retired = True
        self.close_idle()

    def close_idle(self) -> None:
        """Cut the idle connections, whose other end is gone."""
        for connection in (*self._idle, *self._resting):
            connection.abort()
        self._idle.clear()
        self._resting.clear()

    # Called by connections.

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if self._retired:
            connection.abort()
            return
        target = self._idle if self._kept_open[connection.streamed] else self._resting
        target[connection] = connection.loop.time()
        if self._sweep_timer is None:
            self._schedule_sweep()
        if self._waiting:
            self._wake_next()

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(connection, None)
        for connections in (self._idle, self._resting):
            if (since := connections.pop(connection, None)) is not None:
                self._note_early_close(connection, since)
        self._wake_next()

    # Internals.

    async def _wait_for_idle(self) -> Connection | None:
        """Return an idle connection, or `None` if a new one may be opened; wait while there is neither."""
        while True:
            if (connection := self.take_idle()) is not None:
                return connection
            if self.closed or self.has_room:
                return None
            if self._resting:
                oldest = next(iter(self._resting))
                del self._resting[oldest]
                oldest.abort()
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._wake_next()
                raise

    async def _open_connection(self) -> Connection:
        if self.closed:
            raise CannotConnect("this node is closing its connections")
        self._dialling += 1
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._dial(lambda: Connection(self))
        except TimeoutError as error:
            raise ConnectTimeout("no connection in time") from error
        except CannotConnect:
            raise
        except ssl.SSLError as error:
            raise tls_failure(error) from error
        except OSError as error:
            raise CannotConnect(_reason_of(error)) from error
        finally:
            self._dialling -= 1
            self._wake_next()
        self._connections[connection] = None
        return connection

    def _end_rest(self) -> None:
        """Make connections that have rested for long enough available again."""
        resting = self._resting
        while resting:
            connection = next(iter(resting))
            rested = connection.loop.time() - resting[connection]
            if rested < self._rest_seconds and not self._kept_open[connection.streamed]:
                return
            self._idle[connection] = resting.pop(connection)

    def _note_early_close(self, connection: Connection, since: float) -> None:
        """Let connections rest from now on after answers like that after which the other side closed one, if it did so early."""
        streamed = connection.streamed
        early = connection.loop.time() - since < self._rest_seconds
        if early and self._kept_open[streamed]:
            self._kept_open[streamed] = False
            for other in [c for c in self._idle if c.streamed == streamed]:
                self._resting[other] = self._idle.pop(other)

    def _wake_next(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._idle_timeout, self._close_expired)

    def _close_expired(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._idle_timeout
        for connections in (self._idle, self._resting):
            for connection in [c for c, since in connections.items() if since <= oldest]:
                del connections[connection]
                connection.abort()
        self._sweep_timer = None
        if self._idle or self._resting:
            self._schedule_sweep()


def _reason_of(error: OSError) -> str:
    """Return why there is no connection, in the system's words, which name no address."""
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    return os.strerror(error.errno).lower() if error.errno else "no address of it answers"


class WorkerPools:
    """Connection pools for the places at which this machine's workers listen."""

    def __init__(self, settings: RouterSettings, guard: SsrfGuard) -> None:
        self._settings = settings
        self._guard = guard
        self._pools: dict[Origin, ConnectionPool] = {}

    def pool_for(self, url: URL) -> ConnectionPool:
        """Return the connections to the host and port of a URL."""
        return self.pool_at(origin_of(url))

    def pool_at(self, origin: Origin) -> ConnectionPool:
        """Return the connections to a host and port."""
        pool = self._pools.get(origin)
        return self._add(origin) if pool is None else pool

    def _add(self, origin: Origin) -> ConnectionPool:
        if len(self._pools) >= _MAX_POOLS:
            self._pools = {o: p for o, p in self._pools.items() if not p.is_unused}
        scheme, host, port = origin
        context = public_context() if scheme == "https" else None
        dial = tcp_dialer(host, port, context, objection=self._guard.objection)
        pool = self._pools[origin] = ConnectionPool(
            dial, self._settings, idle=WORKERS_IDLE_SECONDS, rest=WORKERS_REST_SECONDS
        )
        return pool

    def close(self) -> None:
        """Cut every connection."""
        for pool in self._pools.values():
            pool.close()


def origin_of(url: URL) -> Origin:
    """Return the scheme, host and port of a URL."""
    return url.scheme, url.host or "", url.port or 80


@lru_cache(maxsize=4096)
def request_start(url: URL, method: str = "POST") -> bytes:
    """Return the beginning of a request for a URL, cached for URLs that are requested again and again."""
    return build_request_start(url, method)


def build_request_start(url: URL, method: str) -> bytes:
    """Return the beginning of a request for a URL: its first line, its host, and that no compression is wanted."""
    default = {"http": 80, "https": 443}.get(url.scheme)
    host = url.host_subcomponent or ""
    authority = host if url.port == default else f"{host}:{url.port}"
    line = (
        f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {authority}\r\nAccept-Encoding: identity\r\n"
    )
    return line.encode()


@lru_cache(maxsize=1)
def public_context() -> ssl.SSLContext:
    """Return the TLS context for servers with certificates of public authorities."""
    return ssl.create_default_context()
