"""Rendezvous of strangers by libp2p's rendezvous protocol: nodes register at a point and ask it for others.

Both sides are ours and speak the library's messages, because its own service keeps no bound on what callers have it remember.

Rules of rendezvous: who is told of whom at a point, and when a node asks there. Decided here with values; nothing is sent.

A point serves whoever comes, so everything that it remembers is bounded. Full means that newcomers are refused.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.discovery.rendezvous.pb.rendezvous_pb2 import Message
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from registry.errors import PeerUnreachable
from registry.mesh.discovered import MAX_CLAIMED
from registry.mesh.libp2p.guards import indifferent, unreachable
from registry.records import PeerId

MAX_NAMES = 256
"""Meshes that a point remembers nodes of."""

MAX_REGISTERED = 4_096
"""Nodes that a point remembers, all meshes together."""

MAX_NAMES_OF_ONE = 4
"""Meshes that one node may register in."""

MAX_NAME_CHARACTERS = 256
MAX_ADDRESSES = 8
MAX_ADDRESS_BYTES = 256

MAX_TOLD = 32
"""Nodes told of in one answer; of more, as many are drawn at random, so that no node gets all callers."""

LONGEST_SECONDS = 7_200
"""The longest time that a point remembers a node without hearing from it."""

REGISTERED_SECONDS = 3_600
"""For how long we ask to be remembered."""

RENEW_SECONDS = 900.0
"""Seconds between our registrations: a point that was restarted has forgotten us."""

FEW = 3
"""With fewer connections to nodes of our mesh than this we ask for more."""

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0


class RendezvousVerdict(Enum):
    """What a point says to a registration."""

    OK = auto()
    BAD_NAME = auto()
    BAD_PEER = auto()
    BAD_TIME = auto()
    FULL = auto()


@dataclass(frozen=True, slots=True)
class Registration:
    """Where a node says it can be dialled; `until` is on the point's own clock."""

    peer: bytes
    addresses: tuple[bytes, ...]
    until: float


def name_of(mesh: str, swarm_key: str | None) -> str:
    """Return the name under which nodes of one mesh register: it tells neither the mesh's word nor its key."""
    secret = f"modelvine/1/rendezvous\0{mesh}\0{swarm_key or ''}"
    return "modelvine/1/" + sha256(secret.encode()).hexdigest()[:32]


@dataclass(slots=True)
class Register:
    """What a point remembers."""

    rng: random.Random = field(default_factory=random.Random)
    _names: dict[str, dict[bytes, Registration]] = field(default_factory=dict)

    def add(self, name: str, given: Registration, now: float) -> RendezvousVerdict:
        """Remember a node, in place of what it said before."""
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            return RendezvousVerdict.BAD_NAME
        sizes = [len(address) for address in given.addresses]
        if not 0 < len(sizes) <= MAX_ADDRESSES or max(sizes) > MAX_ADDRESS_BYTES:
            return RendezvousVerdict.BAD_PEER
        if not now < given.until <= now + LONGEST_SECONDS:
            return RendezvousVerdict.BAD_TIME
        if given.peer not in self._names.get(name, ()) and not self._room(name, given.peer, now):
            return RendezvousVerdict.FULL
        self._names.setdefault(name, {})[given.peer] = given
        return RendezvousVerdict.OK

    def remove(self, name: str, peer: bytes) -> None:
        """Forget a node."""
        registered = self._names.get(name, {})
        registered.pop(peer, None)
        if not registered:
            self._names.pop(name, None)

    def told(self, name: str, asker: bytes, most: int, now: float) -> list[Registration]:
        """Return nodes of a mesh, without whoever asks."""
        found = [r for r in self._names.get(name, {}).values() if r.until > now and r.peer != asker]
        most = min(most, MAX_TOLD) if most > 0 else MAX_TOLD
        return self.rng.sample(found, min(len(found), most))

    def _room(self, name: str, peer: bytes, now: float) -> bool:
        if self._full(name):
            self._forget(now)
        of_one = sum(peer in registered for registered in self._names.values())
        return of_one < MAX_NAMES_OF_ONE and not self._full(name)

    def _full(self, name: str) -> bool:
        registered = sum(map(len, self._names.values()))
        return registered >= MAX_REGISTERED or (
            name not in self._names and len(self._names) >= MAX_NAMES
        )

    def _forget(self, now: float) -> None:
        for name, peer in list(self._past(now)):
            self.remove(name, peer)

    def _past(self, now: float) -> Iterator[tuple[str, bytes]]:
        for name, registered in self._names.items():
            for peer, registration in registered.items():
                if registration.until <= now:
                    yield name, peer


