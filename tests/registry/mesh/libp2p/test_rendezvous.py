"""Nodes that know nothing but a rendezvous point find each other there, over real sockets."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.discovery.rendezvous.pb.rendezvous_pb2 import Message
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr

from registry.mesh import Origin
from registry.mesh.discovered import MAX_CLAIMED, claim_in
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.mesh.libp2p.rendezvous import MAX_MESSAGE_BYTES, RENDEZVOUS, told_by
from tests.registry.mesh.worlds import Seat, echo, identity, return_everything, settings, until

Seating = Callable[..., Awaitable[Seat]]


@pytest.fixture
async def seat() -> AsyncIterator[Seating]:
    seats: list[Seat] = []

    async def start(who: str, *points: Seat, topic: str = "modelvine/1", **changes: object) -> Seat:
        rendezvous = tuple(address for p in points for address in p.mesh.addresses())
        made = settings(rendezvous=rendezvous, **changes)
        seats.append(Seat(LibP2PMesh(identity(who), made, topic=topic)))
        await seats[-1].mesh.start(echo, return_everything)
        return seats[-1]

    yield start
    for each in seats:
        await each.mesh.stop()


def all_met(*seats: Seat) -> bool:
    peers = {seat.mesh.peer for seat in seats}
    return all(seat.peers() >= peers - {seat.mesh.peer} for seat in seats)


async def test_strangers_meet_at_a_point_of_another_mesh_and_stay_when_it_is_gone(
    seat: Seating,
) -> None:
    point = await seat("point", topic="another/1", rendezvous_point=True)
    three = [await seat(name, point) for name in ("first", "second", "third")]
    await until(lambda: all_met(*three), within=40)
    origins = {c.origin for s in three for c in s.mesh.connections() if c.peer != point.mesh.peer}
    assert Origin.RENDEZVOUS in origins
    # A point that is not of the mesh is left as soon as it has answered.
    await until(lambda: not point.peers(), within=20)
    await point.mesh.stop()
    await until(lambda: all_met(*three))


async def test_a_point_of_the_mesh_itself_stays_connected(seat: Seating) -> None:
    point = await seat("point", rendezvous_point=True)
    first = await seat("first", point)
    await until(lambda: all_met(first, point))
    assert [c.origin for c in first.mesh.connections()] == [Origin.RENDEZVOUS]


async def test_nodes_of_meshes_with_other_names_do_not_meet(seat: Seating) -> None:
    point = await seat("point", topic="another/1", rendezvous_point=True)
    other = await seat("other", point, name="other")
    await until(lambda: bool(point.peers()))
    one, two = await seat("one", point, name="mine"), await seat("two", point, name="mine")
    await until(lambda: all_met(one, two), within=40)
    assert other.mesh.peer not in one.peers() | two.peers()


REGISTER = Message(type=Message.REGISTER)
GARBAGE = [
    b"",
    b"\xff" * 12,
    os.urandom(300),
    bytes([0x80 | (MAX_MESSAGE_BYTES & 0x7F), 0xFF, 0xFF, 0x7F]),
    b"\x02\xff\xff",
    b"\x02\x08\x05",
    bytes([len(REGISTER.SerializeToString())]) + REGISTER.SerializeToString(),
]


async def test_malformed_messages_cost_a_point_nothing(seat: Seating) -> None:
    point = await seat("point", rendezvous_point=True)
    address = point.mesh.addresses()[0]

    async def attack(host: IHost) -> None:
        info = info_from_p2p_addr(Multiaddr(address))
        async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            await host.connect(info)
            for garbage in GARBAGE:
                stream = await host.new_stream(info.peer_id, [RENDEZVOUS])
                await stream.write(garbage or b"\0")
                await stream.close()
            await host.close()

    def run() -> None:
        import libp2p

        trio.run(attack, libp2p.new_host(key_pair=create_new_key_pair()))

    await asyncio.to_thread(run)
    assert point.mesh.running()
    first = await seat("first", point)
    await until(lambda: all_met(first, point))


def test_one_lie_in_an_answer_spoils_only_itself() -> None:
    answer, honest = Message(type=Message.DISCOVER_RESPONSE), identity("honest").peer
    lies = [(b"", b""), (b"x", b"\xff"), (b"\0" * 5_000, b"\x04\x7f"), (b"1", os.urandom(40))]
    there = Multiaddr("/ip4/192.0.2.7/tcp/6101").to_bytes()
    for peer, address in [*lies, (ID.from_string(honest).to_bytes(), there)]:
        row = answer.discoverResponse.registrations.add()
        row.peer.id = peer
        row.peer.addrs.extend([address] * 100)
    told = told_by(answer)
    assert [a for a in told if claim_in(a, loopback=False)] == [
        f"/ip4/192.0.2.7/tcp/6101/p2p/{honest}"
    ] * MAX_CLAIMED
    for _ in range(100):
        answer.discoverResponse.registrations.add()
    assert told_by(answer) == told


async def test_a_node_that_is_no_point_is_passed_over(seat: Seating) -> None:
    silent = await seat("silent", topic="another/1")
    point = await seat("point", topic="another/1", rendezvous_point=True)
    one, two = [await seat(name, silent, point) for name in ("one", "two")]
    await until(lambda: all_met(one, two), within=60)
