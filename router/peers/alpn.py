"""Negotiation of what a TLS connection between two nodes carries: many streams if both offer that by ALPN, else HTTP.

TLS protects the choice (RFC 7301), and a node of the previous version does not offer it.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from router.peers.muxed import Factory, MuxedConnection
from router.peers.muxed_stream import StreamProtocol

SHARED = "modelvine-yamux/1"
"""ALPN protocol that a node offers if it shares connections among requests."""


def offer_sharing(context: ssl.SSLContext) -> None:
    """Let connections of this context be shared, if the other side offers it too."""
    context.set_alpn_protocols([SHARED, "http/1.1"])


class NegotiatingProtocol(asyncio.Protocol):
    """Protocol of a connection until its handshake has said what it carries; then `protocol` takes its place."""

    def __init__(self, alone: Factory, shared: Callable[[], MuxedConnection]) -> None:
        self._alone, self._shared = alone, shared
        self.protocol: StreamProtocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Choose the protocol that the handshake has selected, and hand the connection over to it."""
        secured = transport.get_extra_info("ssl_object")
        shared = secured is not None and secured.selected_alpn_protocol() == SHARED
        self.protocol = self._shared() if shared else self._alone()
        taking_over = cast("asyncio.BaseProtocol", self.protocol)
        cast("asyncio.Transport", transport).set_protocol(taking_over)
        self.protocol.connection_made(transport)
