"""TCP streams of libp2p 0.8.1 that know the address of their other end over IPv6 too.

The library expects a pair from `getpeername`, and IPv6 sockets have four fields. Without an address, a connection counts as one
through a relay, and under no address where connections are limited.
"""

from typing import Any

import libp2p.transport.tcp.tcp as tcp_module
from libp2p.io.trio import TrioTCPStream


class TcpStream(TrioTCPStream):
    """TCP stream whose remote address is a pair of host and port in both families, also after it is closed."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the host and port of the other end; `None` if it was gone before it was ever asked for."""
        if self._cached_remote_address is None:
            try:
                host, port, *_ = self.stream.socket.getpeername()
            except OSError:
                return None
            # A link-local address has a zone, which is this machine's and no part of the address.
            self._cached_remote_address = str(host).partition("%")[0], int(port)
        return self._cached_remote_address


def use_tcp_stream() -> None:
    """Put our class in the place of the library's; call it before any host is made."""
    patched: Any = tcp_module
    if not issubclass(patched.TrioTCPStream, TrioTCPStream):
        raise TypeError(
            "libp2p has changed: its TCP transport has another stream; review TcpStream"
        )
    patched.TrioTCPStream = TcpStream
