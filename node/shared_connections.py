"""Shared connections of other nodes: each carries many requests, and the server sees each request as its own connection."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from registry.records import PeerId
from router.peers.alpn import NegotiatingProtocol
from router.peers.certificate import peer_of_certificate
from router.peers.muxed import MuxedConnection

log = logging.getLogger("modelvine.node")

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

    def begun(self, connection: MuxedConnection) -> None:
        """Add a connection, and cut it if its node has too many."""
        peer = peer_of_certificate(
            connection.get_extra_info("ssl_object").getpeercert(binary_form=True)
        )
        others = [other for other, of in self._peers.items() if of == peer]
        if others:
            connection.mux.wasted_streams = others[0].mux.wasted_streams
        if len(others) >= SHARED_PER_PEER:
            log.warning("%s already has %d links to this node", peer, SHARED_PER_PEER)
            connection.abort()
        self._peers[connection] = peer

    def ended(self, connection: MuxedConnection) -> None:
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
