"""Rendezvous of strangers by libp2p's rendezvous protocol: nodes register at a point and ask it for others.

Both sides are ours and speak the library's messages, because its own service keeps no bound on what callers have it remember.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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
from registry.mesh.libp2p.rendezvous_book import (
    MAX_ADDRESSES,
    MAX_TOLD,
    REGISTERED_SECONDS,
    Register,
    Registration,
    Rounds,
    Verdict,
)
from registry.records import PeerId

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
    Verdict.OK: "OK",
    Verdict.BAD_NAME: "E_INVALID_NAMESPACE",
    Verdict.BAD_PEER: "E_INVALID_PEER_INFO",
    Verdict.BAD_TIME: "E_INVALID_TTL",
    Verdict.FULL: "E_UNAVAILABLE",
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
            verdict = self._register.add(given.ns, peer, now) if himself else Verdict.BAD_PEER
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
