"""Pool of HTTP connections to another node: streams that share few TLS connections, if the node offers that."""

import asyncio
import math
from collections.abc import Callable
from typing import cast

from router.http.connection import Connection, ConnectionOwner
from router.http.dial import RawDial
from router.http.errors import CannotConnect, LinkStuck
from router.http.pool import ConnectionPool
from router.http.reply import Reply
from router.http.write_batch import WriteBatch
from router.peers.headers import TARGET
from router.peers.muxed import MuxedConnection
from router.peers.tls import NegotiatingProtocol
from router.settings import RouterSettings

STREAMS = 128
"""Streams of one connection, beyond which another is opened: each is served by only one of a node's processes."""

PIPE_STREAMS = 16
"""The same over a pipe: one pipe sends one piece after the other, several send in parallel."""

SMALL_SECONDS = 600.0
"""Seconds for which new connections send small packets after one lost large ones: as long as kernels remember a path's MTU."""

_TARGET = f"\r\n{TARGET}: ".encode()


class StreamConnection(Connection):
    """HTTP connection that is a stream of a shared connection, and serves no further request once that drains."""

    def __init__(self, owner: ConnectionOwner, shared: MuxedConnection) -> None:
        super().__init__(owner)
        self._shared = shared
        self._is_for_service = False
        """Whether the request is for a service, where it may not be done twice."""

    @property
    def draining(self) -> bool:
        """Whether the shared connection takes no more requests."""
        return self._shared.draining

    @property
    def is_reusable(self) -> bool:
        """Whether the next request may be sent. The shared connection is always read; unexpected bytes end the stream."""
        return not self._shared.draining and self.is_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, but run nothing inline: readers are woken while the shared connection still hands out more."""
        self._transport = cast("asyncio.Transport", transport)

    def begin(self, head: bytes, body: bytes, batch: WriteBatch | None = None) -> Reply:
        """Send a request with a small body, see `Connection.begin`."""
        self._is_for_service = head.find(_TARGET) >= 0
        return super().begin(head, body, batch)

    def connection_lost(self, error: Exception | None) -> None:
        """End the reply; the request on a refused stream was not read, nor, very likely, one behind bytes that are stuck."""
        reply = self._reply
        stuck = isinstance(error, LinkStuck) and not self._is_for_service
        unread = stuck or isinstance(error, ConnectionRefusedError)
        if unread and reply is not None and not reply.status:
            reply.fail(CannotConnect("the connection to the other node takes no more requests"))
            self._reply = None
        super().connection_lost(error)


class SharedDial:
    """Dialler of HTTP connections to one address: as streams of an open connection, or of a new one."""

    def __init__(self, dial: RawDial, owner: ConnectionOwner, streams: int) -> None:
        self._dial = dial
        self._owner = owner
        self._streams = streams
        self._shared: dict[MuxedConnection, None] = {}
        self._is_unshared = False
        """Whether the node did not offer sharing when it was last dialled."""
        self._dial_lock = asyncio.Lock()
        self._closed = False
        self.stuck_at = -math.inf
        """When a connection last ended because bytes did not arrive."""
        self._lost_large_at = -math.inf
        """When these were large packets for the last time."""

    def __len__(self) -> int:
        return len(self._shared)

    @property
    def heard_at(self) -> float:
        """When the last bytes came over an open connection; minus infinity without one."""
        return max((shared.heard_at for shared in self._shared), default=-math.inf)

    async def __call__(self, make: Callable[[], Connection]) -> Connection:
        """Return an open connection; raise `OSError`."""
        shared = self._find_connection()
        if shared is None and not self._is_unshared:
            # Concurrent requests wait for the same handshake.
            async with self._dial_lock:
                shared = self._find_connection()
                if shared is None and not self._is_unshared:
                    return await self._connect(make)
        return self._stream(shared) if shared is not None else await self._connect(make)

    def stream_if_open(self) -> Connection | None:
        """Return a stream of an open connection, if one has room."""
        shared = self._find_connection()
        return self._stream(shared) if shared is not None else None

    async def check(self) -> None:
        """Open no more streams on connections that do not answer soon."""
        await asyncio.gather(*(shared.check() for shared in self._shared if not shared.draining))

    async def cut_silent(self, within: float) -> None:
        """Cut the connections that leave a ping unanswered for so many seconds."""
        await asyncio.gather(*(shared.check(within, cut=True) for shared in self._shared))

    def drain_all(self) -> None:
        """Open no more streams on the present connections."""
        for shared in tuple(self._shared):
            shared.drain()

    def close(self) -> None:
        """Cut every connection, and each that is being made."""
        self._closed = True
        for shared in tuple(self._shared):
            shared.abort()

    def add_connection(self, connection: MuxedConnection) -> None:
        """Share a connection."""
        self._shared[connection] = None
        if self._closed:
            connection.abort()

    def remove_connection(self, connection: MuxedConnection) -> None:
        """Forget a connection that is gone."""
        self._shared.pop(connection, None)
        if connection.was_stuck:
            self.stuck_at = connection.loop.time()
            if connection.loses_large:
                self._lost_large_at = self.stuck_at

    def _find_connection(self) -> MuxedConnection | None:
        for shared in self._shared:
            if shared.is_open and not shared.draining and len(shared) < self._streams:
                return shared
        return None

    async def _connect(self, make: Callable[[], Connection]) -> Connection:
        arrival = NegotiatingProtocol(make, lambda: MuxedConnection(self))
        lost_since = asyncio.get_running_loop().time() - SMALL_SECONDS
        await self._dial(lambda: arrival, small_packets=self._lost_large_at >= lost_since)
        self._is_unshared = not isinstance(arrival.protocol, MuxedConnection)
        if isinstance(arrival.protocol, MuxedConnection):
            return self._stream(arrival.protocol)
        if isinstance(arrival.protocol, Connection):
            return arrival.protocol
        raise ConnectionResetError("the connection ended with its handshake")

    def _stream(self, shared: MuxedConnection) -> Connection:
        if not shared.is_open:
            raise ConnectionResetError("the connection ended with its handshake")
        connection = StreamConnection(self._owner, shared)
        shared.open_stream(connection)
        return connection


class SharedPool(ConnectionPool):
    """Pool of the connections to one address of a node, or to its pipes."""

    def __init__(self, dial: RawDial, settings: RouterSettings, *, streams: int = STREAMS) -> None:
        self._shared = SharedDial(dial, self, streams)
        super().__init__(self._shared, settings)

    @property
    def is_unused(self) -> bool:
        """Whether nothing is open."""
        return super().is_unused and not len(self._shared)

    @property
    def heard_at(self) -> float:
        """When the last bytes came over an open connection; minus infinity without one."""
        return self._shared.heard_at

    @property
    def stuck_at(self) -> float:
        """When a connection last ended because bytes did not arrive; minus infinity if none did."""
        return self._shared.stuck_at

    def take_idle(self) -> Connection | None:
        """Take a connection on which a request may be sent at once: opening a stream needs no wait."""
        connection = super().take_idle()
        if connection is None and self.has_room and (opened := self._shared.stream_if_open()):
            connection = opened
            self._connections[connection] = None
        return connection

    async def open_spare(self) -> None:
        """Have a connection for the next requests, proven by an answer just now; raise `HttpError`."""
        await self.check()
        await super().open_spare()

    async def check(self) -> None:
        """Send no new requests on connections that do not answer soon; requests in flight go on."""
        await self._shared.check()

    async def cut_silent(self, within: float) -> None:
        """Cut the connections that leave a ping unanswered for so many seconds, with their requests."""
        await self._shared.cut_silent(within)

    def close_idle(self) -> None:
        """Cut the idle connections, and send no new requests on the open ones, whose other end is gone."""
        super().close_idle()
        self._shared.drain_all()

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request, unless its shared connection drains."""
        if isinstance(connection, StreamConnection) and connection.draining:
            connection.abort()
        else:
            super().release(connection)

    def close(self) -> None:
        """Cut every connection."""
        super().close()
        self._shared.close()
