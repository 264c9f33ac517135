"""Comparisons that lie, and claims that cause them.

Listings of the greatest length, of nodes that do not exist; the most expensive questions; heartbeats of newer records.
"""

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from itertools import cycle
from random import Random

import orjson
import trio
from libp2p.abc import INetStream
from libp2p.network.stream.exceptions import StreamError

from registry import wire
from registry.errors import PeerUnreachable
from registry.mesh.libp2p.ask import read_exactly
from registry.records import Heartbeat, Version
from registry.signing import Identity, peer_of
from registry.sync import EQUAL
from tests.swarm.attacks.streams import batch, record
from tests.swarm.attacks.target import MESHSUB, Attack, Peer, Target, attempt, message

LISTED = 19_900
_SECONDS = 10.0
_AT_ONCE = 8
"""Newcomers at one time; each stays as long as a comparison takes."""

_A_NEWCOMER_STAYS = 2.0
_A_SECOND, _A_SECOND_SLOWLY = 290, 10


@cache
def _names() -> tuple[str, ...]:
    # Names only: there are no such nodes.
    random = Random(1)
    return tuple(peer_of(random.randbytes(32)) for _ in range(LISTED))


@cache
def _listing() -> bytes:
    return orjson.dumps({"held": {node: [1_700_000_000, 1, "00" * 8] for node in _names()}})


def _answer(identity: Identity, equal: bool, question: bytes) -> bytes:
    """Answer a comparison: all is equal; or all differs, with a listing of records that cannot be fetched."""
    match question[:1]:
        case b"c":
            return EQUAL if equal else bytes(512)
        case b"l":
            return _listing()
        case b"?":
            return wire.encode_proof(question[1:], identity)
    return b""


async def _serve(identity: Identity, equal: bool, stream: INetStream) -> None:
    with suppress(StreamError, PeerUnreachable):
        while True:
            (size,) = struct.unpack("!I", await read_exactly(stream, 4))
            answer = _answer(identity, equal, await read_exactly(stream, size))
            await stream.write(struct.pack("!I", len(answer)) + answer)


@asynccontextmanager
async def liar(target: Target, *, equal: bool = False) -> AsyncIterator[Peer]:
    """Take part in the mesh, and answer each comparison with made-up nodes, or that all is equal."""
    identity = target.identity()
    async with target.peer(identity, handler=partial(_serve, identity, equal)) as peer:
        yield peer


async def _claim(peer: Peer, authors: Sequence[Identity], *, a_second: int) -> None:
    """Gossip heartbeats of versions that do not exist, by each of the authors in turn."""
    stream = await peer.host.new_stream(peer.victim, [MESHSUB])
    messages = [message(record(author), author, struct.pack("!Q", 0)) for author in authors]
    turns = zip(range(1, int(_SECONDS * a_second)), cycle(authors), strict=False)
    for number, author in turns:
        beat = Heartbeat(author.peer, Version(1_800_000_000 + number, 1), number)
        frame = wire.encode_heartbeat(beat, author)
        messages.append(message(frame, author, struct.pack("!Q", number)))
        if len(messages) >= a_second // 10:
            await peer.publish(*messages, stream=stream)
            messages = []
            await trio.sleep(0.1)


async def listed_by_a_member(target: Target) -> None:
    """Bring in as many strangers as a peer may, then answer comparisons and start them, again and again."""
    request = b"p" + orjson.dumps({"nodes": _names()})
    buckets = b"l" + orjson.dumps({"buckets": [*range(64)]})
    async with liar(target) as peer, trio.open_nursery() as nursery:
        await peer.ask(b"P" + batch([record(target.identity()) for _ in range(128)]))
        nursery.start_soon(partial(_claim, peer, [peer.identity], a_second=_A_SECOND_SLOWLY))
        with trio.move_on_after(_SECONDS):
            while True:
                for question in (b"c" + bytes(32), buckets, request):
                    await peer.ask(question, wait=0.5)
        nursery.cancel_scope.cancel()


async def listed_by_newcomers(target: Target) -> None:
    """Come with a new identity each time, since the victim compares with each newcomer."""

    async def come() -> None:
        async with liar(target):
            await trio.sleep(_A_NEWCOMER_STAYS)

    async def come_and_go() -> None:
        while True:
            await attempt(lambda _: come(), target)

    with trio.move_on_after(_SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(come_and_go)


async def newer_words(target: Target) -> None:
    """Claim newer records of its own, and answer each question for them that all is equal."""
    async with liar(target, equal=True) as peer:
        await _claim(peer, [peer.identity], a_second=_A_SECOND)


async def newer_words_of_a_hundred(target: Target) -> None:
    """Claim newer records of as many strangers as a peer may bring in."""
    authors = [target.identity() for _ in range(100)]
    async with liar(target, equal=True) as peer:
        await _claim(peer, authors, a_second=_A_SECOND)


KINDS: Mapping[str, Attack] = {
    "19,900 made-up nodes listed by a member": listed_by_a_member,
    "19,900 made-up nodes listed by newcomers": listed_by_newcomers,
    "newer words of itself": newer_words,
    "newer words of 100 strangers": newer_words_of_a_hundred,
}
