"""Connection manager: dials the peers that the dialler chooses, checks strangers, and records each peer's origin.

A stranger must subscribe to our topic. If it does not, it is disconnected, and not dialled again for a while if this node
dialled it.
"""

import logging
from collections.abc import Callable, Collection
from typing import Protocol

import trio

from registry.mesh import Origin, peer_in
from registry.mesh.discovered import DiscoveredPeers
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.dial import (
    NAME_TIMEOUTS,
    Dialer,
    Dials,
    DialTarget,
    NobodyAnswered,
    host_of,
)
from registry.mesh.libp2p.guards import CONNECTIONS_REFUSED
from registry.mesh.libp2p.watch import Watch, find_excess
from registry.records import PeerId
from registry.settings import MeshSettings

_log = logging.getLogger("modelvine.mesh")

STRANGE = frozenset({Origin.MDNS, Origin.RENDEZVOUS})
"""Sources for whose addresses no known node vouches."""

PROOF_SECONDS = 10.0
"""Seconds after a dial within which a stranger must have subscribed to our topic."""

CALLER_SECONDS = 30.0
"""Seconds that an inbound peer may stay without subscribing: enough for anything else that it wants to ask."""

_POLL = 0.25
_RECONSIDER_SECONDS = 15.0


class ManagedNode(Protocol):
    """A node whose connections are managed."""

    def topic_peers(self) -> set[PeerId]:
        """Return the connected peers that speak our topic."""

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to a peer."""


class RegisteredNode(ManagedNode, Protocol):
    """A node that registers at rendezvous points."""

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to register."""

    async def dial_point(self, address: str) -> PeerId:
        """Connect to a rendezvous point; raise `PeerUnreachable`."""

    def take_discovered(self, addresses: tuple[str, ...]) -> None:
        """Take in the addresses of all nodes that the points have returned."""


