"""Mesh of a simulation: gossip, questions and connections between nodes, with the delays and losses of the cables.

A connection whose other end has vanished stays open until something is sent over it, or a ping fails. There are no pipes:
requests go over `wires`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import copy_context

from bench.seeds.gossip import Frame, Gossip, MeshLine
from bench.seeds.loop import PROCESS
from bench.seeds.wires import address_of
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
    PeerMisbehaved,
    Pipe,
    PipeHandler,
    Verdict,
    accept_every_frame,
    knows_nobody,
)
from registry.mesh.queues import Inbox
from registry.records import PeerId
from registry.settings import MeshSettings
from registry.task_group import BackgroundTasks

SEEN = 1_024
"""Frames that a node remembers to have forwarded."""

_SLOWEST = 10.0


class SeedMesh:
    """The mesh of one node."""

    def __init__(self, peer: PeerId, gossip: Gossip, settings: MeshSettings) -> None:
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a mesh belongs to a process")
        self.process = process
        self.host = process.host
        self.context = copy_context()
        self.lines: dict[PeerId, list[MeshLine]] = {}
        """Connections by peer; there are two if both dialled at the same time."""
        self._peer = peer
        self._gossip = gossip
        self._settings = settings
        self._bootstrap: tuple[str, ...] = settings.bootstrap
        self._kept: tuple[str, ...] = ()
        self._inbox = Inbox(settings.queue)
        self._crew = BackgroundTasks()
        self._running = False
        self._said = 0
        self._seen: dict[tuple[PeerId, int], None] = {}
        self._waits: dict[int, asyncio.Future[bytes]] = {}
        self._silent: dict[str, tuple[float, float]] = {}

    @property
    def peer(self) -> PeerId:
        """This node's id."""
        return self._peer

    async def start(
        self,
        answer: Answerer,
        serve_pipe: PipeHandler,
        judge: Judge = accept_every_frame,
        knows: Knows = knows_nobody,
    ) -> None:
        """Join the mesh, and dial."""
        del serve_pipe, knows
        self._answer, self._judge = answer, judge
        self._running = True
        self._gossip.places[self._peer] = self
        self._crew.spawn(self._dial())
        self._crew.spawn(self._ping())

    async def stop(self) -> None:
        """Leave the mesh."""
        self._running = False
        if not self.process.gone:
            self._gossip.end(self)
        await self._crew.cancel_all()
        self._inbox.close()

    def events(self) -> AsyncIterator[MeshEvent]:
        """Return the events, in order."""
        return self._inbox.events()

    async def publish(self, frame: bytes) -> None:
        """Send a frame to all connected peers."""
        self._require_running()
        if len(frame) > MAX_FRAME_BYTES:
            raise InvalidFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(frame)}")
        self._said += 1
        self._hand_on(Frame((self._peer, self._said), bytes(frame)), self._peer)

    async def ask(self, peer: PeerId, question: bytes, *, timeout: float) -> bytes:
        """Ask a connected peer a question, and return its answer."""
        if len(question) > MAX_QUESTION_BYTES:
            raise LimitReached(f"a question has at most {MAX_QUESTION_BYTES} bytes")
        self._require_running()
        if peer not in self.lines:
            raise PeerUnreachable(f"{peer} is not connected")
        return await self._waited(peer, "asked", timeout, bytes(question), self.lines[peer][0])

    async def open_pipe(self, peer: PeerId, *, timeout: float) -> Pipe:
        """Raise `PeerUnreachable`: there are no pipes."""
        raise PeerUnreachable(f"no pipes lead to {peer} in {timeout} s, or ever")

    async def connect(self, address: str, *, timeout: float) -> PeerId:
        """Dial an address, and return its peer."""
        self._require_running()
        peer = PeerId(address.rpartition("/p2p/")[2])
        if peer == self._peer:
            raise PeerUnreachable("this address is our own")
        if peer not in self.lines:
            line = MeshLine(self._peer, self._origin(address))
            await self._waited(peer, "dialled", timeout, line)
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connections to a peer."""
        for line in tuple(self.lines.get(peer, ())):
            self._gossip.post(self, peer, "hung_up", line)
            self.hung_up(peer, line)

    async def protocols(self, peer: PeerId) -> tuple[str, ...]:
        """Return the only protocol, if the peer is connected."""
        return ("/seeds/1",) if peer == self._peer or peer in self.lines else ()

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses."""
        self._bootstrap = addresses

    def bootstrap_failures(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def set_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are dialled while there are few connections."""
        self._kept = addresses

    def addresses(self) -> tuple[str, ...]:
        """Return this node's addresses."""
        address = f"/ip4/{address_of(self.host)}/tcp/6101/p2p/{self._peer}"
        return (address,) if self._running else ()

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the connected peers."""
        trip = 2 * self._gossip.wires.cables.delay
        return tuple(
            PeerConnection(
                peer=peer,
                address=f"/p2p/{peer}",
                direction=Direction.OUTBOUND if line.opener == self._peer else Direction.INBOUND,
                round_trip=trip,
                origin=line.origin if line.opener == self._peer else Origin.INBOUND,
                wires=len(lines),
            )
            for peer, lines in self.lines.items()
            for line in lines[:1]
        )

    def dropped_frames(self) -> int:
        """Return how many frames this node's queue has refused."""
        return self._inbox.dropped

    def relay_counts(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def refusal_counts(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def task_count(self) -> int:
        """Return the number of running tasks."""
        return len(self._crew)

    def idle_stream_count(self) -> int:
        """Return 0: there are no idle streams."""
        return 0

    def is_running(self) -> bool:
        """Return whether this node takes part in the mesh."""
        return self._running and not self.process.gone

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of its tables, by name."""
        return {"lines": len(self.lines), "seen": len(self._seen), "waits": len(self._waits)}

    # Messages that other nodes post.

    def framed(self, via: PeerId, frame: Frame, line: MeshLine) -> None:
        """Take a frame, and forward it."""
        if not self._stands(via, line) or frame.name in self._seen:
            return
        match self._judge(via, frame.name[0], frame.content):
            case Verdict.TAKE:
                self._inbox.put(Arrived(frame.content, via))
                self._hand_on(frame, via)
            case Verdict.OFFENCE:
                self._remember(frame)
                self._inbox.put(PeerMisbehaved(via))
            case Verdict.DROP:
                self._remember(frame)

    def asked(self, asker: PeerId, number: int, question: bytes, line: MeshLine) -> None:
        """Answer a question."""
        if self._stands(asker, line):
            self._crew.spawn(self._answered(asker, number, question))

    def dialled(self, opener: PeerId, number: int, line: MeshLine) -> None:
        """Accept a connection."""
        self._join(opener, line)
        self._gossip.post(self, opener, "accepted", number, line)

    def accepted(self, peer: PeerId, number: int, line: MeshLine) -> None:
        """Complete a dial; hang up if it is no longer awaited."""
        if number in self._waits:
            self._join(peer, line)
            self.answered(peer, number, b"")
        else:
            self._gossip.post(self, peer, "hung_up", line)

    def answered(self, _: PeerId, number: int, answer: bytes | None) -> None:
        """Pass an answer to the task that awaits it; `None` means that there is none."""
        wait = self._waits.get(number)
        if wait is None or wait.done():
            return
        if answer is None:
            wait.set_exception(PeerUnreachable("no answer was given"))
        else:
            wait.set_result(answer)

    def pinged(self, peer: PeerId, number: int, line: MeshLine) -> None:
        """Answer a ping."""
        if self._stands(peer, line):
            self._gossip.post(self, peer, "answered", number, b"")

    def hung_up(self, peer: PeerId, line: MeshLine) -> None:
        """Remove a connection whose other end is gone."""
        lines = self.lines.get(peer, [])
        if line in lines:
            lines.remove(line)
            if not lines:
                del self.lines[peer]
                self._inbox.put(PeerLeft(peer))

    # Implementation.

    def _stands(self, peer: PeerId, line: MeshLine) -> bool:
        """Return whether this node has a connection; if it does not, tell the other end."""
        if line in self.lines.get(peer, ()):
            return True
        self._gossip.post(self, peer, "hung_up", line)
        return False

    def _join(self, peer: PeerId, line: MeshLine) -> None:
        lines = self.lines.setdefault(peer, [])
        lines.append(line)
        if len(lines) == 1:
            self._inbox.put(Joined(peer))

    def _hand_on(self, frame: Frame, via: PeerId) -> None:
        self._remember(frame)
        for peer, lines in self.lines.items():
            if peer not in (via, frame.name[0]):
                self._gossip.post(self, peer, "framed", frame, lines[0])

    def _remember(self, frame: Frame) -> None:
        if len(self._seen) >= SEEN:
            del self._seen[next(iter(self._seen))]
        self._seen[frame.name] = None

    async def _answered(self, asker: PeerId, number: int, question: bytes) -> None:
        answer: bytes | None = None
        try:
            answer = await self._answer(asker, question)
        finally:
            if answer is not None and len(answer) > MAX_ANSWER_BYTES:
                answer = None
            self._gossip.post(self, asker, "answered", number, answer)

    async def _waited(self, peer: PeerId, method: str, timeout: float, *arguments: object) -> bytes:
        wires = self._gossip.wires
        self._said += 1
        number, wait = self._said, wires.create_future()
        self._waits[number] = wait
        try:
            async with asyncio.timeout(timeout):
                if peer not in self._gossip.places:
                    await asyncio.sleep(0.01)
                    raise PeerUnreachable(f"{peer} is not there")
                self._gossip.post(self, peer, method, number, *arguments)
                return await wait
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer} did not answer within {timeout} s") from error
        finally:
            del self._waits[number]

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ping)
            for peer, line in [(p, line) for p, lines in self.lines.items() for line in lines]:
                try:
                    await self._waited(peer, "pinged", self._settings.ping_timeout, line)
                except PeerUnreachable:
                    self.hung_up(peer, line)

    async def _dial(self) -> None:
        """Keep bootstrap addresses connected, and enough of the others; back off longer after each failure."""
        while True:
            due = deque(self._wanted())
            async with asyncio.TaskGroup() as dials:
                while due:
                    dials.create_task(self._try(due.popleft()))
            await asyncio.sleep(self._settings.redial)

    def _wanted(self) -> list[str]:
        now = self._gossip.wires.time()
        few = len(self.lines) < self._settings.degree
        targets = dict.fromkeys((*self._bootstrap, *(self._kept if few else ())))
        return [
            address
            for address in targets
            if PeerId(address.rpartition("/p2p/")[2]) not in (*self.lines, self._peer)
            and self._silent.get(address, (0.0, 0.0))[0] <= now
        ]

    async def _try(self, address: str) -> None:
        redial = self._settings.redial
        _, pause = self._silent.pop(address, (0.0, redial / 2))
        with suppress(MeshDown):
            try:
                await self.connect(address, timeout=self._settings.dial_timeout)
            except PeerUnreachable:
                pause = min(2 * pause, _SLOWEST * redial)
                self._silent[address] = (self._gossip.wires.time() + pause, pause)

    def _origin(self, address: str) -> Origin:
        if address in self._bootstrap:
            return Origin.BOOTSTRAP
        return Origin.RECORD if address in self._kept else Origin.ASKED

    def _require_running(self) -> None:
        if not self.is_running():
            raise MeshDown("the mesh is down")