@dataclass(slots=True)
class Rounds:
    """When a node goes to its points: at its start, to be remembered on, and while it has few connections."""

    rng: random.Random = field(default_factory=random.Random)
    _renew: float = float("-inf")
    _again: float = float("-inf")
    _pause: float = _FIRST_PAUSE

    def due(self, connected: int, now: float) -> bool:
        """Say whether to go now."""
        if connected >= FEW:
            self._pause = _FIRST_PAUSE
        return now >= self._renew or (connected < FEW and now >= self._again)

    def done(self, now: float) -> None:
        """Note that all points were asked; the next time is later the more often it was of no use."""
        self._renew = now + RENEW_SECONDS * self.rng.uniform(0.75, 1.0)
        self._again = now + self._pause * self.rng.uniform(0.75, 1.25)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


_log = logging.getLogger("modelvine.mesh")

RENDEZVOUS = TProtocol("/rendezvous/1.0.0")

MAX_MESSAGE_BYTES = 64 * 1024
"""The longest message that is read, of either side."""

MAX_REQUESTS = 4
"""Requests answered on one stream."""

MAX_CALLERS = 64
"""Streams answered at one time; more are refused."""

EXCHANGE_SECONDS = 10.0
"""Seconds that a request may take, whoever makes it."""

_SUBSCRIBE_SECONDS = 3.0
_LOOK = 2.0
_POLL = 0.1


_STATUS = {
    RendezvousVerdict.OK: "OK",
    RendezvousVerdict.BAD_NAME: "E_INVALID_NAMESPACE",
    RendezvousVerdict.BAD_PEER: "E_INVALID_PEER_INFO",
    RendezvousVerdict.BAD_TIME: "E_INVALID_TTL",
    RendezvousVerdict.FULL: "E_UNAVAILABLE",
}


class Point:
    """Answers those who register and ask here, in the trio thread."""

    def __init__(self) -> None:
        self._register = Register()
        self._callers = 0

    async def handle(self, stream: INetStream) -> None:
        """Answer the requests of one stream; what it raises costs the caller that stream."""
        if self._callers >= MAX_CALLERS:
            await stream.reset()
            return
        self._callers += 1
        try:
            for _ in range(MAX_REQUESTS):
                with trio.fail_after(EXCHANGE_SECONDS):
                    request = await _receive(stream)
                    answer = self._answer(stream.muxed_conn.peer_id.to_bytes(), request)
                    await _send(stream, answer)
        except (IncompleteReadError, StreamEOF):
            await stream.close()  # the caller has said all
        finally:
            self._callers -= 1

    def _answer(self, asker: bytes, request: Message) -> Message:
        now, answer = trio.current_time(), Message()
        if request.type == Message.REGISTER:
            given = request.register
            peer = Registration(asker, tuple(given.peer.addrs), now + given.ttl)
            himself = given.peer.id == asker
            verdict = (
                self._register.add(given.ns, peer, now) if himself else RendezvousVerdict.BAD_PEER
            )
            answer.type = Message.REGISTER_RESPONSE
            answer.registerResponse.status = Message.ResponseStatus.Value(_STATUS[verdict])
            answer.registerResponse.ttl = given.ttl
        elif request.type == Message.DISCOVER:
            wanted = request.discover
            answer.type = Message.DISCOVER_RESPONSE
            for told in self._register.told(wanted.ns, asker, wanted.limit, now):
                row = answer.discoverResponse.registrations.add()
                row.ns, row.ttl = wanted.ns, int(told.until - now)
                row.peer.id = told.peer
                row.peer.addrs.extend(told.addresses)
        else:
            raise ValueError(f"no request: {request.type}")
        return answer