class Introducer:
    """Turns strangers into peers, in the trio thread. `changed` is called when the addresses to dial may have changed."""

    def __init__(
        self,
        strangers: DiscoveredPeers,
        node: ManagedNode,
        watch: Watch,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._strangers = strangers
        self._node = node
        self._watch = watch
        self._changed = changed

    def claim(self, origin: Origin, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that a source claims."""
        self._strangers.claim(origin, addresses)
        self._changed()

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses that may be dialled now."""
        return self._strangers.addresses(trio.current_time())

    def origin(self, peer: PeerId) -> Origin | None:
        """Return the source that claims a peer, if any."""
        return self._strangers.origin(peer)

    def note_failure(self, peer: PeerId) -> None:
        """Note that a stranger did not answer."""
        self._strangers.refuse(peer, trio.current_time())
        self._changed()

    async def require_subscription(self, peer: PeerId) -> None:
        """Wait until a dialled stranger subscribes to our topic; disconnect it when it does not in time."""
        with trio.move_on_after(PROOF_SECONDS) as patience:
            # Polled: the library does not report subscriptions.
            while peer not in self._node.topic_peers():  # noqa: ASYNC110
                await trio.sleep(_POLL)
            self._strangers.accept(peer)
        if patience.cancelled_caught:
            self.note_failure(peer)
            await self._node.disconnect(peer)

    async def reconsider_forever(self) -> None:
        """Let refused peers be dialled again after their pause, and close useless connections, until cancelled."""
        while True:
            await trio.sleep(_RECONSIDER_SECONDS)
            self._changed()
            await self._close_unsubscribed()

    async def _close_unsubscribed(self) -> None:
        """Close inbound connections whose peer never subscribed to our topic: kept, they would count as peers."""
        now = trio.current_time()
        for caller in self._watch.callers():
            if now - caller.came >= CALLER_SECONDS and caller.peer not in self._node.topic_peers():
                await self._node.disconnect(caller.peer)


PART_SECONDS = 3.0
"""Seconds that the orderly close of an evicted connection may take."""


class Eviction:
    """Eviction of inbound peers beyond the configured limits, in the trio thread. Each counts as refused."""

    def __init__(
        self,
        settings: MeshSettings,
        node: ManagedNode,
        watch: Watch,
        delegate: Delegate,
    ) -> None:
        self._settings = settings
        self._node = node
        self._watch = watch
        self._delegate = delegate
        self._leaving: set[PeerId] = set()

    async def evict_forever(self) -> None:
        """Disconnect excess peers until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for peer in self._in_excess():
                    self._leaving.add(peer)
                    nursery.start_soon(self._part, peer)
                await self._watch.changed.wait()

    def _in_excess(self) -> list[PeerId]:
        callers = self._watch.callers()
        chosen = len(self._watch.peers()) - len(callers)
        excess = find_excess(
            [caller for caller in callers if caller.peer not in self._leaving],
            trio.current_time(),
            capacity=max(self._settings.max_connections - chosen, 0),
            per_address=self._settings.max_connections_per_address,
            knows=self._delegate.knows,
        )
        return list(excess)

    async def _part(self, peer: PeerId) -> None:
        self._delegate.note_refusal(CONNECTIONS_REFUSED)
        try:
            with trio.move_on_after(PART_SECONDS):
                await self._node.disconnect(peer)
        finally:
            self._leaving.discard(peer)


DIAL_TICK = 0.25
"""Seconds between checks for peers to dial."""

Origins = dict[PeerId, Origin]


class ConnectionManager:
    """Dials peers of this node's own accord, in the trio thread, and reports why bootstrap peers did not answer."""

    def __init__(
        self,
        strangers: DiscoveredPeers,
        settings: MeshSettings,
        node: ManagedNode,
        watch: Watch,
        *,
        origins: Origins,
        dials: Dials,
        delegate: Delegate,
    ) -> None:
        self._watch = watch
        self._origins = origins
        self._dials = dials
        self._dial_timeout = settings.dial_timeout
        self._delegate = delegate
        self._dialer = Dialer(strangers.own, settings.degree, settings.redial)
        self._bootstrap: tuple[str, ...] = ()
        self._kept_addresses: tuple[str, ...] = ()
        self._introducer = Introducer(strangers, node, watch, changed=self._update_targets)

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses."""
        self._bootstrap = addresses
        self._update_targets()

    def set_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that come from records."""
        self._kept_addresses = addresses
        self._update_targets()

    def claim(self, origin: Origin, addresses: tuple[str, ...]) -> None:
        """Replace the strangers' addresses that one source claims to be of our mesh."""
        self._introducer.claim(origin, addresses)

    async def run(self) -> None:
        """Dial the peers that are due, until cancelled."""
        dialling: set[PeerId] = set()
        connected: set[PeerId] = set()
        relays: Collection[PeerId] = ()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._introducer.reconsider_forever)
            while True:
                before, connected, now = connected, self._watch.peers(), trio.current_time()
                for peer in before - connected:
                    self._dialer.note_lost(peer, now, relay=peer in relays)
                    self._origins.pop(peer, None)
                for peer in connected - before:
                    self._dialer.note_connected(peer, self._watch.host_of(peer))
                for target in self._dialer.due_targets(connected | dialling, now):
                    dialling.add(target.peer)
                    self._nursery.start_soon(self._dial_target, target, dialling)
                # Read before anything changes: a relay that is gone is no longer listed.
                relays = self._dials.relays
                with trio.move_on_after(DIAL_TICK):
                    await self._watch.changed.wait()

    def _update_targets(self) -> None:
        others = (*self._kept_addresses, *self._introducer.addresses())
        self._dialer.set_targets(self._bootstrap, others)

    async def _dial_target(self, target: DialTarget, dialling: set[PeerId]) -> None:
        origin = self._origin_of(target)
        # Set before the dial: its connection is reported before the dial returns.
        self._origins[target.peer] = origin
        try:
            address = await self._dials.dial_in_turn(
                target.addresses, self._dial_timeout, to_resolve=NAME_TIMEOUTS * self._dial_timeout
            )
            self._dialer.note_connected(target.peer, host_of(address))
            if origin in STRANGE:
                self._nursery.start_soon(self._introducer.require_subscription, target.peer)
        except NobodyAnswered as error:
            _log.debug("could not dial %s: %s", target.peer, error.reasons)
            if target.bootstrap:
                self._delegate.note_failures(error.reasons)
            self._dialer.note_failure(target.peer, trio.current_time())
            if origin in STRANGE:
                self._introducer.note_failure(target.peer)
        finally:
            dialling.discard(target.peer)

    def _origin_of(self, target: DialTarget) -> Origin:
        if target.bootstrap:
            return Origin.BOOTSTRAP
        vouched = any(peer_in(address) == target.peer for address in self._kept_addresses)
        return (not vouched and self._introducer.origin(target.peer)) or Origin.RECORD
