"""Mesh of nodes in one process, joined by a switchboard, with the faults that a test asks for.

Nothing here waits or draws random numbers of its own: the same calls and the same `rng` give the same frames.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from registry.errors import InvalidFrame, LimitReached, MeshDown, PeerUnreachable
from registry.mesh import (
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MAX_QUESTION_BYTES,
    Answerer,
    Arrived,
    Direction,
    Joined,
    Judge,
    Knows,
    MeshEvent,
    Origin,
    PeerConnection,
    PeerLeft,
    Pipe,
    PipeHandler,
    Restarted,
    accept_every_frame,
    knows_nobody,
)
from registry.mesh.queues import ByteQueue, Inbox
from registry.records import PeerId
from registry.task_group import BackgroundTasks

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
    forward, back = ByteQueue(PIPE_BYTES), ByteQueue(PIPE_BYTES)
    return MemoryPipe(peer, back, forward), MemoryPipe(opener, forward, back)


_PREFIX = "/memory/0/p2p/"


def address_of(peer: PeerId) -> str:
    """Return the address that a peer has on every switchboard."""
    return _PREFIX + peer


def peer_in(address: str) -> PeerId:
    """Return the peer that an address ends in; raise `PeerUnreachable` when it names none."""
    head, separator, peer = address.rpartition("/p2p/")
    if not (head and separator and peer):
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

    def kept_peers(self) -> tuple[PeerId, ...]:
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
        self.connect_wanted()

    def leave(self, node: AttachedNode) -> None:
        """Remove a node; its connections end."""
        for other in tuple(self._links.get(node.peer, ())):
            self.cut(node.peer, other)
        self._nodes.pop(node.peer, None)
        self._delayed.pop(node.peer, None)

    def node_of(self, peer: PeerId) -> AttachedNode:
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
        self.connect_wanted()

    def connect_wanted(self) -> None:
        """Make every connection that is wanted and possible, in the order in which nodes entered."""
        for node in tuple(self._nodes.values()):
            for peer in node.kept_peers():
                if peer != node.peer and self._reachable(node.peer, peer):
                    self.link(node.peer, peer)

    def broadcast(self, author: AttachedNode, frame: bytes) -> None:
        """Carry a frame to every node that a chain of connections leads to, nearest first."""
        reached = {author.peer}
        hops = deque([author.peer])
        while hops:
            via = hops.popleft()
            for peer in self.links_of(via):
                if peer not in reached:
                    reached.add(peer)
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


class MemoryMesh:
    """A node on a `MemoryNet`, addressed as `/memory/0/p2p/<peer id>`."""

    def __init__(
        self,
        peer: PeerId,
        net: MemoryNet,
        *,
        bootstrap: tuple[str, ...] = (),
        queue: int = 4096,
        max_pipes: int = 256,
    ) -> None:
        self._peer = peer
        self._net = net
        self._bootstrap = bootstrap
        self._kept_addresses: tuple[str, ...] = ()
        self._inbox = Inbox(queue)
        self._tasks = BackgroundTasks()
        self._max_pipes = max_pipes
        self._pipes: set[MemoryPipe] = set()
        self._running = False

    @property
    def peer(self) -> PeerId:
        """Our own id."""
        return self._peer

    async def start(
        self,
        answer: Answerer,
        serve_pipe: PipeHandler,
        judge: Judge = accept_every_frame,  # noqa: ARG002 (nobody passes on what it heard, so nobody is to blame for it)
        knows: Knows = knows_nobody,  # noqa: ARG002 (there is room for everybody)
    ) -> None:
        """Join the switchboard; peers that wait for this node are connected at once."""
        self._answer = answer
        self._serve_pipe = serve_pipe
        self._running = True
        self._net.enter(self)

    async def stop(self) -> None:
        """Leave the switchboard and end everything that runs for peers."""
        self._running = False
        self._net.leave(self)
        await self._tasks.cancel_all()
        self._inbox.close()

    def fail(self) -> None:
        """Fail as a crashed mesh does: connections end, and calls raise `MeshDown` until `recover`."""
        self._running = False
        self._net.leave(self)

    def recover(self) -> None:
        """Come back after `fail`."""
        self._running = True
        self._inbox.put(Restarted())
        self._net.enter(self)

    def kept_peers(self) -> tuple[PeerId, ...]:
        """Return the peers that this node keeps connected."""
        return tuple(dict.fromkeys(map(peer_in, self._bootstrap + self._kept_addresses)))

    def take(self, event: MeshEvent) -> None:
        """Receive what the switchboard delivers."""
        self._inbox.put(event)

    def take_question(self, asker: PeerId, question: bytes) -> "asyncio.Task[bytes]":
        """Start answering a peer."""
        return self._tasks.spawn(self._answer_question(asker, question))

    def take_pipe(self, pipe: MemoryPipe) -> None:
        """Start serving a peer's pipe, or cut it when too many are open."""
        try:
            self._hold(pipe)
        except LimitReached:
            pipe.cut()
        else:
            self._tasks.spawn(self._serve_stream(pipe))

    def events(self) -> AsyncIterator[MeshEvent]:
        """Return the events in order, for one reader."""
        return self._inbox.events()

    async def publish(self, frame: bytes) -> None:
        """Hand a frame to every node that a chain of connections leads to."""
        self._require_running()
        if len(frame) > MAX_FRAME_BYTES:
            raise InvalidFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(frame)}")
        self._net.broadcast(self, bytes(frame))

    async def ask(self, peer: PeerId, question: bytes, *, timeout: float) -> bytes:
        """Ask one peer a question; raise `PeerUnreachable`, `MeshDown`, or `LimitReached` when it is too long."""
        if len(question) > MAX_QUESTION_BYTES:
            raise LimitReached(f"a question has at most {MAX_QUESTION_BYTES} bytes")
        link = self._reach(peer)
        work = self._net.node_of(peer).take_question(self._peer, bytes(question))
        link.questions.add(work)
        try:
            done, _ = await asyncio.wait({work}, timeout=timeout)
        finally:
            link.questions.discard(work)
            work.cancel()
        if not done:
            raise PeerUnreachable(f"{peer} did not answer within {timeout} s")
        if work.cancelled() or work.exception() is not None:
            self._require_running()
            raise PeerUnreachable(f"{peer} gave no answer")
        return work.result()

    async def open_pipe(self, peer: PeerId, *, timeout: float) -> Pipe:  # noqa: ARG002 (nothing here takes time)
        """Open a byte stream; raise `PeerUnreachable`, `MeshDown`, or `LimitReached` at `max_pipes`."""
        link = self._reach(peer)
        local, remote = pipe_between(self._peer, peer)
        self._hold(local)
        link.carry(local)
        self._net.node_of(peer).take_pipe(remote)
        return local

    async def connect(self, address: str, *, timeout: float) -> PeerId:  # noqa: ARG002 (nothing here takes time)
        """Dial an address; raise `PeerUnreachable` or `MeshDown`."""
        self._require_running()
        peer = peer_in(address)
        if peer == self._peer:
            raise PeerUnreachable("this address is our own")
        self._net.link(self._peer, peer)
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connection to a peer; a kept peer comes back when the net changes next."""
        self._net.cut(self._peer, peer)

    async def protocols(self, peer: PeerId) -> tuple[str, ...]:
        """Return the one protocol of the switchboard, for this node and connected peers."""
        is_reached = self._running and peer in (self._peer, *(c.peer for c in self.connections()))
        return ("/memory/1",) if is_reached else ()

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses."""
        self._bootstrap = addresses
        self._net.connect_wanted()

    def bootstrap_failures(self) -> Mapping[str, str]:
        """Return the bootstrap addresses whose peer is not connected: the only reason here is its absence."""
        reached = {self._peer, *(c.peer for c in self.connections())}
        return {a: "nobody is there" for a in self._bootstrap if peer_in(a) not in reached}

    def set_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are kept connected besides the bootstrap peers."""
        self._kept_addresses = addresses
        self._net.connect_wanted()

    def addresses(self) -> tuple[str, ...]:
        """Return our own address; none while down."""
        return (address_of(self._peer),) if self._running else ()

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the peers that are connected now."""
        return tuple(
            PeerConnection(
                peer=peer,
                address=address_of(peer),
                direction=Direction.OUTBOUND if link.opener == self._peer else Direction.INBOUND,
                origin=self._origin(peer) if link.opener == self._peer else Origin.INBOUND,
            )
            for peer, link in self._net.links_of(self._peer).items()
        )

    def dropped_frames(self) -> int:
        """Return how many frames our own queue refused."""
        return self._inbox.dropped

    def relay_counts(self) -> Mapping[str, int]:
        """Return nothing: peers here reach each other directly or not at all."""
        return {}

    def refusal_counts(self) -> Mapping[str, int]:
        """Return nothing: refusals are not counted here."""
        return {}

    def task_count(self) -> int:
        """Return 0: everything here runs on the caller's loop."""
        return 0

    def idle_stream_count(self) -> int:
        """Return 0: questions need no streams here."""
        return 0

    def is_running(self) -> bool:
        """Return whether this node is on the switchboard."""
        return self._running

    def _origin(self, peer: PeerId) -> Origin:
        if peer in map(peer_in, self._bootstrap):
            return Origin.BOOTSTRAP
        return Origin.RECORD if peer in map(peer_in, self._kept_addresses) else Origin.ASKED

    async def _answer_question(self, asker: PeerId, question: bytes) -> bytes:
        answer = await self._answer(asker, question)
        if len(answer) > MAX_ANSWER_BYTES:
            raise LimitReached(f"an answer has at most {MAX_ANSWER_BYTES} bytes")
        return answer

    async def _serve_stream(self, pipe: MemoryPipe) -> None:
        try:
            await self._serve_pipe(pipe)
        finally:
            pipe.cut()

    def _hold(self, pipe: MemoryPipe) -> None:
        self._pipes = {existing for existing in self._pipes if existing.open}
        if len(self._pipes) >= self._max_pipes:
            raise LimitReached(f"{self._max_pipes} pipes are open")
        self._pipes.add(pipe)

    def _reach(self, peer: PeerId) -> NetworkLink:
        self._require_running()
        return self._net.link(self._peer, peer)

    def _require_running(self) -> None:
        if not self._running:
            raise MeshDown("the mesh is down")
