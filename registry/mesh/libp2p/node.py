"""Node in the trio thread: gossip, questions, pipes and dialling."""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, cast

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.address_validation import expand_wildcard_address
from multiaddr import Multiaddr

from registry.errors import LimitReached, PeerUnreachable, ProtocolViolation, listen_error_text
from registry.intake.shares import has_share
from registry.mesh import Origin, peer_in
from registry.mesh.discovered import DiscoveredPeers, only_loopback
from registry.mesh.libp2p import Delegate
from registry.mesh.libp2p.ask import ASK, STREAMS_REFUSED, Questions, QuestionStreams
from registry.mesh.libp2p.connections import ConnectionManager, Eviction, Origins
from registry.mesh.libp2p.dial import Dials, NobodyAnswered
from registry.mesh.libp2p.guards import as_unreachable, caller_of, ignore_errors
from registry.mesh.libp2p.host import make_host
from registry.mesh.libp2p.nat import Nat
from registry.mesh.libp2p.pipes import WINDOW, PipeEnd, StreamPipe
from registry.mesh.libp2p.rendezvous import RENDEZVOUS, RendezvousClient, RendezvousPoint, name_of
from registry.mesh.libp2p.thread import AsyncioCallFailed
from registry.mesh.libp2p.watch import Watch
from registry.mesh.queues import ByteQueue
from registry.records import PeerId
from registry.settings import MeshSettings
from registry.signing import Identity

MAX_PROTOCOLS = 64
"""Protocols shown of those that a peer announces."""

_PROTOCOL = re.compile(r"[!-~]{1,128}")
PIPE = TProtocol("/modelvine/pipe/1")

CLOSE_SECONDS = 3.0
"""Seconds that closing all connections may take."""

FLUSH_SECONDS = 0.5
"""Seconds that writing queued gossip may take at shutdown."""

SEGMENT_BYTES = 1220
"""Maximum segment size of connections that this node accepts, for both directions: that of a packet of 1,280 bytes.

Every path of IPv6 carries those (RFC 8200, 5), and so does every common tunnel. Larger ones may vanish unseen, and then two nodes
that know no others would learn nothing of each other, although they live.
"""

