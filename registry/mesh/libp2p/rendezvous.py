"""Rendezvous of strangers by libp2p's rendezvous protocol: nodes register at a point and ask it for other nodes.

Both sides are ours, because the library's own service does not bound what clients make it remember. `Register` and
`VisitSchedule` decide, without I/O, which nodes a point returns and when a node asks there.

A point serves any peer, so everything that it remembers is bounded. A full point refuses newcomers, unless another network has
more registrations than theirs.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.mesh.discovered import MAX_CLAIMED
from registry.mesh.libp2p.connections import RegisteredNode
from registry.mesh.libp2p.guards import OpenRequests, as_unreachable, ignore_errors
from registry.mesh.libp2p.rendezvous_messages import (
    MAX_RECORD_BYTES,
    DiscoverAnswer,
    DiscoverRequest,
    PeerClaim,
    RegisterAnswer,
    RegisterRequest,
    RendezvousAnswer,
    RendezvousRequest,
    RendezvousStatus,
    UnregisterRequest,
    decode_answer,
    decode_request,
    encode_message,
    sign_peer_record,
    unsigned_claim_of,
    verify_claim,
)
from registry.mesh.libp2p.watch import network_of
from registry.records import PeerId

_log = logging.getLogger("modelvine.mesh")

MAX_NAMES = 256
"""Meshes of which a point remembers nodes."""

MAX_REGISTERED = 4_096
"""Nodes that a point remembers, all meshes together."""

MAX_NAMES_OF_ONE = 4
"""Meshes that one node may register in."""

MAX_NAME_BYTES = 255
MAX_ADDRESSES = 8
"""Addresses that a node registers of itself."""

MAX_DISCOVERED = 32
"""Nodes in one answer; of more, as many are drawn at random, so that no single node is dialled by all."""

LONGEST_SECONDS = 7_200
"""Longest time in seconds that a point remembers a silent node; a request for more gets as much."""

REGISTERED_SECONDS = 7_200
"""Seconds for which a node asks to be remembered: points are advised to refuse less."""

RENEW_SECONDS = 900.0
"""Seconds between a node's registrations: a point that was restarted has forgotten it."""

FEW = 3
"""With fewer connections than this to nodes of its mesh, a node asks for more."""

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's signed record of its addresses, with the record's sequence; `until` is on the point's own clock.

    `network` is the one that it came from.
    """

    peer: bytes
    record: bytes
    sequence: int
    until: float
    network: str = ""


def name_of(mesh: str, swarm_key: str | None) -> str:
    """Return the name under which nodes of one mesh register; it reveals neither the mesh's own name nor its key."""
    secret = f"modelvine/1/rendezvous\0{mesh}\0{swarm_key or ''}"
    return "modelvine/1/" + sha256(secret.encode()).hexdigest()[:32]


def is_name(name: str) -> bool:
    """Return whether nodes may register under this name."""
    return 0 < len(name.encode()) <= MAX_NAME_BYTES


@dataclass(slots=True)
class Register:
    """The registrations that a point remembers."""

    rng: random.Random = field(default_factory=random.Random)
    _names: dict[str, dict[bytes, Registration]] = field(default_factory=dict)

    def add(self, name: str, registration: Registration, now: float) -> RendezvousStatus:
        """Replace a node's registration under a name; return the status for its answer."""
        if not is_name(name):
            return RendezvousStatus.E_INVALID_NAMESPACE
        if not 0 < len(registration.record) <= MAX_RECORD_BYTES:
            return RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
        if not now < registration.until <= now + LONGEST_SECONDS:
            return RendezvousStatus.E_INVALID_TTL
        current = self._names.get(name, {}).get(registration.peer)
        if current is not None and current.until > now and current.sequence > registration.sequence:
            return RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
        if current is None and not self._room(name, registration, now):
            return RendezvousStatus.E_UNAVAILABLE
        self._names.setdefault(name, {})[registration.peer] = registration
        return RendezvousStatus.OK

    def remove(self, name: str, peer: bytes) -> None:
        """Forget a node's registration under a name."""
        registered = self._names.get(name, {})
        registered.pop(peer, None)
        if not registered:
            self._names.pop(name, None)

    def sample_nodes(self, name: str, asker: bytes, limit: int, now: float) -> list[Registration]:
        """Return random nodes of a mesh without the asker: at most `MAX_DISCOVERED`, and at most `limit` if that is not 0."""
        nodes = [r for r in self._names.get(name, {}).values() if r.until > now and r.peer != asker]
        limit = min(limit, MAX_DISCOVERED) if limit > 0 else MAX_DISCOVERED
        return self.rng.sample(nodes, min(len(nodes), limit))

    def _room(self, name: str, registration: Registration, now: float) -> bool:
        of_one = sum(registration.peer in registered for registered in self._names.values())
        if of_one >= MAX_NAMES_OF_ONE:
            return False
        if self._full(name):
            self._forget(now)
        if self._full(name):
            self._evict(name, registration.network)
        return not self._full(name)

    def _evict(self, name: str, network: str) -> None:
        """Forget one registration of the network with the most, if a newcomer's has fewer, so that it has a place."""
        counts = Counter(r.network for of_name in self._names.values() for r in of_name.values())
        fullest, count = counts.most_common(1)[0]
        # At a difference of one, the evicted node would come back for the place.
        if count <= counts[network] + 1:
            return
        needs_name = name not in self._names and len(self._names) >= MAX_NAMES
        for its, registered in self._names.items():
            for peer, registration in registered.items():
                if registration.network == fullest and not (needs_name and len(registered) > 1):
                    self.remove(its, peer)
                    return

    def _full(self, name: str) -> bool:
        registered = sum(map(len, self._names.values()))
        return registered >= MAX_REGISTERED or (
            name not in self._names and len(self._names) >= MAX_NAMES
        )

    def _forget(self, now: float) -> None:
        for name, peer in list(self._expired(now)):
            self.remove(name, peer)

    def _expired(self, now: float) -> Iterator[tuple[str, bytes]]:
        for name, registered in self._names.items():
            for peer, registration in registered.items():
                if registration.until <= now:
                    yield name, peer


