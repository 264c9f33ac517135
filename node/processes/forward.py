"""Forwarding from a helper to the first process: of requests that only the first process can answer, and of mesh pipes.

The first process decides on permissions. Only the helper can see whether the caller is on this machine; it says so in a header.
The first process trusts that header only from its helpers, whose connections no other program can make.

To connect, a helper makes a socket pair and passes one end to the first process by descriptor. Nothing listens, so no other
program can connect, and nothing is left in the file system, however a process ends.

The first process opens the mesh pipes of a helper, and carries their bytes. TLS runs between the helper and the peer, as it does
over a process's own pipe. The helper sends a line with the peer's id; one byte in return says that the pipe is open, and all
further bytes are the peer's.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from aiohttp import web

from node.auth.access import Access
from node.config.settings import Settings
from node.config.web import WebSettings
from node.faces import UserRoute
from node.faces.peer_access import asking_peer
from node.faces.request_ids import ID
from node.faces.request_reader import StreamedResponse, read_raw
from node.faces.response_writer import cut
from node.faces.v1.receipts import OF_ASKER, PATH
from node.faces.v1.topology import CONNECTIONS
from node.heads import fixed_headers
from node.lane.request import HttpRequest
from registry.errors import PeerUnreachable, RegistryError
from registry.mesh import Pipe
from registry.records import PeerId
from router.errors import WorkerTimeout, WorkerUnreachable
from router.http.connection import Connection
from router.http.errors import HttpError
from router.http.heads import request_head
from router.http.pool import ConnectionPool, Dial
from router.http.reply import Reply
from router.peers.headers import CALLER
from router.peers.pipes import Peers, relay_bytes

_AT_ONCE = 64  # descriptors received in one pass; the event loop calls again for more


class ConnectionUse(Enum):
    """Purpose of a connection, sent with its descriptor."""

    HTTP = b"h"
    """For forwarded requests."""
    PIPE = b"p"
    """For one pipe to a peer: a line with its id, then its bytes."""


class DescriptorSender:
    """A helper's end, which opens connections."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(0)

    def open(self, door: ConnectionUse) -> socket.socket:
        """Return our end of a new connection; raise `OSError` if the first process takes no more."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._end, [door.value], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        ours.settimeout(0)
        return ours

    def dial(self) -> Dial:
        """Return the function that connects for forwarded requests."""

        async def dial(make: Callable[[], Connection]) -> Connection:
            _, connection = await asyncio.get_running_loop().create_connection(
                make, sock=self.open(ConnectionUse.HTTP)
            )
            return connection

        return dial


class DescriptorReceiver:
    """The first process's end, which takes connections until it is closed."""

    def __init__(
        self, end: socket.socket, take: Callable[[ConnectionUse, socket.socket], None]
    ) -> None:
        self._end = end
        self._take = take
        end.settimeout(0)
        asyncio.get_running_loop().add_reader(end.fileno(), self._receive)

    def close(self) -> None:
        """Take no more connections. Idempotent."""
        if self._end.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._end.close()

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                data, descriptors, _flags, _address = socket.recv_fds(self._end, 1, 1)
                if not data:
                    # The helper is gone; its channel closes as well.
                    asyncio.get_running_loop().remove_reader(self._end.fileno())
                    return
                for descriptor in descriptors:
                    self._pass_on(data, socket.socket(fileno=descriptor))

    def _pass_on(self, data: bytes, connection: socket.socket) -> None:
        connection.settimeout(0)
        try:
            door = ConnectionUse(data)
        except ValueError:
            connection.close()
        else:
            self._take(door, connection)


_CHUNK_BYTES = 64 * 1024
_LONGEST_ID = 256
_OPEN = b"+"


