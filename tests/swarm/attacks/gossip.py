"""Attacks inside well-made gossip messages: frames with every defect, forgeries, replays, and floods."""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import orjson
import trio

from registry import wire
from registry.records import Doubt, Heartbeat, Version
from registry.signing import Identity, public_of
from tests.swarm.attacks.streams import batch, record
from tests.swarm.attacks.target import MESHSUB, Attack, Target, attempt, message

FORGERIES = 200
BAD_SIGNATURES = 2_000

_EACH = 15
"""Frames that one identity sends, so that each is judged: some twenty offences cost it its connection."""

_AT_ONCE = 6
"""Identities that dial at one time: libp2p waits a quarter of a second in each dial."""


def _sealed(identity: Identity, body: bytes, kind: int = wire.RECORD) -> bytes:
    signature = identity.sign(wire.DOMAINS.get(kind, b""), body)
    return bytes((wire.VERSION, kind)) + identity.public + signature + body


def _body(**changes: object) -> bytes:
    fields = {"version": [1, 1], "standing": "serving", "services": [["p", "m", "", 0]]}
    return orjson.dumps({**fields, **changes})


def _bodies() -> Iterable[bytes]:
    """Yield bodies that are no record, each for another reason."""
    yield from (b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"version":[1,1]}', b"1" * 200_000)
    yield from (b"[" * 250_000, b'{"a":' * 40_000, b'{"version":' + b"[" * 200_000)
    yield b'{"version":[1,1],"version":[2,2],"standing":"serving","services":[],"services":7}'
    yield b'{"version":[NaN,Infinity],"standing":"serving","services":[]}'
    yield b'{"version":[' + b"9" * 100_000 + b',1],"standing":"serving","services":[]}'
    for version in ([1], [1, 2, 3], [-1, 0], [2**53, 0], [1.5, 1], ["1", 1], [True, 1], None, {}):
        yield _body(version=version)
    for services in (
        7,
        [[]],
        [["p", "m", "", "0"]],
        [["p", "m", "", True]],
        [["", "m", "", 0]],
        [["p", "m\u202e", "", 0]],
        [["p" * 257, "m", "", 0]],
        [["p", "m", "", 0]] * 2,
        [["p", f"{n}", "", 0] for n in range(2_001)],
        [["p", {"m": []}, "", 0]],
    ):
        yield _body(services=services)
    for name, value in {
        "standing": "emperor",
        "mesh": ["a b"],
        "links": ["x" * 257],
        "certificate": "&&&",
        "agent": "a" * 129,
    }.items():
        yield _body(**{name: value})
    yield _body(links=["1.2.3.4:5"] * 17)


def _frames(identity: Identity) -> Iterable[bytes]:
    """Yield frames that no node may accept."""
    good = record(identity)
    yield from (b"", b"\x01", good[:97], good[:98], good + b" ", bytes(len(good)))
    yield from (bytes((version,)) + good[1:] for version in (0, 2, 255))
    yield from (good[:1] + bytes((kind,)) + good[2:] for kind in (0, 2, 3, 4, 6, 99, 255))
    yield good[:2] + bytes(32) + good[34:]
    yield good[:2] + b"\xec" + b"\xff" * 30 + b"\x7f" + good[34:]
    yield good[:34] + bytes(64) + good[98:]
    yield good[:34] + good[34:66] + b"\xff" * 32 + good[98:]
    yield from (_sealed(identity, body) for body in _bodies())
    for kind, size in ((wire.HEARTBEAT, 24), (wire.DOUBT, 56), (wire.PROOF, 16)):
        for length in (0, size - 1, size + 1, 5_000):
            yield _sealed(identity, bytes(length), kind)
        yield _sealed(identity, b"\xff" * size, kind)
    yield _sealed(identity, bytes(16), wire.PROOF)


def _gossiping(make: Callable[[Target, Identity], Iterable[bytes]], *, each: int = _EACH) -> Attack:
    """Return an attack that gossips frames in their sender's own name: a few by each of many identities."""

    async def attack(target: Target) -> None:
        count = len([*make(target, target.identity())])
        starts = iter(range(0, count, each))

        async def go_on() -> None:
            for start in starts:
                identity = target.identity()
                part = [*islice(make(target, identity), start, start + each)]
                await attempt(partial(_gossip, identity, part), target)

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(go_on)

    return attack


async def _gossip(identity: Identity, frames: Sequence[bytes], target: Target) -> None:
    async with target.peer(identity) as peer:
        stream = await peer.host.new_stream(peer.victim, [MESHSUB])
        for number, frame in enumerate(frames):
            await peer.publish(message(frame, identity, struct.pack("!Q", number)), stream=stream)
        # A victim that answers this has most likely read what came before it.
        await peer.ask(b"?" + bytes(16))


async def frames_pushed(target: Target) -> None:
    """Push the frames that are gossiped as well, each on its own, and a few by each peer."""
    frames = [*_frames(target.identity())]
    with trio.move_on_after(10):
        for start in range(0, len(frames), 15):
            async with target.peer() as peer:
                for frame in frames[start : start + 15]:
                    await peer.ask(b"P" + batch([frame[:262_000]]), wait=0.1)


def _badly_signed(target: Target, identity: Identity) -> Iterable[bytes]:
    good = record(identity)
    for _ in range(BAD_SIGNATURES):
        yield good[:34] + target.random.randbytes(64) + good[98:]


async def unsigned_messages(target: Target) -> None:
    """Gossip messages with a good frame whose libp2p signature is wrong, missing, or another's."""
    async with target.peer() as peer:
        stream = await peer.host.new_stream(peer.victim, [MESHSUB])
        for number in range(300):
            identity = target.identity()
            gossip = message(record(identity), identity, struct.pack("!Q", number))
            gossip.signature = (b"", bytes(64), os.urandom(64))[number % 3]
            await peer.publish(gossip, stream=stream)


def _forged(target: Target, identity: Identity) -> Iterable[bytes]:
    victim = target.address.rpartition("/p2p/")[2]
    for ahead in range(FORGERIES):
        own = record(identity, ahead=ahead)
        yield own[:2] + public_of(victim) + own[34:]


def _replayed(target: Target, identity: Identity) -> Iterable[bytes]:
    other = target.identity()
    frames = [record(other)]
    frames += [
        wire.encode_heartbeat(Heartbeat(other.peer, Version(1_700_000_000, 1), n), other)
        for n in range(20)
    ]
    frames += [
        wire.encode_doubt(Doubt(other.peer, Version(1_700_000_000, 1), n, identity.peer), other)
        for n in range(20)
    ]
    frames += [wire.encode_proof(bytes(16), other)]
    for _ in range(10):
        yield from frames


def _beats_of_strangers(target: Target, identity: Identity) -> Iterable[bytes]:
    for beat in range(500):
        version = Version(2**53 - 1, beat)
        yield wire.encode_heartbeat(Heartbeat(identity.peer, version, beat), identity)


def _changes(target: Target, identity: Identity) -> Iterable[bytes]:
    return (record(identity, ahead=n) for n in range(1_000))


KINDS: Mapping[str, Attack] = {
    "frames with every defect": _gossiping(lambda _, identity: _frames(identity)),
    "the same frames pushed": frames_pushed,
    "200 forgeries": _gossiping(_forged),
    "2,000 bad signatures": _gossiping(_badly_signed),
    "300 messages that libp2p did not sign": unsigned_messages,
    "another's frames replayed": _gossiping(_replayed),
    "heartbeats of a node without a record": _gossiping(_beats_of_strangers, each=500),
    "1,000 changes of one record": _gossiping(_changes, each=1_000),
}