@dataclass(slots=True)
class VisitSchedule:
    """Schedule of a node's visits to its points: at its start, to renew, and while it has few connections."""

    rng: random.Random = field(default_factory=random.Random)
    _renew: float = float("-inf")
    _again: float = float("-inf")
    _pause: float = _FIRST_PAUSE

    def is_due(self, connected: int, now: float) -> bool:
        """Return whether a visit is due."""
        if connected >= FEW:
            self._pause = _FIRST_PAUSE
        return now >= self._renew or (connected < FEW and now >= self._again)

    def note_visit(self, now: float) -> None:
        """Note that all points were asked; the pause doubles with each visit until there are enough connections."""
        self._renew = now + RENEW_SECONDS * self.rng.uniform(0.75, 1.0)
        self._again = now + self._pause * self.rng.uniform(0.75, 1.25)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


RENDEZVOUS = TProtocol("/rendezvous/1.0.0")

MAX_MESSAGE_BYTES = 64 * 1024
"""The longest message that either side reads."""

MAX_REQUESTS = 4
"""Requests answered on one stream."""

MAX_CALLERS = 64
"""Streams answered at one time."""

EXCHANGE_SECONDS = 10.0
"""Seconds that a request may take, on either side."""

_SUBSCRIBE_SECONDS = 3.0
_LOOK = 2.0
_POLL = 0.1


class RendezvousPoint:
    """Server for nodes that register and ask here, in the trio thread."""

    def __init__(self) -> None:
        self._register = Register()
        self._open_requests = OpenRequests(MAX_CALLERS)

    async def handle(self, stream: INetStream) -> None:
        """Answer the requests of one stream; an exception ends that stream."""
        wire: Any = stream.muxed_conn
        asker = wire.peer_id
        address, *_ = wire.get_remote_address() or ("",)
        network = network_of(str(address))
        try:
            for _ in range(MAX_REQUESTS):
                with self._open_requests.within(str(asker), EXCHANGE_SECONDS):
                    request = decode_request(await _receive(stream))
                    answer = self._answer(asker.to_bytes(), network, request)
                    if answer is not None:
                        await _send(stream, encode_message(answer))
        except (IncompleteReadError, StreamEOF):
            await stream.close()  # the client has sent all its requests

    def _answer(
        self, asker: bytes, network: str, request: RendezvousRequest
    ) -> RendezvousAnswer | None:
        now = trio.current_time()
        match request:
            case RegisterRequest():
                return self._register_node(asker, network, request, now)
            case DiscoverRequest(name, limit):
                return self._discover(asker, name, limit, now)
            case UnregisterRequest(name):
                self._register.remove(name, asker)
                return None  # as the specification has it

    def _register_node(
        self, asker: bytes, network: str, request: RegisterRequest, now: float
    ) -> RegisterAnswer:
        seconds = (
            LONGEST_SECONDS if request.seconds is None else min(request.seconds, LONGEST_SECONDS)
        )
        try:
            claim = verify_claim(request.record)
        except ValueError:
            return RegisterAnswer(RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD)
        if claim.peer != asker or not claim.addresses:
            return RegisterAnswer(RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD)
        node = Registration(asker, request.record, claim.sequence, now + seconds, network)
        return RegisterAnswer(self._register.add(request.name, node, now), seconds)

    def _discover(self, asker: bytes, name: str, limit: int, now: float) -> DiscoverAnswer:
        # A request for all names is refused: the names are what keeps meshes apart here.
        if not is_name(name):
            return DiscoverAnswer(RendezvousStatus.E_INVALID_NAMESPACE)
        nodes = self._register.sample_nodes(name, asker, limit, now)
        rows = (RegisterRequest(name, node.record, int(node.until - now)) for node in nodes)
        return DiscoverAnswer(RendezvousStatus.OK, tuple(rows))