class BorrowedPipe:
    """Pipe over the first process's mesh."""

    def __init__(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._peer = peer
        self._reader = reader
        self._writer = writer

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self._peer

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` if the pipe was cut."""
        try:
            return await self._reader.read(_CHUNK_BYTES)
        except OSError as error:
            raise PeerUnreachable("the pipe was cut") from error

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`; raise `PeerUnreachable` if the pipe was cut."""
        try:
            self._writer.write(chunk)
            await self._writer.drain()
        except OSError as error:
            raise PeerUnreachable("the pipe was cut") from error

    async def finish(self) -> None:
        """Half-close the pipe: nothing more will be written."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def reset(self) -> None:
        """Cut the pipe at once."""
        self._writer.transport.abort()


async def borrow_pipe(doors: DescriptorSender, peer: PeerId) -> Pipe:
    """Open a pipe to a peer through the first process; raise `PeerUnreachable`."""
    try:
        end = doors.open(ConnectionUse.PIPE)
        reader, writer = await asyncio.open_connection(sock=end, limit=_CHUNK_BYTES)
        writer.write(f"{peer}\n".encode())
        opened = await reader.read(1)
    except OSError as error:
        raise PeerUnreachable("the first process of this node opens no pipe") from error
    if opened != _OPEN:
        writer.transport.abort()
        raise PeerUnreachable(f"no pipe to {peer}")
    return BorrowedPipe(peer, reader, writer)


async def lend_pipe(connection: socket.socket, peers: Peers) -> None:
    """Open the pipe that a helper requests over a connection, and carry its bytes until either side ends."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_CHUNK_BYTES)
    try:
        line = await reader.readuntil(b"\n")
        pipe = await peers.open_pipe(PeerId(line[:_LONGEST_ID].decode(errors="replace").strip()))
    except (OSError, EOFError, asyncio.LimitOverrunError, RegistryError):
        writer.transport.abort()
        return
    writer.write(_OPEN)
    await relay_bytes(pipe, reader, writer, pipe.reset)


_HERE, _NEAR, _ELSEWHERE = "here", "near", "elsewhere"
# Values of `CALLER`: a caller that may change the node without the token, one that may ask without a key, or neither.
# RFC 9110 7.6.1: headers of one connection alone. The length is computed anew.
_OF_A_CONNECTION = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_NOT_PASSED = _OF_A_CONNECTION | {"content-length", "expect", CALLER, "x-request-id"}
# Headers that each process writes to all its answers itself.
_NOT_SHOWN = _OF_A_CONNECTION | {
    *map(str.lower, fixed_headers(WebSettings(), secured=True, peers=False).fields),
    "access-control-allow-origin",
    "access-control-expose-headers",
    "content-length",
    "date",
    "vary",
    "x-accel-buffering",
}


class ForwardedAccess(Access):
    """Access control of the requests that helpers forward."""

    def is_own_user(self, request: web.Request) -> bool:
        """Whether the caller is a process of the node's own user."""
        return request.headers.get(CALLER) == _HERE

    def is_local_person(self, request: HttpRequest) -> bool:
        """Whether the caller is a process of a person on this machine."""
        return request.headers.get(CALLER) in (_HERE, _NEAR)


def routes(first: ConnectionPool, access: Access, settings: Settings) -> list[web.RouteDef]:
    """Return the routes that forward every request without a route of its own."""
    limits = settings.router

    async def pass_on(http: web.Request) -> web.StreamResponse:
        body = await read_raw(
            http,
            limit=limits.max_body_bytes,
            idle=limits.idle_timeout,
            rate=settings.web.min_body_rate,
        )
        caller = (
            _HERE
            if access.is_own_user(http)
            else _NEAR
            if access.is_local_person(http)
            else _ELSEWHERE
        )
        try:
            async with asyncio.timeout(limits.total_timeout):
                reply = await _forward_request(first, http, body, caller)
        except TimeoutError as error:
            raise WorkerTimeout("answer of the first process", limits.total_timeout) from error
        # Some streams are meant to last, such as that of the console.
        try:
            return await _send_reply(http, reply, patience=limits.idle_timeout)
        finally:
            reply.close()

    asks = UserRoute(elsewhere=True)
    return [web.route(method, "/{tail:.*}", pass_on, asks=asks) for method in _METHODS]


def link_routes(first: ConnectionPool, settings: Settings) -> list[web.RouteDef]:
    """Return the routes for other nodes that only the first process can answer: a peer's own receipts, and connections."""

    async def yours(http: web.Request) -> web.StreamResponse:
        return await asked(http, f"{PATH}/{asking_peer(http)}")

    async def connections(http: web.Request) -> web.StreamResponse:
        return await asked(http, CONNECTIONS)

    async def asked(http: web.Request, path: str) -> web.StreamResponse:
        reply = await _forward_request(first, http, b"", _HERE, path=path)
        try:
            return await _send_reply(http, reply, patience=settings.router.idle_timeout)
        finally:
            reply.close()

    return [web.get(OF_ASKER, yours), web.get(CONNECTIONS, connections)]


async def _forward_request(
    first: ConnectionPool, http: web.Request, body: bytes, caller: str, path: str = ""
) -> Reply:
    # The first process reads HTTP/1.1, where a host is required; a request without one means this node.
    headers = {"host": "localhost"}
    for name in {name.lower() for name in http.headers} - _NOT_PASSED:
        headers[name] = ", ".join(http.headers.getall(name)).encode(errors="replace").decode()
    headers["x-request-id"] = http[ID]
    headers[CALLER] = caller
    if http.secure:
        headers["x-forwarded-proto"] = "https"
    # The answer to HEAD has a length and no body; only the connection to the caller can know that.
    method = "GET" if http.method == "HEAD" else http.method
    start = f"{method} {path or http.raw_path} HTTP/1.1\r\n".encode()
    try:
        return await first.ask(request_head(start, headers, len(body)), body)
    except HttpError as error:
        raise WorkerUnreachable("the first process of this node does not answer") from error


async def _send_reply(http: web.Request, reply: Reply, *, patience: float) -> web.StreamResponse:
    headers = {name: value for name, value in reply.headers.items() if name not in _NOT_SHOWN}
    if http.method == "HEAD":
        return web.Response(status=reply.status, headers=headers, body=await _read_all(reply))
    response = StreamedResponse(status=reply.status, headers=headers)
    response.content_length = reply.length
    await response.prepare(http)
    try:
        while piece := await reply.read_some():
            async with asyncio.timeout(patience):
                await response.write(piece)
    except (HttpError, TimeoutError):
        # The answer broke off, or the caller does not read it. Cut off, it does not look complete.
        cut(http)
    return response


async def _read_all(reply: Reply) -> bytes:
    pieces: list[bytes] = []
    while piece := await reply.read_some():
        pieces.append(piece)
    return b"".join(pieces)
