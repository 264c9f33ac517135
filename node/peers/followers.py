"""Followers of node changes: the log, events for people, links to nodes, their reported loads, and grants that they revoke."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from node.auth.key_ring import KeyRing
from registry.catalog import Catalog
from registry.clock import Clock
from registry.errors import LimitReached
from registry.intake.rate import RateLimit
from registry.members.liveness import REASONS, MemberHealth, Presence
from registry.records import PeerId
from registry.service import Registry
from router.dispatch import Router
from router.peers.links import Links

MAX_EVENTS = 500
"""Events that are remembered."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Change of one node's presence; `at` is Unix time, `was` the presence before, empty where it was not known."""

    at: float
    node: PeerId
    name: str
    was: str
    now: str
    why: str


class WatchedPeers(Protocol):
    """The part of the registry that events need."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node, as seen from here."""

    def health_of(self, node: PeerId) -> MemberHealth | None:
        """Return what is known of a node's liveness, `None` for this node itself."""


class NodeEvents:
    """The latest changes of nodes' presence."""

    def __init__(self, peers: WatchedPeers, wall: Clock, *, limit: int = MAX_EVENTS) -> None:
        """`wall` returns Unix time."""
        self._peers = peers
        self._wall = wall
        self._presences: dict[PeerId, Presence] = {}
        self.events: deque[NodeEvent] = deque(maxlen=limit)
        """The newest last."""
        self.count = 0
        """How many there were since the start."""
        self.changes = 0
        """Number of calls of `note_changed`; a display compares it to see whether anything is new."""

    def note_changed(self, nodes: Iterable[PeerId]) -> None:
        """Note that the records or presences of nodes changed."""
        self.changes += 1
        for node in nodes:
            signed = self._peers.catalog.held.get(node)
            if signed is None:
                # The node is forgotten; that it was lost or left is recorded here already.
                self._presences.pop(node, None)
                continue
            presence, was = self._peers.presence(node), self._presences.get(node)
            if presence is was:
                continue
            self._presences[node] = presence
            health = self._peers.health_of(node)
            reason = REASONS[health.why] if health else ""
            self.events.append(
                NodeEvent(
                    self._wall(),
                    node,
                    signed.record.name,
                    was.value if was else "",
                    presence,
                    reason,
                )
            )
            self.count += 1


log = logging.getLogger("modelvine.node")

_LINES_AT_ONCE = 20
_LINES_PER_SECOND = 1.0
_REVOKED_PERIOD = 0.5
_AWAY = frozenset({Presence.LOST, Presence.UNREACHABLE})
_DOUBTED = _AWAY | {Presence.SUSPECT}
_GONE = frozenset({Presence.LOST, Presence.LEFT})


def log_changes(peers: Registry, now: Clock) -> Callable[[Iterable[PeerId]], None]:
    """Return a callback for changed nodes that logs joins, losses and departures; lines beyond a rate are only counted."""
    met: set[PeerId] = set()
    pace, kept_back = RateLimit(rate=_LINES_PER_SECOND, burst=_LINES_AT_ONCE), 0

    def changed(nodes: Iterable[PeerId]) -> None:
        nonlocal kept_back
        for node in nodes:
            presence = peers.presence(node)
            if node == peers.peer or not _is_news(presence, is_known=node in met):
                continue
            (met.discard if presence in _GONE else met.add)(node)
            if not pace.allows("", now()):
                kept_back += 1
                continue
            more = f" (before that {kept_back} more came or went)" if kept_back else ""
            kept_back = 0
            log.info("%s%s", _sentence(peers, node, presence), more)

    return changed


def _is_news(presence: Presence, *, is_known: bool) -> bool:
    return is_known if presence in _GONE else presence is Presence.ALIVE and not is_known


def _sentence(peers: Registry, node: PeerId, presence: Presence) -> str:
    signed = peers.catalog.held.get(node)
    label = f"node {node}" + (f" ({signed.record.name})" if signed and signed.record.name else "")
    if presence is Presence.LEFT:
        return f"{label} has left"
    if presence is Presence.LOST:
        health = peers.health_of(node)
        return f"lost {label}: {REASONS[health.why]}" if health else f"lost {label}"
    count = len(signed.record.services) if signed else 0
    return f"{label} joined, with {count} model{'' if count == 1 else 's'}"


class OtherNodes(Protocol):
    """What is known of other nodes."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node, as seen from here."""


def follow_links(
    links: Links, others: OtherNodes, *, forgive: Callable[[PeerId], None]
) -> Callable[[Iterable[PeerId]], None]:
    """Return a callback for changed nodes: waits for a lost node end, and a node that is back is tried again.

    `forgive` is also called with a node that is back. Connections to an earlier run of a node are dropped: after a power
    cut nothing else says that they lead nowhere. Those to a node that was doubted are cut if they stay silent: a firewall
    that forgot them says nothing either.
    """
    follower = _LinkFollower(links, others, forgive)

    def changed(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            follower.read_record(node)
            follower.note_presence(node, others.presence(node))

    return changed


@dataclass
class _LinkFollower:
    links: Links
    others: OtherNodes
    forgive: Callable[[PeerId], None]
    away: set[PeerId] = field(default_factory=set)
    doubted: set[PeerId] = field(default_factory=set)
    runs: dict[PeerId, int] = field(default_factory=dict)

    def read_record(self, node: PeerId) -> None:
        signed = self.others.catalog.held.get(node)
        if signed is None:
            self.runs.pop(node, None)
        elif self.runs.get(node) != (run := signed.record.version.epoch):
            self.runs[node] = run
            self.links.drop_connections(node)
        self.links.follow(node)

    def note_presence(self, node: PeerId, now: Presence) -> None:
        if now in _DOUBTED:
            self.doubted.add(node)
        elif now is Presence.ALIVE and node in self.doubted:
            self.doubted.remove(node)
            self.links.cut_silent(node)
        if now in _AWAY:
            self.away.add(node)
        if now is Presence.LOST:
            self.links.end_waits(node)
        elif now is Presence.UNREACHABLE:
            self.links.recheck_address(node)
        elif now is Presence.ALIVE and node in self.away:
            self.away.remove(node)
            self.links.retry_addresses(node)
            self.forgive(node)


def follow_loads(
    router: Router, presence: Callable[[PeerId], Presence]
) -> Callable[[Iterable[PeerId]], None]:
    """Return a callback for changed nodes that forgets the reported load of nodes that are lost or have left."""

    def changed(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            if presence(node) in _GONE:
                router.forget(node)

    return changed


def follow_revoked(keys: KeyRing, others: OtherNodes) -> Callable[[Iterable[PeerId]], None]:
    """Return a callback for changed nodes that invalidates the grants that they have revoked."""

    def changed(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            if (signed := others.catalog.held.get(node)) and (revoked := signed.record.revoked):
                keys.take_revocations(node, revoked)

    return changed


async def announce_revocations(keys: KeyRing, registry: Registry) -> None:
    """Tell other nodes which grants of this node are revoked, until cancelled."""
    table, ends = None, math.inf
    while True:
        # Every change replaces the table by another object.
        if keys.table is not table or keys.now() >= ends:
            table, revoked = keys.table, keys.revocations()
            ends = min((revocation.expires for revocation in revoked), default=math.inf)
            if revoked != registry.own_record.revoked:
                try:
                    await registry.publish_revocations(revoked)
                except LimitReached as error:
                    log.error("other sites do not learn of revoked grants: %s", error)  # noqa: TRY400  (a sentence for the operator)
        await asyncio.sleep(_REVOKED_PERIOD)