class RendezvousClient:
    """Client that registers this node at its points and asks them for other nodes, when that is due."""

    def __init__(
        self, host: IHost, points: tuple[str, ...], name: str, node: RegisteredNode
    ) -> None:
        self._host = host
        self._points = points
        self._name = name
        self._node = node
        self._schedule = VisitSchedule()
        self._silent_points: set[str] = set()

    async def visit_forever(self) -> None:
        """Visit all points whenever that is due, until cancelled."""
        while True:
            if self._schedule.is_due(len(self._node.topic_peers()), trio.current_time()):
                addresses: dict[str, None] = {}
                for point in self._points:
                    try:
                        await self._visit(point, addresses)
                    except PeerUnreachable as error:
                        self._miss(point, error)
                    else:
                        self._silent_points.discard(point)
                if addresses:
                    self._node.take_discovered(tuple(addresses))
                self._schedule.note_visit(trio.current_time())
            await trio.sleep(_LOOK)

    def _miss(self, point: str, error: PeerUnreachable) -> None:
        # Logged once until the point answers: rounds follow each other quickly while no peer is known.
        if point not in self._silent_points:
            self._silent_points.add(point)
            _log.warning("a rendezvous point does not serve this node: %s", error)

    async def _visit(self, address: str, addresses: dict[str, None]) -> None:
        point = await self._node.dial_point(address)
        try:
            registered = await self._exchange(point, self._registration())
            answer = await self._exchange(point, DiscoverRequest(self._name, MAX_DISCOVERED))
        finally:
            await self._part(point)
        if isinstance(answer, DiscoverAnswer):
            addresses |= dict.fromkeys(addresses_in_answer(answer))
        if registered.status != RendezvousStatus.OK:
            raise PeerUnreachable(
                f"{point} did not register this node (status {registered.status})"
            )

    async def _part(self, point: PeerId) -> None:
        """Disconnect a point that is not of our mesh: its connection would cost traffic and count as a peer's."""
        with trio.move_on_after(_SUBSCRIBE_SECONDS) as patience:
            # Polled: the library does not report subscriptions.
            while point not in self._node.topic_peers():  # noqa: ASYNC110
                await trio.sleep(_POLL)
        if patience.cancelled_caught:
            await self._node.disconnect(point)

    async def _exchange(self, point: PeerId, request: RendezvousRequest) -> RendezvousAnswer:
        with (
            as_unreachable(f"{point} is not a rendezvous point"),
            trio.fail_after(EXCHANGE_SECONDS),
        ):
            stream = await self._host.new_stream(ID.from_string(point), [RENDEZVOUS])
            try:
                await _send(stream, encode_message(request))
                return decode_answer(await _receive(stream))
            finally:
                with ignore_errors():
                    await stream.close()

    def _registration(self) -> RegisterRequest:
        bare = [address.rpartition("/p2p/")[0] for address in self._node.addresses()]
        addresses = [Multiaddr(address) for address in bare[:MAX_ADDRESSES]]
        record = sign_peer_record(self._host.get_private_key(), addresses)
        return RegisterRequest(self._name, record, REGISTERED_SECONDS)


def addresses_in_answer(answer: DiscoverAnswer) -> list[str]:
    """Return the addresses in a point's answer unchecked; malformed ones are left out."""
    addresses: list[str] = []
    for row in answer.rows[:MAX_DISCOVERED]:
        # One by one: a point passes on whatever any node registered there.
        with ignore_errors():
            claim = _claim(row.record)
            for address in claim.addresses[:MAX_CLAIMED]:
                with ignore_errors():
                    addresses.append(f"{Multiaddr(address)}/p2p/{ID(claim.peer)}")
    return addresses


def _claim(record: bytes) -> PeerClaim:
    try:
        return verify_claim(record)
    except ValueError:
        return unsigned_claim_of(record)


async def _send(stream: INetStream, body: bytes) -> None:
    await stream.write(encode_uvarint(len(body)) + body)


async def _receive(stream: INetStream) -> bytes:
    return bytes(await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES))
