"""Nodes that know nothing but a rendezvous point find each other there, over real sockets."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import libp2p
import pytest
import trio
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.discovery.rendezvous.pb import rendezvous_pb2
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.utils.varint import encode_uvarint, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from registry.mesh import Origin
from registry.mesh.discovered import MAX_CLAIMED, claim_in
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.mesh.libp2p.rendezvous import (
    LONGEST_SECONDS,
    MAX_CALLERS,
    MAX_MESSAGE_BYTES,
    RENDEZVOUS,
    told_by,
)
from registry.mesh.libp2p.rendezvous_messages import (
    DiscoverAnswer,
    DiscoverRequest,
    RegisterAnswer,
    RegisterRequest,
    RendezvousAnswer,
    RendezvousRequest,
    RendezvousStatus,
    UnregisterRequest,
    answer_in,
    sealed,
    written,
)
from tests.registry.mesh.worlds import Seat, echo, identity, return_everything, settings, until

PeerInfo = rendezvous_pb2.Message.PeerInfo
THERE = Multiaddr("/ip4/192.0.2.7/tcp/6101")

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


GARBAGE = [
    b"",
    b"\xff" * 12,
    os.urandom(300),
    bytes([0x80 | (MAX_MESSAGE_BYTES & 0x7F), 0xFF, 0xFF, 0x7F]),
    b"\x02\xff\xff",
    b"\x02\x08\x05",
    b"\x02\x08\x00",
]


async def visit(
    point: Seat, visitor: Callable[[IHost, ID], Awaitable[None]], pair: KeyPair
) -> None:
    """Let a libp2p host that is no node of ours do something at a rendezvous point."""
    info = info_from_p2p_addr(Multiaddr(point.mesh.addresses()[0]))

    async def call(host: IHost) -> None:
        async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            await host.connect(info)
            await visitor(host, info.peer_id)
            await host.close()

    await asyncio.to_thread(lambda: trio.run(call, libp2p.new_host(key_pair=pair)))


async def test_malformed_messages_cost_a_point_nothing(seat: Seating) -> None:
    point = await seat("point", rendezvous_point=True)

    async def attack(host: IHost, peer: ID) -> None:
        for garbage in GARBAGE:
            stream = await host.new_stream(peer, [RENDEZVOUS])
            await stream.write(garbage or b"\0")
            await stream.close()

    await visit(point, attack, create_new_key_pair())
    assert point.mesh.running()
    first = await seat("first", point)
    await until(lambda: all_met(first, point))


async def test_a_peer_that_begins_requests_and_does_not_end_them_hinders_no_other(
    seat: Seating,
) -> None:
    point = await seat("point", topic="another/1", rendezvous_point=True)

    async def attack(host: IHost, peer: ID) -> None:
        for _ in range(MAX_CALLERS + 8):
            stream = await host.new_stream(peer, [RENDEZVOUS])
            await stream.write(b"\x10")
        other = libp2p.new_host(key_pair=create_new_key_pair())
        async with other.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            await other.connect(info_from_p2p_addr(Multiaddr(point.mesh.addresses()[0])))
            with trio.fail_after(5):
                (answer,) = await said_by(other, peer, DiscoverRequest("mine", 1))
            assert answer.status == RendezvousStatus.OK
            await other.close()

    await visit(point, attack, create_new_key_pair())


async def said_by(host: IHost, point: ID, *requests: RendezvousRequest) -> list[RendezvousAnswer]:
    """Send requests on one stream and return the answers; unregistering has none."""
    stream, answers = await host.new_stream(point, [RENDEZVOUS]), []
    for request in requests:
        body = written(request)
        await stream.write(encode_uvarint(len(body)) + body)
        if not isinstance(request, UnregisterRequest):
            read = await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES)
            answers.append(answer_in(read))
    await stream.close()
    return answers


async def test_a_point_tells_signed_records_as_they_came_until_their_peers_leave(
    seat: Seating,
) -> None:
    point, seen = await seat("point", rendezvous_point=True), dict[str, list[RendezvousAnswer]]()
    ours, others = create_new_key_pair(), create_new_key_pair()
    record = sealed(ours.private_key, [THERE])

    async def register(host: IHost, peer: ID) -> None:
        wishes = [RegisterRequest("a", record, seconds) for seconds in (60, 500_000, None)]
        seen["registered"] = await said_by(host, peer, *wishes, DiscoverRequest("a"))

    async def ask(host: IHost, peer: ID) -> None:
        seen["told"] = await said_by(host, peer, DiscoverRequest("a"), DiscoverRequest(""))

    async def leave(host: IHost, peer: ID) -> None:
        await said_by(host, peer, UnregisterRequest("a"), DiscoverRequest("a"))

    await visit(point, register, ours)
    granted = [RegisterAnswer(0, seconds) for seconds in (60, LONGEST_SECONDS, LONGEST_SECONDS)]
    assert seen["registered"] == [*granted, DiscoverAnswer(0)]
    await visit(point, ask, others)
    told, refused = seen["told"]
    assert isinstance(told, DiscoverAnswer)
    [row] = told.rows
    assert (row.name, row.record, told.status) == ("a", record, RendezvousStatus.OK)
    assert LONGEST_SECONDS - 60 < (row.seconds or 0) <= LONGEST_SECONDS
    assert refused == DiscoverAnswer(RendezvousStatus.E_INVALID_NAMESPACE)
    await visit(point, leave, ours)
    await visit(point, ask, others)
    assert seen["told"][0] == DiscoverAnswer(RendezvousStatus.OK)


async def test_an_invalid_registration_is_refused_with_its_status(
    seat: Seating,
) -> None:
    point, statuses = await seat("point", rendezvous_point=True), list[int]()
    ours, others = create_new_key_pair(), create_new_key_pair()
    older, newer = (sealed(ours.private_key, [THERE]) for _ in range(2))
    bad = [
        RegisterRequest("a", os.urandom(80)),
        RegisterRequest("a", b""),
        RegisterRequest("a", sealed(others.private_key, [THERE])),
        RegisterRequest("a", sealed(ours.private_key, [])),
        RegisterRequest("", newer),
        RegisterRequest("a", newer, 0),
        RegisterRequest("a", newer, -5),
        RegisterRequest("a", newer),
        RegisterRequest("a", older),
    ]

    async def register(host: IHost, peer: ID) -> None:
        for request in bad:
            [answer] = await said_by(host, peer, request)
            statuses.append(answer.status)

    await visit(point, register, ours)
    assert statuses == [101, 101, 101, 101, 100, 102, 102, 0, 101]


def test_lies_in_an_answer_spoil_only_themselves() -> None:
    honest = create_new_key_pair()
    forged = bytearray(sealed(honest.private_key, [THERE]))
    forged[-1] ^= 1
    lies = [b"", os.urandom(40), b"\0" * 5_000, bytes(forged)]
    infos = [(b"", b""), (b"x", b"\xff"), (b"\0" * 5_000, b"\x04\x7f"), (b"1", os.urandom(40))]
    lies += [PeerInfo(id=peer, addrs=[there] * 100).SerializeToString() for peer, there in infos]
    older = identity("older").peer
    bare = PeerInfo(id=ID.from_string(older).to_bytes(), addrs=[THERE.to_bytes()] * 100)
    signed = sealed(honest.private_key, [THERE] * 20)
    rows = [RegisterRequest("a", record) for record in [*lies, bare.SerializeToString(), signed]]
    told = told_by(DiscoverAnswer(0, tuple(rows)))
    assert [a for a in told if claim_in(a, loopback=False)] == [
        f"{THERE}/p2p/{peer}"
        for peer in (older, ID.from_pubkey(honest.public_key))
        for _ in range(MAX_CLAIMED)
    ]
    assert told_by(DiscoverAnswer(0, (*rows, *[RegisterRequest("a", b"")] * 100))) == told


async def test_a_node_that_is_no_point_is_passed_over(seat: Seating) -> None:
    silent = await seat("silent", topic="another/1")
    point = await seat("point", topic="another/1", rendezvous_point=True)
    one, two = [await seat(name, silent, point) for name in ("one", "two")]
    await until(lambda: all_met(one, two), within=60)
