"""Dialler of TCP connections: each address is checked when it is connected to, whatever its name resolved to before.

Also what a node sets and asks at the sockets of its connections.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol, TypeVar

from router.http.errors import NotAdmitted

SMALL_SEGMENT = 1024
"""Bytes of data in a small packet: as many as RFC 4821 (7.2) begins with where larger ones may not pass."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 9}
"""Options by which the kernel probes a connection that is silent: seconds until the first probe, and between two; probes.

A model may be silent for minutes before it answers, and firewalls and NAT forget connections that are silent for longer than some
minutes, many without a word. These values are those of Go.
"""

_Made = TypeVar("_Made", bound=asyncio.BaseProtocol)


class RawDial(Protocol):
    """Function that opens a connection of any protocol."""

    async def __call__(self, make: Callable[[], _Made], /, *, small_packets: bool = False) -> _Made:
        """Return the protocol; raise `OSError`. With `small_packets`, neither side of a TCP connection sends larger ones."""


Objection = Callable[[str, int], str]
"""Function that returns why an IP address and port may not be connected to, empty if they may."""


def tcp_dialer(
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
    *,
    name: str | None = None,
    objection: Objection = lambda address, port: "",  # noqa: ARG005
) -> RawDial:
    """Return a function that connects over TCP, with a context over TLS, whose server name is `name` or else the host.

    The host's addresses are tried in turn, but none to which there is an objection: a name may resolve to anything by now.
    """
    server_name = (host if name is None else name) if context else None

    async def dial(make: Callable[[], _Made], /, *, small_packets: bool = False) -> _Made:
        loop = asyncio.get_running_loop()
        failure = OSError("no address")
        for address in await addresses_of(host, port):
            if reason := objection(address, port):
                failure = NotAdmitted(reason)
                continue
            try:
                if small_packets:
                    wire = await _connect_small(address, port)
                    transport, connection = await loop.create_connection(
                        make, sock=wire, ssl=context, server_hostname=server_name
                    )
                else:
                    transport, connection = await loop.create_connection(
                        make, address, port, ssl=context, server_hostname=server_name
                    )
            except OSError as error:
                failure = error
            else:
                wire = transport.get_extra_info("socket")
                # Its protocol may have closed it at once.
                if wire is not None and wire.fileno() >= 0:
                    keep_alive(wire)
                return connection
        raise failure

    return dial


def keep_alive(wire: socket.socket) -> None:
    """Have the kernel probe a connection, or those that a listener accepts, while it is silent."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # macOS lacks the first
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def acknowledge(transport: asyncio.BaseTransport) -> None:
    """Have the kernel acknowledge at once what has come of a message, and not after up to 40 ms.

    A sender with Nagle's algorithm (RFC 896) that writes a message in parts sends the next part only then.
    """
    wire = transport.get_extra_info("socket")
    if wire is not None and hasattr(socket, "TCP_QUICKACK"):  # macOS lacks it
        with suppress(OSError):  # it is no TCP, or has just ended
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def poll_unread(transport: asyncio.Transport) -> select.poll:
    """Return a poll object that tells whether a transport's socket has unread bytes, or an end."""
    # TLS sends records of its own, such as session tickets: there only the end counts.
    secured = transport.get_extra_info("sslcontext") is not None
    unread = select.poll()
    wire = transport.get_extra_info("socket")
    unread.register(wire.fileno(), select.POLLRDHUP | (not secured and select.POLLIN))
    return unread


async def _connect_small(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets `TCP_NODELAY` only where the protocol is named.
    wire = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        wire.settimeout(0)
        with suppress(OSError):  # macOS refuses it
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)
        await asyncio.get_running_loop().sock_connect(wire, (address, port))
    except BaseException:
        wire.close()
        raise
    return wire


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the IP addresses that a host resolves to now; raise `OSError`."""
    if (address := _literal(host)) is not None:
        return [address]
    resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(address[0]) for *_, address in resolved)]


@lru_cache(maxsize=4096)
def _literal(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None
