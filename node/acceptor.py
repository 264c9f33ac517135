"""Acceptor of connections that begin with a PROXY header, a TLS handshake, or both.

A connection takes its place before either, so a client that opens many and sends nothing loses its own first, as with plain
connections.

The PROXY protocol, versions 1 and 2, is the preamble in which a proxy names its client. A shared connection of another node
carries many requests, and the server sees each request as its own connection.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol, cast

from node.auth.forwarded import NO_PROXIES, TrustedProxies
from node.connection_limits import ConnectionLimits
from registry.records import PeerId
from registry.task_group import BackgroundTasks
from router.peers.muxed import MuxedConnection
from router.peers.tls import NegotiatingProtocol, peer_of_certificate

MAX_BYTES = 2_048
"""The longest preamble that is read: two addresses, and what a proxy adds about TLS and itself."""

_LEAST = len(b"PROXY UNKNOWN\r\n")  # no form of either version is shorter
_MAX_V1 = 107  # 2.1
_V1 = re.compile(
    rb"PROXY (?:UNKNOWN(?: [ -~]*)?|TCP4 ([0-9.]{7,15}) ([0-9.]{7,15}) (\d{1,5}) (\d{1,5})"
    rb"|TCP6 ([0-9A-Fa-f]*:[0-9A-Fa-f:.]{1,44}) ([0-9A-Fa-f]*:[0-9A-Fa-f:.]{1,44}) (\d{1,5}) (\d{1,5}))\r\n"
)
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD = len(_SIGNATURE) + 4
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED = 0x00
_KINDS = {0x11: (IPv4Address, 4), 0x21: (IPv6Address, 16)}
"""Address families over TCP, with the lengths of their addresses in bytes."""

Receive = Callable[[int], Awaitable[bytes]]
"""Returns at most so many bytes, none at the end of the stream."""


class NoPreamble(ValueError):
    """A connection does not begin with a valid preamble."""


async def read_client_address(receive: Receive) -> str:
    """Read a preamble, and no byte more; return the client's address, empty if the proxy speaks for itself.

    Raise `NoPreamble`.
    """
    begun = await _exactly(receive, _LEAST)
    if begun.startswith(_SIGNATURE):
        head = begun + await _exactly(receive, _HEAD - _LEAST)
        length = int.from_bytes(head[-2:])
        if length > MAX_BYTES - _HEAD:
            raise NoPreamble("the preamble is too long")
        return _parse_v2(head, await _exactly(receive, length))
    if not begun.startswith(b"PROXY "):
        raise NoPreamble("there is no preamble")
    line = begun
    while not line.endswith(b"\r\n"):
        if len(line) >= _MAX_V1:
            raise NoPreamble("the preamble is too long")
        # Its length is unknown, and the bytes behind it are not part of it.
        line += await _exactly(receive, 1)
    return _parse_v1(line)


def _parse_v1(line: bytes) -> str:
    match = _V1.fullmatch(line)
    if match is None:
        raise NoPreamble("the preamble does not have the form of version 1")
    fields = next((p for p in (match.group(1, 2, 3, 4), match.group(5, 6, 7, 8)) if p[0]), None)
    if fields is None:
        return ""
    try:
        caller, _ = (ip_address(address.decode()) for address in fields[:2])
    except ValueError as error:
        raise NoPreamble("the preamble holds no address") from error
    if max(map(int, fields[2:])) > 65_535:
        raise NoPreamble("the preamble holds no port")
    return str(caller)


def _parse_v2(head: bytes, rest: bytes) -> str:
    command, family = head[12], head[13]
    if command == _LOCAL or (command == _PROXY and family == _UNSPECIFIED):
        return ""
    kind, size = _KINDS.get(family, (None, 0))
    if command != _PROXY or kind is None or len(rest) < 2 * size + 4:
        raise NoPreamble("the preamble does not have the form of version 2")
    return str(kind(rest[:size]))


async def _exactly(receive: Receive, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = await receive(count - len(received))
        if not piece:
            raise NoPreamble("the connection ended within the preamble")
        received += piece
    return received


node_log = logging.getLogger("modelvine.node")

Factory = Callable[[], asyncio.Protocol]
"""Creates the protocol of a new connection."""

SHARED_PER_PEER = 64
"""Most shared connections of one node, all its processes together; further ones are cut."""

_GOODBYE = 0.5  # seconds that other nodes may take to end their shared connections


class SharedConnections:
    """The shared connections of other nodes at one listener."""

    def __init__(self) -> None:
        self._peers: dict[MuxedConnection, PeerId] = {}
        self._all_ended = asyncio.Event()

    def protocol_factory(self, alone: Factory) -> Factory:
        """Return a factory for the protocols of all connections; `alone` creates that of a plain one and of each stream."""
        return lambda: NegotiatingProtocol(alone, lambda: MuxedConnection(self, accept=alone))

    def add_connection(self, connection: MuxedConnection) -> None:
        """Add a connection, and cut it if its node has too many."""
        peer = peer_of_certificate(
            connection.get_extra_info("ssl_object").getpeercert(binary_form=True)
        )
        others = [other for other, of in self._peers.items() if of == peer]
        if others:
            connection.mux.wasted_streams = others[0].mux.wasted_streams
        if len(others) >= SHARED_PER_PEER:
            node_log.warning("%s already has %d links to this node", peer, SHARED_PER_PEER)
            connection.abort()
        self._peers[connection] = peer

    def remove_connection(self, connection: MuxedConnection) -> None:
        """Remove a connection that has ended."""
        self._peers.pop(connection, None)
        if not self._peers:
            self._all_ended.set()

    def go_away(self) -> None:
        """Take no new requests, and have the other nodes end the connections after those in flight."""
        for connection in tuple(self._peers):
            connection.go_away()

    async def close(self) -> None:
        """Wait up to `_GOODBYE` seconds for the other nodes to end the connections, then cut the rest."""
        self._all_ended.clear()
        if self._peers:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), _GOODBYE)
        for connection in tuple(self._peers):
            connection.abort()


log = logging.getLogger("modelvine.http")

HANDSHAKE_SECONDS = 10.0
"""Seconds that a TLS handshake may take."""

GOODBYE_SECONDS = 1.0
"""Seconds for which a TLS connection that is closed waits for the caller's goodbye."""

