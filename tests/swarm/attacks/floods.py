"""Many identities: each signs its own record, all are told by one peer."""

import struct
from collections.abc import Mapping

import trio

from tests.swarm.attacks.streams import batch, record
from tests.swarm.attacks.target import MESHSUB, Attack, Target, message

IDENTITIES = 10_000
_PUSHED = 1_000


async def pushed(target: Target) -> None:
    """Push the records of 10,000 identities, as many at once as a batch holds."""
    async with target.peer() as peer:
        for _ in range(IDENTITIES // _PUSHED):
            frames = [record(target.identity()) for _ in range(_PUSHED)]
            with trio.move_on_after(5):
                await peer.ask(b"P" + batch(frames), wait=5)


async def gossiped(target: Target) -> None:
    """Gossip the records of 10,000 identities, each message signed by its author."""
    async with target.peer() as peer:
        stream = await peer.host.new_stream(peer.victim, [MESHSUB])
        for number in range(IDENTITIES // 50):
            authors = [target.identity() for _ in range(50)]
            said = [message(record(a), a, struct.pack("!Q", number)) for a in authors]
            await peer.publish(*said, stream=stream)


KINDS: Mapping[str, Attack] = {
    "10,000 identities pushed": pushed,
    "10,000 identities gossiped": gossiped,
}
