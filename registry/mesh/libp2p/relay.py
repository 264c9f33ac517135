"""Relay service for other peers: the hop side of circuit relay v2, which grants reservations and copies bytes.

The messages are libp2p's; the service is ours. The library's service lets any peer reserve for another, ends all circuits of a
peer with the first one, writes statuses into the relayed bytes, and limits neither the number of circuits nor idle ones.

The tables hold bounded numbers of reservations and circuits. A full table refuses, with two exceptions: an unused reservation
is evicted if its holder is not known, or if its holder's address has more reservations than the newcomer's.
"""

import time
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import (
    HopMessage,
    Limit,
    Reservation,
    Status,
    StopMessage,
)
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as Peer
from libp2p.relay.circuit_v2.utils import write_delimited_msg
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.mesh import Knows, knows_nobody
from registry.mesh.libp2p.guards import (
    OpenRequests,
    as_unreachable,
    caller_of,
    ignore_errors,
    read_message,
    reraise_violation,
    reset,
)
from registry.mesh.libp2p.watch import NEW_SECONDS, is_relayed
from registry.records import PeerId


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of a relay; `seconds` and `size` (in bytes) hold for one circuit, `lease` (in seconds) for a reservation."""

    reservations: int
    circuits: int
    circuits_per_peer: int
    size: int
    seconds: float
    lease: float


class RelayRefusal(Enum):
    """Why a relay refuses a request."""

    NO_RESERVATION = auto()
    TOO_MANY = auto()


@dataclass(slots=True)
class RelayTable:
    """Reservations and circuits of a relay. Times are seconds on one clock of the caller's choice."""

    limits: RelayLimits
    knows: Knows = knows_nobody
    _expiry: dict[PeerId, float] = field(default_factory=dict)
    _since: dict[PeerId, tuple[str, float]] = field(default_factory=dict)
    """The address from which each reservation was requested, and its start."""
    _used: set[PeerId] = field(default_factory=set)
    _circuits: Counter[PeerId] = field(default_factory=Counter)

    @property
    def circuits(self) -> int:
        """Number of open circuits; each has two ends."""
        return self._circuits.total() // 2

    def reservations(self, now: float) -> int:
        """Return the number of reservations that have not expired."""
        return sum(expiry > now for expiry in self._expiry.values())

    def has_reservation(self, peer: PeerId, now: float) -> bool:
        """Return whether a peer holds a reservation that has not expired."""
        return self._expiry.get(peer, now) > now

    def reserve(self, peer: PeerId, address: str, now: float) -> RelayRefusal | PeerId | None:
        """Reserve for a peer at an IP address, for one lease from now on; return the peer evicted for it, if any."""
        self.retain_connected([p for p, expiry in self._expiry.items() if expiry > now])
        evicted = None
        if peer not in self._expiry and len(self._expiry) >= self.limits.reservations:
            evicted = self._choose_evicted(address, now)
            if evicted is None:
                return RelayRefusal.TOO_MANY
            self.retain_connected(self._expiry.keys() - {evicted})
        self._expiry[peer] = now + self.limits.lease
        self._since.setdefault(peer, (address, now))
        return evicted

    def retain_connected(self, connected: Collection[PeerId]) -> None:
        """Forget the reservations of peers that are no longer connected."""
        self._expiry = {p: expiry for p, expiry in self._expiry.items() if p in connected}
        self._since = {p: since for p, since in self._since.items() if p in self._expiry}
        self._used &= self._expiry.keys()

    def open(self, asker: PeerId, target: PeerId, now: float) -> RelayRefusal | None:
        """Count a circuit; return the reason for refusal if the target has no reservation or a limit is reached."""
        if not self.has_reservation(target, now):
            return RelayRefusal.NO_RESERVATION
        fullest = max(self._circuits[asker], self._circuits[target])
        if self.circuits >= self.limits.circuits or fullest >= self.limits.circuits_per_peer:
            return RelayRefusal.TOO_MANY
        self._circuits.update((asker, target))
        self._used.add(target)
        return None

    def _choose_evicted(self, address: str, now: float) -> PeerId | None:
        unused = [p for p in self._expiry if p not in self._used]
        counts = Counter(its for its, _ in self._since.values())
        of = {p: counts[self._since[p][0]] for p in unused}
        idle = [p for p in unused if now - self._since[p][1] >= NEW_SECONDS and not self.knows(p)]
        # At a difference of one, the evicted holder would come back for the place.
        crowded = [p for p in unused if of[p] > counts[address] + 1]
        return max(idle or crowded, key=of.__getitem__, default=None)

    def close(self, asker: PeerId, target: PeerId) -> None:
        """Stop counting a circuit."""
        self._circuits.subtract((asker, target))
        self._circuits += Counter()  # drops zero counts


