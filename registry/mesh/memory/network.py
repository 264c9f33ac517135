"""Network in memory: the connections between nodes, the faults of frames in transit, and pipes of two byte queues."""

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from registry.errors import PeerUnreachable
from registry.mesh import Arrived, Joined, MeshEvent, PeerLeft
from registry.mesh.queues import ByteQueue
from registry.records import PeerId

PIPE_BYTES = 512 * 1024
"""Bytes that may be queued in one direction of a pipe before its writer waits."""


class MemoryPipe:
    """One end of a pipe between two nodes of one process."""

    def __init__(self, peer: PeerId, incoming: ByteQueue, outgoing: ByteQueue) -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self._peer

    async def read(self) -> bytes:
        """Return the next bytes, `b""` at the end; raise `PeerUnreachable` when cut."""
        return await self._incoming.read()

    async def write(self, chunk: bytes) -> None:
        """Send all of `chunk`, waiting while the other end has no room; raise `PeerUnreachable` when cut."""
        await self._outgoing.write(bytes(chunk))

    async def finish(self) -> None:
        """Tell the other end that nothing more will be written."""
        self._outgoing.end()

    async def reset(self) -> None:
        """Cut both directions; what was finished before still arrives."""
        self.cut()

    def cut(self) -> None:
        """Do what `reset` does, without waiting."""
        self._incoming.cut()
        self._outgoing.cut()

    @property
    def open(self) -> bool:
        """Whether either direction may still carry bytes."""
        return not (self._incoming.closed and self._outgoing.closed)


def pipe_between(opener: PeerId, peer: PeerId) -> tuple[MemoryPipe, MemoryPipe]:
    """Return the opener's end and the peer's end of a new pipe."""
    there, back = ByteQueue(PIPE_BYTES), ByteQueue(PIPE_BYTES)
    return MemoryPipe(peer, back, there), MemoryPipe(opener, there, back)


_PREFIX = "/memory/0/p2p/"


def address_of(peer: PeerId) -> str:
    """Return the address that a peer has on every switchboard."""
    return _PREFIX + peer


def peer_in(address: str) -> PeerId:
    """Return the peer that an address ends in; raise `PeerUnreachable` when it names none."""
    head, found, peer = address.rpartition("/p2p/")
    if not (head and found and peer):
        raise PeerUnreachable(f"{address!r} does not end in /p2p/<peer id>")
    return PeerId(peer)


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of frames as probabilities from 0 to 1, drawn for each receiver by itself.

    A delayed frame waits until another frame for the same receiver has passed it, or until `release`.
    """

    lost: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0


@dataclass(eq=False, slots=True)
class NetworkLink:
    """An open connection, and what runs over it."""

    opener: PeerId
    questions: set["asyncio.Task[bytes]"] = field(default_factory=set)
    pipes: set[MemoryPipe] = field(default_factory=set)

    def carry(self, pipe: MemoryPipe) -> None:
        """Attach a pipe, which then ends with this connection."""
        self.pipes = {carried for carried in self.pipes if carried.open} | {pipe}

    def cut(self) -> None:
        """End everything that runs over the connection."""
        for question in self.questions:
            question.cancel()
        for pipe in self.pipes:
            pipe.cut()


class AttachedNode(Protocol):
    """A node as the switchboard sees it."""

    @property
    def peer(self) -> PeerId:
        """The node's id."""

    def wanted(self) -> tuple[PeerId, ...]:
        """Return the peers that it keeps connected."""

    def take(self, event: MeshEvent) -> None:
        """Receive an event."""

    def take_question(self, asker: PeerId, question: bytes) -> "asyncio.Task[bytes]":
        """Start answering a peer."""

    def take_pipe(self, pipe: MemoryPipe) -> None:
        """Start serving a peer's pipe."""


