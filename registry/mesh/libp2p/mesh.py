"""Mesh over libp2p, which runs in a thread of its own and is restarted when it fails.

This is the asyncio side. It holds the state that must outlive a trio run, and what callers see of the mesh.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from registry.errors import InvalidFrame, LimitReached, MeshDown
from registry.mesh import (
    MAX_FRAME_BYTES,
    MAX_QUESTION_BYTES,
    Answerer,
    Arrived,
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
    Restarted,
    accept_every_frame,
    knows_nobody,
    peer_in,
)
from registry.mesh.discovered import claimed_peer, only_loopback
from registry.mesh.libp2p.ask import STREAMS_REFUSED
from registry.mesh.libp2p.guards import CONNECTIONS_REFUSED, HANDSHAKES_FAILED
from registry.mesh.libp2p.node import MeshNode, Plan
from registry.mesh.libp2p.thread import TrioThread, living_tasks
from registry.mesh.queues import Inbox
from registry.records import PeerId
from registry.settings import MeshSettings
from registry.signing import Identity
from registry.task_group import BackgroundTasks

START_SECONDS = 30.0
STOP_SECONDS = 8.0
"""Seconds that starting and stopping the libp2p thread may take."""

_SWARM_KEY = re.compile(r"[0-9a-f]{64}")


class LibP2PMesh:
    """A node's place in the libp2p mesh, and the delegate of its `MeshNode`.

    `swarm_key` is 64 lower-case hex digits, or `None` for an open mesh.
    """

    def __init__(
        self,
        identity: Identity,
        settings: MeshSettings,
        *,
        swarm_key: str | None = None,
        topic: str = "modelvine/1",
    ) -> None:
        if swarm_key is not None and not _SWARM_KEY.fullmatch(swarm_key):
            raise ValueError("a swarm key is 64 lower-case hex digits")
        self._plan = Plan(identity, settings, settings.listen, swarm_key, topic, settings.bootstrap)
        self._inbox = Inbox(settings.queue)
        self._connections: tuple[PeerConnection, ...] = ()
        self._failures: dict[str, str] = {}
        self._addresses: tuple[str, ...] = ()
        self._node: MeshNode | None = None
        self._has_started = False
        self._tasks = self._standing = 0
        # Two counters, each written by one thread only: what trio sent towards the inbox, and what arrived.
        self._sent = 0
        self._delivered = 0
        self._dropped = 0
        self._refusal_counts = dict.fromkeys(
            (CONNECTIONS_REFUSED, STREAMS_REFUSED, HANDSHAKES_FAILED), 0
        )
        # Addresses of our own interfaces, which `announce` may leave out.
        self._interfaces: tuple[str, ...] = ()
        self._background_tasks = BackgroundTasks()
        self.thread: TrioThread[MeshNode] = TrioThread(self)

    @property
    def peer(self) -> PeerId:
        """Our own id."""
        return self._plan.identity.peer

    async def start(
        self,
        answer: Answerer,
        serve_pipe: PipeHandler,
        judge: Judge = accept_every_frame,
        knows: Knows = knows_nobody,
    ) -> None:
        """Listen and begin to dial; raise `MeshDown` when an address cannot be listened on."""
        self.judge, self.knows = judge, knows
        self._answer = answer
        self._serve_pipe = serve_pipe
        await self.thread.start(timeout=START_SECONDS)
        if self._plan.settings.mdns:
            # Imported on demand: few nodes use it, and its library takes 5 MiB.
            from registry.mesh.mdns import MulticastDns, service_of  # noqa: PLC0415

            service = service_of(self._plan.swarm_key)
            neighbours = MulticastDns(service, self)
            self._background_tasks.spawn(neighbours.run())

    async def stop(self) -> None:
        """Send what is still queued, close every connection and end the thread; may be called again."""
        await self._background_tasks.cancel_all()
        if self._node is not None:
            with suppress(MeshDown):
                await self.thread.call(self._node.flush)
        await self.thread.stop(timeout=STOP_SECONDS)
        self.went_down()
        self._inbox.close()

    def events(self) -> AsyncIterator[MeshEvent]:
        """Return the events in order, for one reader."""
        return self._inbox.events()

    async def publish(self, frame: bytes) -> None:
        """Hand a frame to the gossip; raise `InvalidFrame` when it is too long, or `MeshDown`."""
        if len(frame) > MAX_FRAME_BYTES:
            raise InvalidFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(frame)}")
        await self.thread.call(self._running_node().publish, bytes(frame))

    async def ask(self, peer: PeerId, question: bytes, *, timeout: float) -> bytes:
        """Ask one peer a question; raise `PeerUnreachable`, `MeshDown`, or `LimitReached` when it is too long."""
        if len(question) > MAX_QUESTION_BYTES:
            raise LimitReached(f"a question has at most {MAX_QUESTION_BYTES} bytes")
        return await self.thread.call(self._running_node().ask, peer, bytes(question), timeout)

    async def open_pipe(self, peer: PeerId, *, timeout: float) -> Pipe:
        """Open a byte stream; raise `PeerUnreachable`, `MeshDown`, or `LimitReached` at `max_pipes`."""
        return await self.thread.call(self._running_node().open_pipe, peer, timeout)

    async def connect(self, address: str, *, timeout: float) -> PeerId:
        """Dial a multiaddr that ends in `/p2p/<peer id>`; raise `PeerUnreachable` or `MeshDown`."""
        return await self.thread.call(self._running_node().connect, address, timeout)

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to a peer; a peer that is kept is dialled again after `redial`."""
        await self.thread.call(self._running_node().disconnect, peer)

    async def protocols(self, peer: PeerId) -> tuple[str, ...]:
        """Return the protocols that a peer announced, or our own for our id; empty where they are not known now."""
        with suppress(MeshDown):
            return await self.thread.call(self._running_node().protocols, peer)
        return ()

    def set_bootstrap(self, addresses: tuple[str, ...]) -> None:
        """Replace the bootstrap addresses, which are dialled until they answer."""
        self._plan = replace(self._plan, bootstrap=addresses)
        self._failures = {a: reason for a, reason in self._failures.items() if a in addresses}
        if self._node is not None:
            self.thread.post(self._node.connections.set_bootstrap, addresses)

    def bootstrap_failures(self) -> Mapping[str, str]:
        """Return why bootstrap addresses did not answer at their latest dial, by address."""
        return dict(self._failures)

    def set_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that are dialled until `degree` peers are connected."""
        self._plan = replace(self._plan, kept=addresses)
        if self._node is not None:
            self.thread.post(self._node.connections.set_neighbours, addresses)

    def addresses(self) -> tuple[str, ...]:
        """Return our own dialable multiaddrs; empty while the mesh is down."""
        return self._addresses

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the peers that are connected now, one entry each."""
        return self._connections

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because their reader lagged."""
        return self._inbox.dropped + self._dropped

    def relay_counts(self) -> Mapping[str, int]:
        """Return the counters of this node's work as a relay since the mesh came up."""
        return {} if self._node is None else dict(self._node.relay_counts)

    def refusal_counts(self) -> Mapping[str, int]:
        """Return how often something of a peer was refused, for a limit or a failed handshake, by event."""
        return dict(self._refusal_counts)

    def task_count(self) -> int:
        """Return the number of trio tasks as of the previous call; each call has them counted for the next."""
        self.thread.post(self._count_tasks)
        return self._tasks if self.is_running() else 0

    def idle_stream_count(self) -> int:
        """Return the number of idle streams on which peers may ask their next question, counted with `task_count`."""
        return self._standing if self.is_running() else 0

    def _count_tasks(self) -> None:
        self._tasks = living_tasks()
        self._standing = self._node.questions.idle_stream_count if self._node else 0

    def is_running(self) -> bool:
        """Return whether the trio run is up."""
        return self._node is not None

    async def run(self, ready: Callable[[MeshNode], object]) -> None:
        """Run a node in trio, and call `ready` with it."""
        await MeshNode(self._plan, self).run(ready)

    # As the delegate of its node: these run in trio.

    def note_event(self, event: Arrived | PeerMisbehaved) -> None:
        """Put an event into the inbox, or drop it: what waits to cross is bounded, so that a busy loop piles up nothing."""
        if self._sent - self._delivered >= self._plan.settings.queue:
            self._dropped += 1
            return
        self._sent += 1
        self.thread.post_asyncio(self._deliver, event)

    def note_refusal(self, event: str) -> None:
        """Count something of a peer that was refused."""
        self._refusal_counts[event] += 1

    def note_connections(self, connections: tuple[PeerConnection, ...]) -> None:
        """Replace the connections, and report which peers joined and left."""
        self.thread.post_asyncio(self._update_connections, connections)

    def note_failures(self, reasons: Mapping[str, str]) -> None:
        """Keep why bootstrap addresses did not answer."""
        self.thread.post_asyncio(self._keep_failures, reasons)

    def note_addresses(self, addresses: tuple[str, ...], interfaces: tuple[str, ...]) -> None:
        """Replace our own addresses."""
        self.thread.post_asyncio(self._keep_addresses, addresses, interfaces)

    async def answer(self, asker: PeerId, question: bytes) -> bytes:
        """Answer a peer's question; raise `AsyncioCallFailed` when there is no answer."""
        return await self.thread.call_asyncio(self._answer, asker, question)

    async def serve(self, pipe: Pipe) -> None:
        """Serve a pipe that a peer opened; raise `AsyncioCallFailed` when that fails."""
        await self.thread.call_asyncio(self._serve_pipe, pipe)

    # These run on the asyncio side again.

    def _deliver(self, event: Arrived | PeerMisbehaved) -> None:
        self._delivered += 1
        self._inbox.put(event)

    def came_up(self, node: MeshNode) -> None:
        """Take a node that has come up."""
        self._node = node
        self._addresses, self._interfaces = node.addresses(), node.interfaces()
        # Peers know us by this port, so a restart must reuse it even if the system chose it.
        self._plan = replace(self._plan, listen=node.listening())
        if self._has_started:
            self._inbox.put(Restarted())
        self._has_started = True

    def went_down(self) -> None:
        """Give the node up, and all that it reported."""
        if self._node is not None:
            self._node.abandon()
        self._node = None
        self._addresses = self._interfaces = ()
        self._failures = {}
        self._update_connections(())

    def _keep_failures(self, reasons: Mapping[str, str]) -> None:
        connected = {connection.peer for connection in self._connections}
        self._failures |= {
            a: reason for a, reason in reasons.items() if peer_in(a) not in connected
        }

    def _keep_addresses(self, addresses: tuple[str, ...], interfaces: tuple[str, ...]) -> None:
        if self._node is not None:
            self._addresses, self._interfaces = addresses, interfaces

    def _update_connections(self, connections: tuple[PeerConnection, ...]) -> None:
        before = {connection.peer for connection in self._connections}
        now = {connection.peer for connection in connections}
        # The end of a relayed connection says something about the relay, or that the connection was idle.
        relayed = {connection.peer for connection in self._connections if connection.relayed}
        self._connections = connections
        self._failures = {
            a: reason for a, reason in self._failures.items() if peer_in(a) not in now
        }
        for peer in sorted(before - now - relayed):
            self._inbox.put(PeerLeft(peer))
        for peer in sorted(now - before):
            self._inbox.put(Joined(peer))

    def multicast_addresses(self) -> tuple[str, ...]:
        """Return the addresses to announce by multicast."""
        # Nodes do not dial names that they hear on a network. Loopback addresses are useful only to nodes of this machine.
        loopback = only_loopback(self._plan.listen)
        return tuple(a for a in self._interfaces if claimed_peer(a, loopback=loopback))

    def take_neighbours(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that were found by multicast."""
        self._plan = replace(self._plan, neighbours=addresses)
        if self._node is not None:
            self.thread.post(self._node.connections.claim, Origin.MDNS, addresses)

    def _running_node(self) -> MeshNode:
        if self._node is None:
            raise MeshDown("the mesh is down")
        return self._node