ACCEPT_PAUSE = 0.5
"""Seconds without accepting connections after the system had no room for another one."""


class AcceptedProtocol(Protocol):
    """Protocol of a connection that was accepted."""

    address: str
    """The caller's IP address, if a proxy reported it."""

    owner: int | None
    """Uid of the caller's process; `None` for a connection through a proxy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the protocol."""


@dataclass(frozen=True, slots=True)
class Preface:
    """What connections begin with: a PROXY header from `proxies`, within `seconds`, then a handshake if `tls` is set."""

    tls: ssl.SSLContext | None = None
    proxies: TrustedProxies = NO_PROXIES
    seconds: float = HANDSHAKE_SECONDS

    def __bool__(self) -> bool:
        return self.tls is not None or bool(self.proxies)


class PendingConnection(asyncio.Protocol):
    """Protocol of a connection, and its entry in the limits, until it has begun; then the protocol from `make` takes over."""

    def __init__(
        self,
        address: str,
        make: Callable[[], AcceptedProtocol],
        limits: ConnectionLimits,
        seconds: float,
    ) -> None:
        self.address = address
        self.reported_address: str | None = None
        """The address that a proxy reports, the proxy's own if it speaks for itself; `None` without a proxy."""
        self._make = make
        self._limits = limits
        self.task: asyncio.Task[None] | None = None
        """The task that reads the preface."""
        self.closes_at = asyncio.get_running_loop().time() + seconds
        """Time by which the connection has to begin; limits evict the earliest first."""

    def enter(self) -> bool:
        """Take a place in the limits; return whether there is one."""
        return self._limits.enter(self, self.address)

    def leave(self) -> None:
        """Give the place back."""
        self._limits.leave(self, self.address)

    def evict(self) -> None:
        """Close the connection."""
        if self.task is not None:
            self.task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand over to the protocol from `make`, which takes a place of its own."""
        self.task = None
        self.leave()
        protocol = self._make()
        if self.reported_address is not None:
            protocol.address, protocol.owner = self.reported_address, None
        cast("asyncio.Transport", transport).set_protocol(cast("asyncio.Protocol", protocol))
        protocol.connection_made(transport)


class Acceptor:
    """Acceptor of one listener: hands over the connections that begin correctly."""

    def __init__(
        self,
        listener: socket.socket,
        preface: Preface,
        make: Callable[[], AcceptedProtocol],
        limits: ConnectionLimits,
    ) -> None:
        """`make` creates the protocol of a connection that has begun."""
        listener.setblocking(False)  # noqa: FBT003 (the standard library's)
        self._listener = listener
        self._preface = preface
        self._make = make
        self._limits = limits
        self._tasks = BackgroundTasks()
        self._accepting = self._tasks.spawn(self._accept())
        self._accepting.add_done_callback(lambda _: listener.close())

    def close(self) -> None:
        """Accept no more connections."""
        self._accepting.cancel()

    async def cancel_pending(self) -> None:
        """End the connections that have not begun."""
        await self._tasks.cancel_all()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, name = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("cannot accept connections now: %s", error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            pending = PendingConnection(
                str(name[0]), self._make, self._limits, self._preface.seconds
            )
            if pending.enter():
                pending.task = self._tasks.spawn(self._begin(pending, connection))
            else:
                connection.close()

    async def _begin(self, pending: PendingConnection, connection: socket.socket) -> None:
        handed_over = False
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._read_proxy_header(pending, connection)
            handed_over = True
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: pending,
                connection,
                ssl=self._preface.tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._preface.tls else None,
                ssl_shutdown_timeout=GOODBYE_SECONDS if self._preface.tls else None,
            )
        except (OSError, NoPreamble) as error:
            # Caused by scanners, and by clients that speak plain HTTP or do not trust the certificate.
            log.debug("a connection failed to start: %s", type(error).__name__)
        finally:
            if not handed_over:
                connection.close()
            if pending.task is not None:
                pending.leave()

    async def _read_proxy_header(
        self, pending: PendingConnection, connection: socket.socket
    ) -> None:
        """Read the caller's address from the PROXY header if a trusted proxy opened the connection.

        Raise `NoPreamble` or `OSError` (`TimeoutError` included) if the header is invalid, or does not come.
        """
        if pending.address not in self._preface.proxies:
            return
        receive = partial(asyncio.get_running_loop().sock_recv, connection)
        async with asyncio.timeout(self._preface.seconds):
            pending.reported_address = await read_client_address(receive) or pending.address
