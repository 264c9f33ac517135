"""Shared connections of other nodes: each carries many requests, each a connection of its own to the server."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from registry.records import PeerId
from router.peers.alpn import Arrival
from router.peers.certificate import peer_of_certificate
from router.peers.muxed import MuxedConnection

log = logging.getLogger("modelvine.node")

Factory = Callable[[], asyncio.Protocol]
"""Makes the protocol of a new connection."""

SHARED_PER_PEER = 64
"""Shared connections of one node, all its processes together; one more is cut."""

_GOODBYE = 0.5  # seconds that askers may take to end the connections that they share


class SharedConnections:
    """The connections of other nodes that carry many requests: for the server each of these has a connection of its own."""

    def __init__(self) -> None:
        self._peers: dict[MuxedConnection, PeerId] = {}
        self._all_ended = asyncio.Event()

    def through(self, alone: Factory) -> Factory:
        """Return what makes the protocol of a connection, shared or not, of what makes that of one which is not."""
        return lambda: Arrival(alone, lambda: MuxedConnection(self, accept=alone))

    def begun(self, connection: MuxedConnection) -> None:
        """Take in a connection, unless its node has too many."""
        peer = peer_of_certificate(
            connection.get_extra_info("ssl_object").getpeercert(binary_form=True)
        )
        if list(self._peers.values()).count(peer) >= SHARED_PER_PEER:
            log.warning("%s already has %d links to this node", peer, SHARED_PER_PEER)
            connection.abort()
        self._peers[connection] = peer

    def ended(self, connection: MuxedConnection) -> None:
        """Forget a connection that is gone."""
        self._peers.pop(connection, None)
        if not self._peers:
            self._all_ended.set()

    def go_away(self) -> None:
        """Take no new requests, and have the askers end the connections after those that are under way."""
        for connection in tuple(self._peers):
            connection.go_away()

    async def close(self) -> None:
        """Wait a little for the askers to do so, then cut what is left."""
        self._all_ended.clear()
        if self._peers:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), _GOODBYE)
        for connection in tuple(self._peers):
            connection.abort()
