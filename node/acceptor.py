"""Acceptor of connections that begin with a PROXY header, a TLS handshake, or both.

A connection takes its place before either, so a client that opens many and sends nothing loses its own first, as with plain
connections.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from node.auth.forwarded import NO_PROXIES, TrustedProxies
from node.connection_limits import ConnectionLimits
from node.proxy_protocol import NoPreamble, read_client_address
from registry.task_group import BackgroundTasks

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
        self.told: str | None = None
        """The address that a proxy reports, the proxy's own if it speaks for itself; `None` without a proxy."""
        self._make = make
        self._limits = limits
        self.task: asyncio.Task[None] | None = None
        """The task that reads the preface."""
        self.ends = asyncio.get_running_loop().time() + seconds
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
        if self.told is not None:
            protocol.address, protocol.owner = self.told, None
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
        heard = False
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._read_proxy_header(pending, connection)
            heard = True
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
            if not heard:
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
            pending.told = await read_client_address(receive) or pending.address