_FLUSH_POLL = 0.02
_LOOPBACK = {"/ip4/0.0.0.0/": "/ip4/127.0.0.1/", "/ip6/::/": "/ip6/::1/"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a `MeshNode` is built from; the same after every restart."""

    identity: Identity
    settings: MeshSettings
    listen: tuple[str, ...]
    swarm_key: str | None
    topic: str
    bootstrap: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()


def require_free(address: Multiaddr) -> None:
    """Raise `OSError` when the address is in use: libp2p would share the port and get half of the connections."""
    host = address.value_for_protocol(address.protocols()[0].code)
    port = address.value_for_protocol("tcp")
    family = socket.AF_INET6 if ":" in str(host) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port or 0)))
        except OSError as error:
            raise OSError(
                listen_error_text(str(address), "mesh.listen (--listen)", error)
            ) from error


class MeshNode:
    """A running node. `run` calls `ready` when every listener is open, and continues until cancelled."""

    def __init__(self, plan: Plan, delegate: Delegate) -> None:
        self._plan = plan
        self._delegate = delegate
        self._libp2p = make_host(
            plan.identity,
            plan.settings,
            swarm_key=plan.swarm_key,
            topic=plan.topic,
            delegate=delegate,
        )
        self._host = self._libp2p.host
        self._question_streams = QuestionStreams(self._host)
        self._origins: Origins = {}
        self._watch = Watch(self._host, plan.settings, delegate, self._origins, self._libp2p.pubsub)
        self._nat = Nat(
            self._host,
            plan.settings,
            plan.swarm_key,
            self._watch,
            node=self,
            knows=delegate.knows,
        )
        self._reported_addresses: tuple[tuple[str, ...], ...] = ()
        private = plan.swarm_key is not None
        self._dials = Dials(self._host, self._watch, self._nat.circuits, private=private)
        self._pipes: set[PipeEnd] = set()
        self.questions = Questions(delegate)
        self.connections = ConnectionManager(
            DiscoveredPeers(plan.identity.peer, only_loopback(plan.listen)),
            plan.settings,
            self,
            self._watch,
            origins=self._origins,
            dials=self._dials,
            delegate=delegate,
        )
        self._eviction = Eviction(plan.settings, self, self._watch, delegate)
        self.connections.set_bootstrap(plan.bootstrap)
        self.connections.set_neighbours(plan.kept)
        self.connections.claim(Origin.MDNS, plan.neighbours)

    async def run(self, ready: Callable[["MeshNode"], object]) -> None:
        """Listen, call `ready`, dial and ping until cancelled."""
        self._host.set_stream_handler(ASK, self.questions.handle)
        self._host.set_stream_handler(PIPE, self._take_pipe)
        if self._plan.settings.rendezvous_point:
            self._host.set_stream_handler(RENDEZVOUS, RendezvousPoint().handle)
        self._nat.open()
        name = name_of(self._plan.settings.name, self._plan.swarm_key)
        points = RendezvousClient(self._host, self._plan.settings.rendezvous, name, self)
        async with AsyncExitStack() as stack:
            stack.callback(self._libp2p.pubsub.retire)
            # Gossip runs before anything listens: a stream that came sooner would end the node.
            await stack.enter_async_context(background_trio_service(self._libp2p.pubsub))
            await stack.enter_async_context(background_trio_service(self._libp2p.gossip))
            await self._libp2p.pubsub.wait_until_ready()
            await self._libp2p.pubsub.subscribe(self._plan.topic)
            listen = [Multiaddr(address) for address in self._plan.listen]
            for address in listen:
                require_free(address)
            await stack.enter_async_context(self._host.run(listen_addrs=listen))
            stack.push_async_callback(self._close)
            self._require_listeners()
            for listener in self._listening_sockets():
                with suppress(OSError):  # macOS refuses it
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
            self._nursery = await stack.enter_async_context(trio.open_nursery())
            self._nursery.start_soon(self._watch.ping_forever)
            self._nursery.start_soon(self._question_streams.tidy_forever)
            self._nursery.start_soon(self.connections.run)
            self._nursery.start_soon(self._eviction.evict_forever)
            self._nursery.start_soon(points.visit_forever)
            self._nursery.start_soon(self._nat.run)
            ready(self)
            await trio.sleep_forever()

    def listening(self) -> tuple[str, ...]:
        """Return the addresses to listen on next time: the same ones, with the ports obtained now."""
        listeners = self._host.get_network().listeners
        return tuple(
            address.replace(
                "/tcp/0", f"/tcp/{listeners[address].get_addrs()[0].value_for_protocol('tcp')}"
            )
            for address in self._plan.listen
        )

    @property
    def relay_counts(self) -> Mapping[str, int]:
        """Counters of this node's work as a relay."""
        return (
            self._nat.relay_counts if self._plan.settings.relay or self._plan.settings.carry else {}
        )

    def addresses(self) -> tuple[str, ...]:
        """Return our dialable addresses: those to announce, or every interface's; then those at relays."""
        return self.own_addresses() + self._nat.addresses

    def own_addresses(self) -> tuple[str, ...]:
        """Return our addresses without those at relays."""
        return self._announced() or self.interfaces()

    def interfaces(self) -> tuple[str, ...]:
        """Return our addresses on this machine's own interfaces, whatever is announced; loopback where there is no other."""
        suffix = f"/p2p/{self._plan.identity.peer}"
        addresses = [
            str(address).partition("/p2p/")[0] + suffix
            for listener in self._host.get_transport_addrs()
            for address in expand_wildcard_address(listener)
        ]
        # The library returns the wildcard itself where no interface has an address of its family.
        dialable = [address for address in addresses if not address.startswith(tuple(_LOOPBACK))]
        return tuple(dict.fromkeys(dialable or map(_on_loopback, addresses)))

    def _announced(self) -> tuple[str, ...]:
        suffix = f"/p2p/{self._plan.identity.peer}"
        announced = (a.partition("/p2p/")[0] + suffix for a in self._plan.settings.announce)
        return tuple(dict.fromkeys(announced))

    def abandon(self) -> None:
        """Free the ports of a run that was cut short; call this from any thread, once that run is over.

        An error in trio's own core ends a run without unwinding it. Its sockets are then never closed: trio's globals
        keep them. They are shut down and not closed, because their owner may still close that file descriptor.
        """
        for listener in self._listening_sockets():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)

    def _listening_sockets(self) -> Iterator[trio.socket.SocketType]:
        for listener in self._host.get_network().listeners.values():
            for inner in cast("Any", listener).listeners:
                yield inner.socket

    async def publish(self, frame: bytes) -> None:
        """Hand a frame to gossipsub."""
        await self._libp2p.pubsub.publish(self._plan.topic, frame)

    async def flush(self) -> None:
        """Let gossip write its queues, which are lost when the run ends; the last message in them is a farewell."""
        with trio.move_on_after(FLUSH_SECONDS):
            # Polled: the library does not report that a queue has become empty.
            while any(len(queue) for queue in self._libp2p.pubsub.peer_queues.values()):  # noqa: ASYNC110
                await trio.sleep(_FLUSH_POLL)
            # The last message that left its queue may still be on its way to the socket.
            await trio.sleep(_FLUSH_POLL)

    async def ask(self, peer: PeerId, question: bytes, timeout: float) -> bytes:
        """Ask a peer a question; raise `PeerUnreachable`."""
        return await self._question_streams.ask(peer, question, timeout)

    async def open_pipe(self, peer: PeerId, timeout: float) -> StreamPipe:
        """Open a pipe; raise `LimitReached` or `PeerUnreachable`."""
        if self._pipes_are_full():
            raise LimitReached(f"{self._plan.settings.max_pipes} pipes are open")
        with as_unreachable(f"{peer} accepted no pipe"), trio.fail_after(timeout):
            stream = await self._host.new_stream(ID.from_string(peer), [PIPE])
        end, pipe = self._pipe_over(stream)
        self._nursery.start_soon(end.run)
        return pipe

    async def connect(self, address: str, timeout: float) -> PeerId:
        """Dial an address and return its peer; raise `PeerUnreachable` with the reason.

        Each IP address of a name has the time limit for itself.
        """
        peer = peer_in(address)
        self._origins.setdefault(peer, Origin.ASKED)
        try:
            await self._dials.dial_in_turn((address,), timeout, to_resolve=timeout)
        except NobodyAnswered as error:
            reason = error.reasons[address]
            raise PeerUnreachable(f"{address!r} cannot be dialled: {reason}") from error
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to a peer."""
        with ignore_errors():
            await self._host.disconnect(ID.from_string(peer))

    async def protocols(self, peer: PeerId) -> tuple[str, ...]:
        """Return the protocols that a peer announced, or our own for our id, as far as they can be shown."""
        if peer == self._plan.identity.peer:
            names = [str(name) for name in self._host.get_mux().get_protocols() if name]
        else:
            try:
                names = self._host.get_peerstore().get_protocols(ID.from_string(peer))
            except PeerStoreError:
                names = []
        return tuple(sorted(filter(_PROTOCOL.fullmatch, names[:MAX_PROTOCOLS])))

    def topic_peers(self) -> set[PeerId]:
        """Return the connected peers that speak our topic."""
        subscribed = self._libp2p.pubsub.peer_topics.get(self._plan.topic, ())
        return self._watch.peers() & {PeerId(str(peer)) for peer in subscribed}

    async def dial_point(self, address: str) -> PeerId:
        """Connect to a rendezvous point; raise `PeerUnreachable` with the reason."""
        self._origins.setdefault(peer_in(address), Origin.RENDEZVOUS)
        return await self.connect(address, self._plan.settings.dial_timeout)

    def take_discovered(self, addresses: tuple[str, ...]) -> None:
        """Replace the addresses that rendezvous points have returned."""
        self.connections.claim(Origin.RENDEZVOUS, addresses)

    async def _take_pipe(self, stream: INetStream) -> None:
        if self._pipes_are_full() or self._has_its_share(stream):
            self._delegate.note_refusal(STREAMS_REFUSED)
            await stream.reset()
            return
        end, pipe = self._pipe_over(stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.run)
            try:
                await self._delegate.serve(pipe)
            except AsyncioCallFailed:
                await end.reset()
            else:
                await end.leave()
        if end.violated:
            raise ProtocolViolation("no pipe")

    def _pipe_over(self, stream: INetStream) -> tuple[PipeEnd, StreamPipe]:
        """Return both sides of a new pipe over a stream."""
        incoming, thread = ByteQueue(WINDOW), self._delegate.thread
        end = PipeEnd(stream, thread.post_asyncio, incoming)
        self._pipes.add(end)
        return end, StreamPipe(caller_of(stream), end, incoming, thread)

    def _has_its_share(self, stream: INetStream) -> bool:
        """Return whether the peer of a stream already holds its share of all pipes."""
        peer = stream.muxed_conn.peer_id
        used = sum(bool(cast("Any", end.wire).peer_id == peer) for end in self._pipes)
        return not has_share(used, self._plan.settings.max_pipes - len(self._pipes))

    def _pipes_are_full(self) -> bool:
        self._pipes = {end for end in self._pipes if not end.closed.is_set()}
        return len(self._pipes) >= self._plan.settings.max_pipes

    def busy_wires(self) -> set[int]:
        """Return the `id` of each connection that carries a pipe."""
        return {id(end.wire) for end in self._pipes if not end.closed.is_set()}

    def tell_addresses(self) -> None:
        """Report our addresses if they have changed."""
        interfaces = self.interfaces()
        addresses = (self._announced() or interfaces) + self._nat.addresses, interfaces
        if addresses != self._reported_addresses:
            self._reported_addresses = addresses
            self._delegate.note_addresses(*addresses)

    def _require_listeners(self) -> None:
        missing = [a for a in self._plan.listen if a not in self._host.get_network().listeners]
        if missing or not all(n.get_addrs() for n in self._host.get_network().listeners.values()):
            raise OSError(f"cannot listen on {', '.join(missing or self._plan.listen)}")

    async def _close(self) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS):
            await self._watch.cut_all()
            with ignore_errors():
                await self._host.close()


def _on_loopback(wildcard: str) -> str:
    family = next(family for family in _LOOPBACK if wildcard.startswith(family))
    return _LOOPBACK[family] + wildcard.removeprefix(family)