@dataclass(frozen=True, slots=True)
class Calls:
    """What a visitor may do to the node that it works for."""

    connect: Callable[[str], Awaitable[PeerId]]
    disconnect: Callable[[PeerId], Awaitable[None]]
    members: Callable[[], set[PeerId]]
    addresses: Callable[[], tuple[str, ...]]
    found: Callable[[tuple[str, ...]], None]


class Visitor:
    """Registers this node at its points and asks them for others, when that is due."""

    def __init__(self, host: IHost, points: tuple[str, ...], name: str, calls: Calls) -> None:
        self._host = host
        self._points = points
        self._name = name
        self._calls = calls
        self._rounds = Rounds()
        self._silent: set[str] = set()

    async def visit_forever(self) -> None:
        """Go round whenever it is due."""
        while True:
            if self._rounds.due(len(self._calls.members()), trio.current_time()):
                found: dict[str, None] = {}
                for point in self._points:
                    try:
                        found |= dict.fromkeys(await self._visit(point))
                    except PeerUnreachable as error:
                        self._miss(point, error)
                    else:
                        self._silent.discard(point)
                if found:
                    self._calls.found(tuple(found))
                self._rounds.done(trio.current_time())
            await trio.sleep(_LOOK)

    def _miss(self, point: str, error: PeerUnreachable) -> None:
        # Once until it answers: a round comes soon after the other while nobody is known.
        if point not in self._silent:
            self._silent.add(point)
            _log.warning("a rendezvous point does not answer: %s", error)

    async def _visit(self, address: str) -> list[str]:
        point = await self._calls.connect(address)
        try:
            await self._exchange(point, self._registration())
            return told_by(await self._exchange(point, self._question()))
        finally:
            await self._part(point)

    async def _part(self, point: PeerId) -> None:
        """Leave a point that is none of our mesh: held, its connection would cost traffic and count as one."""
        with trio.move_on_after(_SUBSCRIBE_SECONDS) as patience:
            # Polled: the library tells nobody of a subscription.
            while point not in self._calls.members():  # noqa: ASYNC110
                await trio.sleep(_POLL)
        if patience.cancelled_caught:
            await self._calls.disconnect(point)

    async def _exchange(self, point: PeerId, request: Message) -> Message:
        with unreachable(f"{point} is no rendezvous point"), trio.fail_after(EXCHANGE_SECONDS):
            stream = await self._host.new_stream(ID.from_string(point), [RENDEZVOUS])
            try:
                await _send(stream, request)
                return await _receive(stream)
            finally:
                with indifferent():
                    await stream.close()

    def _registration(self) -> Message:
        message = Message(type=Message.REGISTER)
        message.register.ns = self._name
        message.register.ttl = REGISTERED_SECONDS
        message.register.peer.id = self._host.get_id().to_bytes()
        bare = [address.rpartition("/p2p/")[0] for address in self._calls.addresses()]
        message.register.peer.addrs.extend(Multiaddr(a).to_bytes() for a in bare[:MAX_ADDRESSES])
        return message

    def _question(self) -> Message:
        message = Message(type=Message.DISCOVER)
        message.discover.ns = self._name
        message.discover.limit = MAX_TOLD
        return message


def told_by(answer: Message) -> list[str]:
    """Return the addresses in a point's answer, as they stand; what is malformed is left out."""
    told: list[str] = []
    for row in answer.discoverResponse.registrations[:MAX_TOLD]:
        for address in row.peer.addrs[:MAX_CLAIMED]:
            # One by one: a point hands on what anybody registered there.
            with indifferent():
                told.append(f"{Multiaddr(address)}/p2p/{ID(row.peer.id)}")
    return told


async def _send(stream: INetStream, message: Message) -> None:
    body = message.SerializeToString()
    await stream.write(encode_uvarint(len(body)) + body)


async def _receive(stream: INetStream) -> Message:
    message = Message()
    message.ParseFromString(await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES))
    return message