class MemoryNet:
    """Switchboard that connects nodes. `faults` may be replaced at any moment."""

    def __init__(self, rng: random.Random | None = None, faults: Faults = Faults()) -> None:
        self.faults = faults
        self._rng = rng if rng is not None else random.Random(0)  # noqa: S311 (faults, not secrets)
        self._nodes: dict[PeerId, AttachedNode] = {}
        self._links: dict[PeerId, dict[PeerId, NetworkLink]] = {}
        self._sides: dict[PeerId, int] = {}
        self._delayed: dict[PeerId, deque[Arrived]] = {}

    def enter(self, node: AttachedNode) -> None:
        """Add a node and make every connection that is wanted."""
        self._nodes[node.peer] = node
        self._links.setdefault(node.peer, {})
        self.settle()

    def leave(self, node: AttachedNode) -> None:
        """Remove a node; its connections end."""
        for other in tuple(self._links.get(node.peer, ())):
            self.cut(node.peer, other)
        self._nodes.pop(node.peer, None)
        self._delayed.pop(node.peer, None)

    def at(self, peer: PeerId) -> AttachedNode:
        """Return a node that is on the switchboard."""
        return self._nodes[peer]

    def links_of(self, peer: PeerId) -> Mapping[PeerId, NetworkLink]:
        """Return the connections of one node, by peer."""
        return self._links.get(peer, {})

    def link(self, opener: PeerId, peer: PeerId) -> NetworkLink:
        """Return the connection of two nodes, opened if needed; raise `PeerUnreachable` when it cannot be."""
        if (standing := self.links_of(opener).get(peer)) is not None:
            return standing
        if opener == peer or not self._reachable(opener, peer):
            raise PeerUnreachable(f"{peer} cannot be reached")
        link = NetworkLink(opener)
        self._links[opener][peer] = self._links[peer][opener] = link
        self._nodes[opener].take(Joined(peer))
        self._nodes[peer].take(Joined(opener))
        return link

    def cut(self, one: PeerId, other: PeerId) -> None:
        """End a connection, with everything that runs over it; harmless when there is none."""
        link = self._links.get(one, {}).pop(other, None)
        if link is None:
            return
        del self._links[other][one]
        link.cut()
        self._nodes[one].take(PeerLeft(other))
        self._nodes[other].take(PeerLeft(one))

    def partition(self, *groups: Iterable[PeerId]) -> None:
        """Split the net into groups that cannot reach each other; nodes not named form one more."""
        self._sides = {peer: side for side, group in enumerate(groups, 1) for peer in group}
        for one, links in self._links.items():
            for other in tuple(links):
                if not self._reachable(one, other):
                    self.cut(one, other)

    def heal(self) -> None:
        """End the partition and make every connection that is wanted again."""
        self._sides = {}
        self.settle()

    def settle(self) -> None:
        """Make every connection that is wanted and possible, in the order in which nodes entered."""
        for node in tuple(self._nodes.values()):
            for peer in node.wanted():
                if peer != node.peer and self._reachable(node.peer, peer):
                    self.link(node.peer, peer)

    def spread(self, author: AttachedNode, frame: bytes) -> None:
        """Carry a frame to every node that a chain of connections leads to, nearest first."""
        told = {author.peer}
        hops = deque([author.peer])
        while hops:
            via = hops.popleft()
            for peer in self.links_of(via):
                if peer not in told:
                    told.add(peer)
                    hops.append(peer)
                    self._carry(peer, Arrived(frame, via))

    def release(self) -> None:
        """Deliver every delayed frame."""
        for peer, delayed in self._delayed.items():
            while delayed:
                self._nodes[peer].take(delayed.popleft())

    def _carry(self, peer: PeerId, arrived: Arrived) -> None:
        if self._chance(self.faults.lost):
            return
        delayed = self._delayed.setdefault(peer, deque())
        if self._chance(self.faults.delayed):
            delayed.append(arrived)
            return
        self._nodes[peer].take(arrived)
        if self._chance(self.faults.doubled):
            self._nodes[peer].take(arrived)
        while delayed:
            self._nodes[peer].take(delayed.popleft())

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def _reachable(self, one: PeerId, other: PeerId) -> bool:
        both = one in self._nodes and other in self._nodes
        return both and self._sides.get(one, 0) == self._sides.get(other, 0)
