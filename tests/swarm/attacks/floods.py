"""Floods of valid records: many identities, heavy ones, and a member that is never quiet."""

import struct
from collections.abc import Mapping

import trio

from registry import wire
from registry.records import Reach, Record, Version
from tests.swarm.attacks.streams import batch, record
from tests.swarm.attacks.target import MESHSUB, Attack, Target, message

IDENTITIES = 10_000
_PUSHED = 1_000
THIRD_PARTY = "127.0.0.50", range(7301, 7317)
_HEAVY, _IN_ONE, _MODELS = 102, 3, 2_000
_LOUD_SECONDS, _A_SECOND = 10, 17


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
            messages = [message(record(a), a, struct.pack("!Q", number)) for a in authors]
            await peer.publish(*messages, stream=stream)


async def told_both_ways(target: Target) -> None:
    """Push and gossip the records of 1,000 identities for five seconds, over one connection."""
    authors = [target.identity() for _ in range(_PUSHED)]
    async with target.peer() as peer:
        stream = await peer.host.new_stream(peer.victim, [MESHSUB])
        for number in range(5):
            some = authors[number * 200 :][:200]
            messages = [message(record(a), a, struct.pack("!Q", number)) for a in some[::2]]
            for start in range(0, len(messages), 50):
                await peer.publish(*messages[start : start + 50], stream=stream)
            with trio.move_on_after(1):
                await peer.ask(b"P" + batch([record(a) for a in some[1::2]]), wait=1)
            await trio.sleep(0.5)


async def naming_a_third_party(target: Target) -> None:
    """Push 100 records that all name 16 addresses of a third party, which every node would dial."""
    host, ports = THIRD_PARTY
    frames = []
    for _ in range(100):
        author = target.identity()
        addresses = tuple(f"/ip4/{host}/tcp/{port}/p2p/{author.peer}" for port in ports)
        unsigned = Record(author.peer, Version(1_700_000_000, 1), reach=Reach(mesh=addresses))
        frames.append(wire.encode_record(unsigned, author).frame)
    async with target.peer() as peer:
        await peer.ask(b"P" + batch(frames), wait=5)


async def heavy(target: Target) -> None:
    """Push the records of 102 identities that serve as many models as a record holds, a few at once."""
    async with target.peer() as peer:
        for _ in range(_HEAVY // _IN_ONE):
            frames = [record(target.identity(), models=_MODELS) for _ in range(_IN_ONE)]
            with trio.move_on_after(5):
                await peer.ask(b"P" + batch(frames), wait=5)


async def loud(target: Target) -> None:
    """Gossip a record of 2,000 other names 17 times a second, as a member that the victim is connected to."""
    async with target.peer() as peer:
        stream = await peer.host.new_stream(peer.victim, [MESHSUB])
        for number in range(_LOUD_SECONDS * _A_SECOND):
            frame = record(peer.identity, ahead=number, models=_MODELS)
            await peer.publish(
                message(frame, peer.identity, struct.pack("!Q", number)), stream=stream
            )
            await trio.sleep(1 / _A_SECOND)


KINDS: Mapping[str, Attack] = {
    "10,000 identities pushed": pushed,
    "10,000 identities gossiped": gossiped,
    "1,000 identities told both ways": told_both_ways,
    "a third party's addresses": naming_a_third_party,
    "102 heavy identities pushed": heavy,
    "a loud member": loud,
}
