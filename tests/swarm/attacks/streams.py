"""Attacks on streams of known protocols: identify, ping, pubsub, our questions and pipes, each spoken wrongly."""

import struct
from collections.abc import Mapping, Sequence

import orjson
import trio
from libp2p.custom_types import TProtocol
from libp2p.pubsub.pb import rpc_pb2

from registry import wire
from registry.records import Record, Service, Version
from registry.signing import Identity
from tests.swarm.attacks.target import ASK, MESHSUB, PIPE, TOPIC, Attack, Target, prefixed

IDENTIFY = TProtocol("/ipfs/id/1.0.0")
PUSHED = TProtocol("/ipfs/id/push/1.0.0")
PING = TProtocol("/ipfs/ping/1.0.0")

_FRAME = struct.Struct(">fI")


def _on(protocol: TProtocol, *payloads: bytes) -> Attack:
    async def attack(target: Target) -> None:
        # Each on a connection of its own: the first may cost the peer its connection.
        for payload in payloads:
            async with target.peer() as peer:
                await peer.say(protocol, payload)

    return attack


def _asking(*questions: bytes, wait: float = 0.3) -> Attack:
    async def attack(target: Target) -> None:
        async with target.peer() as peer:
            for question in questions:
                with trio.move_on_after(4):
                    await peer.ask(question, wait=wait)

    return attack


def record(identity: Identity, *, ahead: int = 0, models: int = 1) -> bytes:
    """Return the frame of a record of made-up models, with other names for each identity and `ahead`."""
    names = (f"spam-{identity.peer[-12:]}-{ahead}-{number}" for number in range(models))
    services = tuple(Service("spam", name) for name in names)
    unsigned = Record(identity.peer, Version(1_700_000_000 + ahead, 1), services=services)
    return wire.encode_record(unsigned, identity).frame


def batch(frames: Sequence[bytes], age: float = 0.0) -> bytes:
    """Pack frames as a push has them."""
    return b"".join(_FRAME.pack(age, len(frame)) + frame for frame in frames)


async def batches_that_lie(target: Target) -> None:
    good = record(target.identity())
    lies = (
        b"P" + _FRAME.pack(0.0, 2**32 - 1) + good,
        b"P" + _FRAME.pack(0.0, len(good) + 1) + good,
        b"P" + batch([good])[:-1],
        b"P" + batch([good]) + b"\0" * 7,
        b"P" + _FRAME.pack(float("nan"), 0) * 40_000,
        b"P" + batch([good], float("inf")) + batch([b""]),
        b"P" + batch([good[:98]]) * 4_000,
    )
    await _asking(*lies)(target)


async def mebibytes_of_zeros(target: Target) -> None:
    for size in (2, 8):
        zeros = bytes(size * 1024 * 1024 - 1)
        await _asking(*(bytes([kind]) + zeros for kind in b"clpPhv?\0"))(target)


async def ten_thousand_questions(target: Target) -> None:
    async with target.peer() as peer:
        with trio.move_on_after(4):
            for n in range(10_000):
                await peer.ask(b"c" + n.to_bytes(32, "big"), wait=0.2)


def _subscriptions(count: int) -> bytes:
    rows = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"none/{n}") for n in range(count)]
    return prefixed(rpc_pb2.RPC(subscriptions=rows).SerializeToString())


def _control() -> bytes:
    grafts = [rpc_pb2.ControlGraft(topicID=t) for t in (TOPIC, "none", "") * 200]
    prunes = [rpc_pb2.ControlPrune(topicID=TOPIC, backoff=2**60)] * 200
    names = [b"00" * 40, b"no hex", b"\xff\x00", b"(" * 500]
    haves = [rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=names)] * 200
    wants = [rpc_pb2.ControlIWant(messageIDs=names)] * 200
    control = rpc_pb2.ControlMessage(graft=grafts, prune=prunes, ihave=haves, iwant=wants)
    return prefixed(rpc_pb2.RPC(control=control).SerializeToString())


def _undecodable_key() -> bytes:
    gossip = rpc_pb2.Message(
        from_id=b"\x12\x20" + bytes(32),
        seqno=bytes(8),
        data=b"frame",
        topicIDs=[TOPIC],
        signature=bytes(64),
        key=b"\xff\xff\xff no key",
    )
    return prefixed(rpc_pb2.RPC(publish=[gossip]).SerializeToString())


