"""Records that every node passes on, and that cost most to read: the most services, and frames of the greatest size.

Each is well made and its author's own, so each node that holds it has read it.
"""

import struct
from collections.abc import Callable, Mapping

import orjson
import trio

from registry import wire
from registry.signing import Identity
from tests.swarm.attacks.comparisons import liar
from tests.swarm.attacks.target import MESHSUB, Attack, Target, message

_EACH, _PAUSE = 4, 1.5
_MANY = range(wire.MAX_SERVICES)


def _body(sequence: int, services: list[list[object]], later: bytes = b"") -> bytes:
    fields = {"version": [1_700_000_000, sequence], "standing": "serving", "services": services}
    return orjson.dumps(fields)[:-1] + later + b"}"


SHAPES: Mapping[str, Callable[[int], bytes]] = {
    "long names": lambda n: _body(n, [["p", f"{n}-{m:090}", "", 0] for m in _MANY]),
    "emoji": lambda n: _body(
        n, [["p", f"\U0001f600\u0939\u093f{'🐘' * 18}{n}-{m}", "", 0] for m in _MANY]
    ),
    "projects": lambda n: _body(n, [[f"p{m:050}", f"m{n}-{m:030}", "", 0] for m in _MANY]),
    "replicas of one model": lambda n: _body(n, [["p", "m", f"{n}-{m:070}", 0] for m in _MANY]),
    "the longest names": lambda n: _body(
        n, [["p" * 250 + f"{m:06}", f"{n:010}" * 25 + f"{m:06}", "", 0] for m in range(450)]
    ),
    "deep members of later versions": lambda n: _body(
        n, [], b',"later":[' + b",".join([b"[" * 150 + b"]" * 150] * 850) + b"]"
    ),
    "empty members of later versions": lambda n: _body(
        n, [], b',"later":[' + b"[]," * 87_000 + b"1]"
    ),
}


def frame_of(author: Identity, body: bytes) -> bytes:
    """Seal a body as its author's record."""
    signature = author.sign(wire.DOMAINS[wire.RECORD], body)
    return bytes((wire.VERSION, wire.RECORD)) + author.public + signature + body


async def worst_records(target: Target) -> None:
    """Join as a member for each shape in turn, and gossip as many new records of it at once as an author may."""
    for shape in SHAPES.values():
        async with liar(target, equal=True) as peer:
            frames = [frame_of(peer.identity, shape(number)) for number in range(1, _EACH + 1)]
            stream = await peer.host.new_stream(peer.victim, [MESHSUB])
            for number, frame in enumerate(frames):
                gossip = message(frame, peer.identity, struct.pack("!Q", number))
                await peer.publish(gossip, stream=stream)
            await trio.sleep(_PAUSE)


KINDS: Mapping[str, Attack] = {"records of the worst shapes": worst_records}
