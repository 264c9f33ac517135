"""Mesh of nodes in one process, joined by a switchboard, with the faults that a test asks for.

Nothing here waits or draws random numbers of its own: the same calls and the same `rng` give the same frames.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from registry.errors import InvalidFrame, LimitReached, MeshDown, PeerUnreachable
from registry.mesh import (
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MAX_QUESTION_BYTES,
    Answerer,
    Direction,
    Judge,
    Knows,
    MeshEvent,
    Origin,
    PeerConnection,
    Pipe,
    PipeHandler,
    Restarted,
    accept_every_frame,
    knows_nobody,
)
from registry.mesh.memory.network import (
    MemoryNet,
    MemoryPipe,
    NetworkLink,
    address_of,
    peer_in,
    pipe_between,
)
from registry.mesh.queues import Inbox
from registry.records import PeerId
from registry.task_group import BackgroundTasks


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
        self._kept: tuple[str, ...] = ()
        self._inbox = Inbox(queue)
        self._crew = BackgroundTasks()
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
        await self._crew.cancel_all()
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

    def wanted(self) -> tuple[PeerId, ...]:
        """Return the peers that this node keeps connected."""
        return tuple(dict.fromkeys(map(peer_in, self._bootstrap + self._kept)))

    def take(self, event: MeshEvent) -> None:
        """Receive what the switchboard delivers."""
        self._inbox.put(event)

    def take_question(self, asker: PeerId, question: bytes) -> "asyncio.Task[bytes]":
        """Start answering a peer."""
        return self._crew.spawn(self._answer_question(asker, question))

    def take_pipe(self, pipe: MemoryPipe) -> None:
        """Start serving a peer's pipe, or cut it when too many are open."""
        try:
            self._hold(pipe)
        except LimitReached:
            pipe.cut()
        else:
            self._crew.spawn(self._serve_stream(pipe))

    def events(self) -> AsyncIterator[MeshEvent]:
        """Return the events in order, for one reader."""
        return self._inbox.events()

    async def publish(self, frame: bytes) -> None:
        """Hand a frame to every node that a chain of connections leads to."""
        self._require_running()
        if len(frame) > MAX_FRAME_BYTES:
            raise InvalidFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(frame)}")
        self._net.spread(self, bytes(frame))

    async def ask(self, peer: PeerId, question: bytes, *, timeout: float) -> bytes:
        """Ask one peer a question; raise `PeerUnreachable`, `MeshDown`, or `LimitReached` when it is too long."""
        if len(question) > MAX_QUESTION_BYTES:
            raise LimitReached(f"a question has at most {MAX_QUESTION_BYTES} bytes")
        link = self._reach(peer)
        work = self._net.at(peer).take_question(self._peer, bytes(question))
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
        ours, theirs = pipe_between(self._peer, peer)
        self._hold(ours)
        link.carry(ours)
        self._net.at(peer).take_pipe(theirs)
        return ours

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
        known = self._running and peer in (self._peer, *(c.peer for c in self.connections()))
        return ("/memory/1",) if known else ()

    def pin(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses."""
        self._bootstrap = addresses
        self._net.settle()

    def failures(self) -> Mapping[str, str]:
        """Return the bootstrap addresses whose peer is not connected: the only reason here is its absence."""
        there = {self._peer, *(c.peer for c in self.connections())}
        return {a: "nobody is there" for a in self._bootstrap if peer_in(a) not in there}

    def keep(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are kept connected besides the bootstrap peers."""
        self._kept = addresses
        self._net.settle()

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

    def dropped(self) -> int:
        """Return how many frames our own queue refused."""
        return self._inbox.dropped

    def relaying(self) -> Mapping[str, int]:
        """Return nothing: peers here reach each other directly or not at all."""
        return {}

    def refused(self) -> Mapping[str, int]:
        """Return nothing: refusals are not counted here."""
        return {}

    def tasks(self) -> int:
        """Return 0: everything here runs on the caller's loop."""
        return 0

    def standing(self) -> int:
        """Return 0: questions need no streams here."""
        return 0

    def running(self) -> bool:
        """Return whether this node is on the switchboard."""
        return self._running

    def _origin(self, peer: PeerId) -> Origin:
        if peer in map(peer_in, self._bootstrap):
            return Origin.BOOTSTRAP
        return Origin.RECORD if peer in map(peer_in, self._kept) else Origin.ASKED

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
        self._pipes = {held for held in self._pipes if held.open}
        if len(self._pipes) >= self._max_pipes:
            raise LimitReached(f"{self._max_pipes} pipes are open")
        self._pipes.add(pipe)

    def _reach(self, peer: PeerId) -> NetworkLink:
        self._require_running()
        return self._net.link(self._peer, peer)

    def _require_running(self) -> None:
        if not self._running:
            raise MeshDown("the mesh is down")