CIRCUIT = "/libp2p/circuit/relay/0.2.0"
_JUNK = (b"", b"\0", b"\xff" * 64, b"\x80" * 12, prefixed(b"\xff" * 40), b"\x05ab")

KINDS: Mapping[str, Attack] = {
    "identify spoken wrongly": _on(IDENTIFY, *_JUNK),
    "an identity pushed that is none": _on(PUSHED, *_JUNK, prefixed(b"\x12\x04" + bytes(4) * 2000)),
    "ping spoken wrongly": _on(PING, b"short", bytes(31), bytes(33), bytes(500_000)),
    "pubsub that is no protobuf": _on(MESHSUB, *_JUNK),
    "pubsub beyond its limit": _on(
        MESHSUB, prefixed(bytes(600_000)), b"\xff\xff\xff\x7f" + bytes(1000)
    ),
    "pubsub groups nested 200,000 deep": _on(
        MESHSUB, prefixed(b"\x2b" * 200_000), prefixed(b"\x1a\x7f" * 900)
    ),
    "a key that cannot be decoded": _on(MESHSUB, _undecodable_key()),
    "a message of nobody": _on(
        MESHSUB,
        prefixed(rpc_pb2.RPC(publish=[rpc_pb2.Message(topicIDs=[TOPIC])]).SerializeToString()),
    ),
    "an envelope that is none": _on(
        MESHSUB, prefixed(rpc_pb2.RPC(senderRecord=b"\xff" * 99).SerializeToString())
    ),
    "5,000 subscriptions": _on(MESHSUB, _subscriptions(5_000), _subscriptions(90)),
    "control messages by the hundred": _on(MESHSUB, _control()),
    "pipes spoken wrongly": _on(
        PIPE,
        *_JUNK,
        b"\0" + b"\xff" * 4,
        b"\x01" + b"\xff" * 4,
        b"\x02" + bytes(4) + b"\x02" + bytes(4),
    ),
    "circuits asked for wrongly": _on(TProtocol(f"{CIRCUIT}/hop"), *_JUNK),
    "circuits brought wrongly": _on(TProtocol(f"{CIRCUIT}/stop"), *_JUNK),
    "dialling back asked for wrongly": _on(TProtocol("/libp2p/autonat/1.0.0"), *_JUNK),
    "lengths of questions that lie": _on(
        ASK, *_JUNK, b"\xff" * 4, struct.pack("!I", 8 << 20) + b"c", struct.pack("!I", 5)
    ),
    "digests that are none": _asking(
        b"", b"c", b"c" + bytes(31), b"c" + bytes(33), b"\xff", b"h1", b"z" * 100
    ),
    "buckets that make no sense": _asking(
        *(
            b"l" + b
            for b in (
                b"",
                b"{}",
                b'{"buckets":[1e999]}',
                b'{"buckets":' + b"[" * 200_000,
                orjson.dumps({"buckets": [*range(65)]}),
                b'{"buckets":[-1,99,"a"]}',
                b'{"buckets":[' + b"9" * 200_000 + b"]}",
            )
        )
    ),
    "pulls that make no sense": _asking(
        *(
            b"p" + b
            for b in (
                b"",
                b"[]",
                b'{"nodes":[1]}',
                b'{"nodes":["' + b"a" * 100_000 + b'"]}',
                orjson.dumps({"nodes": ["12D3KooW"] * 20_001}),
                orjson.dumps({"nodes": ["\u0000", "\ud7ff"]}),
                b'{"nodes":["\xff"]}',
            )
        )
    ),
    "challenges that are none": _asking(
        b"?",
        b"?" + bytes(15),
        b"?" + bytes(17),
        b"v",
        b"v" + bytes(16) + b"\xff" * 60,
        b"v" + bytes(16) + b"1" * 100_000,
        b"v" + bytes(16) + b"Qm" + b"z" * 44,
    ),
    "batches with lying lengths": batches_that_lie,
    "2 and 8 MiB of zeros": mebibytes_of_zeros,
    "questions without end": ten_thousand_questions,
}