@dataclass(slots=True)
class CarriedCircuits:
    """Circuits without a reservation, between members that cannot reach each other directly; `most` at one time."""

    most: int
    knows: Knows = knows_nobody
    _askers: Counter[PeerId] = field(default_factory=Counter)

    @property
    def circuits(self) -> int:
        """Number of open circuits."""
        return self._askers.total()

    def open(self, asker: PeerId, target: PeerId, now: float) -> RelayRefusal | None:  # noqa: ARG002 (as `RelayTable`)
        """Count a circuit; return the reason for refusal if an end is unknown, all are in use, or the asker has half."""
        if not (self.most and self.knows(asker) and self.knows(target)):
            return RelayRefusal.NO_RESERVATION
        if self.circuits >= self.most or self._askers[asker] >= max(1, self.most // 2):
            return RelayRefusal.TOO_MANY
        self._askers[asker] += 1
        return None

    def close(self, asker: PeerId, target: PeerId) -> None:  # noqa: ARG002 (as `RelayTable`)
        """Stop counting a circuit."""
        self._askers.subtract((asker,))
        self._askers += Counter()  # drops zero counts


HOP = TProtocol("/libp2p/circuit/relay/0.2.0/hop")
STOP = TProtocol("/libp2p/circuit/relay/0.2.0/stop")

MESSAGE_SECONDS = 10.0
"""Seconds that a peer may take to send its request, or to accept a circuit."""

ASKING = 64
"""Requests that may be in progress at one time."""

_CHUNK = 64 * 1024
_STATUS = {
    RelayRefusal.NO_RESERVATION: Status.NO_RESERVATION,
    RelayRefusal.TOO_MANY: Status.RESOURCE_LIMIT_EXCEEDED,
}


class RelayingNode(Protocol):
    """A node that relays for its peers."""

    def own_addresses(self) -> tuple[str, ...]:
        """Return our addresses without those at relays."""


class Relay:
    """Server for peers that reserve at this relay, and for peers that want to reach them."""

    def __init__(
        self,
        host: IHost,
        book: RelayTable,
        carried: CarriedCircuits,
        node: RelayingNode,
        counted: dict[str, int],
    ) -> None:
        self._host = host
        self._table = book
        self._carried = carried
        self._node = node
        self._counts = counted
        self._open_requests = OpenRequests(ASKING)

    def update_counts(self) -> None:
        """Update the counters that describe the current state."""
        self._counts["reservations"] = self._table.reservations(trio.current_time())
        self._counts["circuits"] = self._table.circuits
        self._counts["carried"] = self._carried.circuits

    async def handle(self, stream: INetStream) -> None:
        """Serve one stream: one request, and for a circuit all bytes that follow."""
        self._counts["refused"] += self._open_requests.full
        try:
            with (
                as_unreachable("the caller closed the stream"),
                self._open_requests.within(caller_of(stream), MESSAGE_SECONDS),
            ):
                request = await read_message(stream, HopMessage)
                target = await self._answer_request(stream, request)
        except PeerUnreachable as error:
            target = None
            await reset(stream)
            reraise_violation(error)
        if target is not None:
            await self._relay(stream, target)

    async def _answer_request(self, stream: INetStream, request: HopMessage) -> PeerId | None:
        """Answer a request that needs no circuit; return the target peer of one that does."""
        if is_relayed(stream.muxed_conn):
            await self._refuse(stream, Status.PERMISSION_DENIED)
        elif request.type == HopMessage.RESERVE:
            await self._reserve(stream)
        elif request.type == HopMessage.CONNECT:
            return PeerId(str(ID(request.peer.id)))
        else:
            await self._refuse(stream, Status.UNEXPECTED_MESSAGE)
        return None

    async def _reserve(self, stream: INetStream) -> None:
        # A peer can reserve only for itself: the id in its message is ignored.
        peer = caller_of(stream)
        wire: Any = stream.muxed_conn
        address, *_ = wire.get_remote_address() or ("",)
        answer = self._table.reserve(peer, str(address), trio.current_time())
        if isinstance(answer, RelayRefusal):
            await self._refuse(stream, Status.RESERVATION_REFUSED)
            return
        self._counts["reserved"] += 1
        self.update_counts()
        limits = self._table.limits
        reservation = Reservation(
            expire=int(time.time() + limits.lease),
            addrs=[Multiaddr(address).to_bytes() for address in self._node.own_addresses()],
        )
        reply = HopMessage(
            type=HopMessage.STATUS, status=Status.OK, reservation=reservation, limit=self._limit()
        )
        await write_delimited_msg(stream, reply)
        await stream.close()
        if answer is not None:
            # The evicted peer looks for a relay elsewhere once its connection here ends.
            with ignore_errors():
                await self._host.disconnect(ID.from_string(answer))

    async def _relay(self, stream: INetStream, target: PeerId) -> None:
        asker, now = caller_of(stream), trio.current_time()
        book = self._table if self._table.has_reservation(target, now) else self._carried
        refused = book.open(asker, target, now)
        if refused is not None:
            with ignore_errors(), trio.move_on_after(MESSAGE_SECONDS):
                await self._refuse(stream, _STATUS[refused])
            return
        self.update_counts()
        onward: INetStream | None = None
        try:
            with as_unreachable("no circuit"):
                with trio.fail_after(MESSAGE_SECONDS):
                    onward = await self._open_to_target(asker, target)
                    await write_delimited_msg(
                        stream,
                        HopMessage(type=HopMessage.STATUS, status=Status.OK, limit=self._limit()),
                    )
                self._counts["opened"] += 1
                await self._splice(stream, onward)
        except PeerUnreachable:
            if onward is None:
                with ignore_errors(), trio.move_on_after(MESSAGE_SECONDS):
                    await self._refuse(stream, Status.CONNECTION_FAILED)
        finally:
            book.close(asker, target)
            self.update_counts()
            await reset(stream)
            if onward is not None:
                await reset(onward)

    async def _open_to_target(self, asker: PeerId, target: PeerId) -> INetStream:
        """Open a stream to the target, and have it accept the circuit; raise `PeerUnreachable` when it does not."""
        peer = ID.from_string(target)
        if not self._host.get_network().get_connections(peer):
            raise PeerUnreachable("the target is gone")
        onward = await self._host.new_stream(peer, [STOP])
        async with AsyncExitStack() as failure:
            failure.push_async_callback(reset, onward)
            request = StopMessage(
                type=StopMessage.CONNECT,
                peer=Peer(id=ID.from_string(asker).to_bytes()),
                limit=self._limit(),
            )
            await write_delimited_msg(onward, request)
            _require_acceptance(onward, await read_message(onward, StopMessage))
            failure.pop_all()
        return onward

    async def _splice(self, one: INetStream, other: INetStream) -> None:
        """Copy bytes both ways until one side ends or the circuit reaches its limit of bytes or seconds."""
        remaining = [self._table.limits.size]
        with trio.move_on_after(self._table.limits.seconds) as scope:
            async with trio.open_nursery() as nursery:
                for source, sink in ((one, other), (other, one)):
                    nursery.start_soon(self._carry, source, sink, remaining, nursery.cancel_scope)
        self._counts["cut"] += scope.cancelled_caught or remaining[0] <= 0

    async def _carry(
        self, source: INetStream, sink: INetStream, remaining: list[int], scope: trio.CancelScope
    ) -> None:
        with ignore_errors():
            while remaining[0] > 0 and (chunk := await source.read(_CHUNK)):
                remaining[0] -= len(chunk)
                self._counts["bytes"] += len(chunk)
                # Half a frame would garble the peer's whole connection; yamux itself gives up after 5 s without room.
                with trio.CancelScope(shield=True):
                    await sink.write(chunk)
        # A libp2p connection has no half-close.
        scope.cancel()

    async def _refuse(self, stream: INetStream, status: Any) -> None:
        self._counts["refused"] += 1
        await write_delimited_msg(stream, HopMessage(type=HopMessage.STATUS, status=status))
        await stream.close()

    def _limit(self) -> Limit:
        return Limit(duration=int(self._table.limits.seconds), data=self._table.limits.size)


def _require_acceptance(onward: INetStream, reply: StopMessage) -> None:
    # A circuit over a circuit would be paid for twice.
    if is_relayed(onward.muxed_conn):
        raise PeerUnreachable("the target is relayed itself")
    if reply.type != StopMessage.STATUS or reply.status != Status.OK:
        raise PeerUnreachable("the target refused the circuit")
