"""Garbage and greed: each is an offence of the peer that sends it, and no few peers hold all pipes."""

import asyncio
from contextlib import suppress

import pytest
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError

from registry.errors import PeerUnreachable
from registry.mesh import PeerMisbehaved
from registry.mesh.libp2p import guards
from tests.registry.mesh.libp2p.test_faults import prefixed, send_raw, world
from tests.registry.mesh.worlds import LibP2PWorld, until

__all__ = ["world"]


@pytest.mark.parametrize(
    ("protocol", "garbage"),
    [
        ("/modelvine/pipe/1", b"\xff" * 100),
        ("/libp2p/circuit/relay/0.2.0/hop", prefixed(b"\xff" * 40)),
        ("/libp2p/circuit/relay/0.2.0/stop", prefixed(b"\xff" * 40)),
        ("/libp2p/autonat/1.0.0", prefixed(b"\xff" * 40)),
    ],
)
async def test_garbage_is_an_offence_of_its_sender(
    world: LibP2PWorld, protocol: str, garbage: bytes
) -> None:
    victim = await world.seat("victim", relay=True)
    liar = await world.seat("liar", victim)
    await send_raw(liar, victim, TProtocol(protocol), garbage)
    await until(lambda: PeerMisbehaved(liar.mesh.peer) in victim.seen)


async def test_streams_without_end_are_offences_whatever_is_said_on_them(
    world: LibP2PWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "STREAMS_AT_ONCE", 20.0)
    monkeypatch.setattr(guards, "STREAMS_PER_SECOND", 0.001)
    victim = await world.seat("victim")
    honest = await world.seat("honest", victim)
    liar = await world.seat("liar", victim)
    for _ in range(21):
        with suppress(BaseLibp2pError):
            await send_raw(liar, victim, TProtocol("/ipfs/ping/1.0.0"), bytes(32))
    await until(lambda: PeerMisbehaved(liar.mesh.peer) in victim.seen)
    assert PeerMisbehaved(honest.mesh.peer) not in victim.seen


async def test_neither_one_peer_nor_two_hold_all_pipes(world: LibP2PWorld) -> None:
    host = await world.seat("host", max_pipes=4)
    greedy, second = await world.seat("greedy", host), await world.seat("second", host)
    other = await world.seat("other", host)
    pipes = [await greedy.mesh.open_pipe(host.mesh.peer, timeout=5) for _ in range(3)]
    with pytest.raises(PeerUnreachable):
        async with asyncio.timeout(10):
            await pipes[2].read()
    assert host.mesh.refusal_counts()["streams_refused"] == 1
    # A second one gets a third of the places, which leaves one for others.
    more = [await second.mesh.open_pipe(host.mesh.peer, timeout=5) for _ in range(2)]
    with pytest.raises(PeerUnreachable):
        async with asyncio.timeout(10):
            await more[1].read()
    late = await other.mesh.open_pipe(host.mesh.peer, timeout=5)
    await late.write(b"there is room")
    assert await late.read() == b"there is room"
