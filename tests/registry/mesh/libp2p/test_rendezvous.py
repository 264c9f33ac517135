"""Rendezvous points: what they remember and tell, and nodes that find each other there over real sockets."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

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
from registry.mesh.discovered import MAX_CLAIMED, claimed_peer
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.mesh.libp2p.rendezvous import (
    LONGEST_SECONDS,
    MAX_CALLERS,
    MAX_DISCOVERED,
    MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES,
    MAX_NAMES,
    MAX_NAMES_OF_ONE,
    MAX_REGISTERED,
    RENDEZVOUS,
    RENEW_SECONDS,
    Register,
    Registration,
    VisitSchedule,
    addresses_in_answer,
    name_of,
)
from registry.mesh.libp2p.rendezvous_messages import (
    MAX_RECORD_BYTES,
    DiscoverAnswer,
    DiscoverRequest,
    RegisterAnswer,
    RegisterRequest,
    RendezvousAnswer,
    RendezvousRequest,
    RendezvousStatus,
    UnregisterRequest,
    decode_answer,
    encode_message,
    sign_peer_record,
)
from tests.registry.mesh.worlds import Seat, echo, identity, return_everything, settings, until

PeerInfo = rendezvous_pb2.Message.PeerInfo
THERE = Multiaddr("/ip4/192.0.2.7/tcp/6101")

Seating = Callable[..., Awaitable[Seat]]


@pytest.fixture
async def seat() -> AsyncIterator[Seating]:
    seats: list[Seat] = []

    async def start(
        label: str, *points: Seat, topic: str = "modelvine/1", **changes: object
    ) -> Seat:
        rendezvous = tuple(address for p in points for address in p.mesh.addresses())
        mesh_settings = settings(rendezvous=rendezvous, **changes)
        seats.append(Seat(LibP2PMesh(identity(label), mesh_settings, topic=topic)))
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
    assert point.mesh.is_running()
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
        body = encode_message(request)
        await stream.write(encode_uvarint(len(body)) + body)
        if not isinstance(request, UnregisterRequest):
            read = await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE_BYTES)
            answers.append(decode_answer(read))
    await stream.close()
    return answers


async def test_a_point_tells_signed_records_as_they_came_until_their_peers_leave(
    seat: Seating,
) -> None:
    point, answers = await seat("point", rendezvous_point=True), dict[str, list[RendezvousAnswer]]()
    own_key, other_key = create_new_key_pair(), create_new_key_pair()
    record = sign_peer_record(own_key.private_key, [THERE])

    async def register(host: IHost, peer: ID) -> None:
        wishes = [RegisterRequest("a", record, seconds) for seconds in (60, 500_000, None)]
        answers["registered"] = await said_by(host, peer, *wishes, DiscoverRequest("a"))

    async def ask(host: IHost, peer: ID) -> None:
        answers["told"] = await said_by(host, peer, DiscoverRequest("a"), DiscoverRequest(""))

    async def leave(host: IHost, peer: ID) -> None:
        await said_by(host, peer, UnregisterRequest("a"), DiscoverRequest("a"))

    await visit(point, register, own_key)
    granted = [RegisterAnswer(0, seconds) for seconds in (60, LONGEST_SECONDS, LONGEST_SECONDS)]
    assert answers["registered"] == [*granted, DiscoverAnswer(0)]
    await visit(point, ask, other_key)
    answer, refused = answers["told"]
    assert isinstance(answer, DiscoverAnswer)
    [row] = answer.rows
    assert (row.name, row.record, answer.status) == ("a", record, RendezvousStatus.OK)
    assert LONGEST_SECONDS - 60 < (row.seconds or 0) <= LONGEST_SECONDS
    assert refused == DiscoverAnswer(RendezvousStatus.E_INVALID_NAMESPACE)
    await visit(point, leave, own_key)
    await visit(point, ask, other_key)
    assert answers["told"][0] == DiscoverAnswer(RendezvousStatus.OK)


async def test_an_invalid_registration_is_refused_with_its_status(
    seat: Seating,
) -> None:
    point, statuses = await seat("point", rendezvous_point=True), list[int]()
    own_key, other_key = create_new_key_pair(), create_new_key_pair()
    older, newer = (sign_peer_record(own_key.private_key, [THERE]) for _ in range(2))
    bad = [
        RegisterRequest("a", os.urandom(80)),
        RegisterRequest("a", b""),
        RegisterRequest("a", sign_peer_record(other_key.private_key, [THERE])),
        RegisterRequest("a", sign_peer_record(own_key.private_key, [])),
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

    await visit(point, register, own_key)
    assert statuses == [101, 101, 101, 101, 100, 102, 102, 0, 101]


def test_lies_in_an_answer_spoil_only_themselves() -> None:
    honest = create_new_key_pair()
    forged = bytearray(sign_peer_record(honest.private_key, [THERE]))
    forged[-1] ^= 1
    lies = [b"", os.urandom(40), b"\0" * 5_000, bytes(forged)]
    infos = [(b"", b""), (b"x", b"\xff"), (b"\0" * 5_000, b"\x04\x7f"), (b"1", os.urandom(40))]
    lies += [
        PeerInfo(id=peer, addrs=[address] * 100).SerializeToString() for peer, address in infos
    ]
    older = identity("older").peer
    bare = PeerInfo(id=ID.from_string(older).to_bytes(), addrs=[THERE.to_bytes()] * 100)
    signed = sign_peer_record(honest.private_key, [THERE] * 20)
    rows = [RegisterRequest("a", record) for record in [*lies, bare.SerializeToString(), signed]]
    addresses = addresses_in_answer(DiscoverAnswer(0, tuple(rows)))
    assert [a for a in addresses if claimed_peer(a, loopback=False)] == [
        f"{THERE}/p2p/{peer}"
        for peer in (older, ID.from_pubkey(honest.public_key))
        for _ in range(MAX_CLAIMED)
    ]
    assert (
        addresses_in_answer(DiscoverAnswer(0, (*rows, *[RegisterRequest("a", b"")] * 100)))
        == addresses
    )


async def test_a_node_that_is_no_point_is_passed_over(seat: Seating) -> None:
    silent = await seat("silent", topic="another/1")
    point = await seat("point", topic="another/1", rendezvous_point=True)
    one, two = [await seat(name, silent, point) for name in ("one", "two")]
    await until(lambda: all_met(one, two), within=60)


def node(
    number: int,
    *,
    until: float = 100.0,
    record: bytes = b"there",
    sequence: int = 1,
    network: str = "",
) -> Registration:
    return Registration(number.to_bytes(4), record, sequence, until, network)


def register() -> Register:
    return Register(rng=random.Random(1))


def test_nodes_of_one_mesh_are_told_of_each_other_and_of_no_other_node() -> None:
    point = register()
    assert point.add("a", node(1), 0.0) is RendezvousStatus.OK
    assert point.add("a", node(2), 0.0) is RendezvousStatus.OK
    assert point.add("b", node(3), 0.0) is RendezvousStatus.OK
    assert point.sample_nodes("a", node(1).peer, 0, 0.0) == [node(2)]
    assert point.sample_nodes("b", node(1).peer, 0, 0.0) == [node(3)]
    assert point.sample_nodes("c", node(1).peer, 0, 0.0) == []


def test_the_last_registration_of_a_node_holds_until_its_time_has_passed_or_it_leaves() -> None:
    point = register()
    point.add("a", node(1, record=b"here"), 0.0)
    point.add("a", node(1, until=50.0), 1.0)
    assert point.sample_nodes("a", b"asker", 0, 49.0) == [node(1, until=50.0)]
    assert point.sample_nodes("a", b"asker", 0, 50.0) == []
    point.add("a", node(1), 60.0)
    point.remove("a", node(1).peer)
    assert point.sample_nodes("a", b"asker", 0, 61.0) == []
    point.remove("nowhere", b"nobody")


def test_an_older_record_replaces_no_newer_one_until_the_newer_is_forgotten() -> None:
    point = register()
    assert point.add("a", node(1, sequence=7), 0.0) is RendezvousStatus.OK
    older = node(1, sequence=6, until=500.0)
    assert point.add("a", older, 1.0) is RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
    assert point.sample_nodes("a", b"asker", 0, 1.0) == [node(1, sequence=7)]
    assert point.add("a", node(1, sequence=7, until=200.0), 2.0) is RendezvousStatus.OK
    assert point.add("a", older, 200.0) is RendezvousStatus.OK


def test_a_registration_with_an_invalid_name_record_or_time_is_refused() -> None:
    point = register()
    for name in ("", "x" * (MAX_NAME_BYTES + 1), "é" * 128):
        assert point.add(name, node(1), 0.0) is RendezvousStatus.E_INVALID_NAMESPACE
    for record in (b"", b"x" * (MAX_RECORD_BYTES + 1)):
        status = point.add("a", node(1, record=record), 0.0)
        assert status is RendezvousStatus.E_INVALID_SIGNED_PEER_RECORD
    for ends in (0.0, -1.0, LONGEST_SECONDS + 1.0, float("inf"), float("nan")):
        assert point.add("a", node(1, until=ends), 0.0) is RendezvousStatus.E_INVALID_TTL
    assert point.sample_nodes("a", b"asker", 0, 0.0) == []


def test_a_full_point_refuses_newcomers_keeps_the_others_and_makes_room_in_time() -> None:
    point = register()
    for number in range(MAX_REGISTERED):
        assert point.add("a", node(number), 0.0) is RendezvousStatus.OK
    assert point.add("a", node(MAX_REGISTERED), 0.0) is RendezvousStatus.E_UNAVAILABLE
    assert point.add("a", node(7, until=90.0), 0.0) is RendezvousStatus.OK
    assert point.add("a", node(MAX_REGISTERED, until=500.0), 95.0) is RendezvousStatus.OK
    assert (
        point.add("a", node(MAX_REGISTERED + 1, until=500.0), 95.0)
        is RendezvousStatus.E_UNAVAILABLE
    )


def test_mesh_names_are_bounded_in_total_and_for_each_node() -> None:
    point = register()
    for number in range(MAX_NAMES_OF_ONE):
        assert point.add(f"of one {number}", node(1), 0.0) is RendezvousStatus.OK
    assert point.add("one more", node(1), 0.0) is RendezvousStatus.E_UNAVAILABLE
    for number in range(MAX_NAMES - MAX_NAMES_OF_ONE):
        assert point.add(f"of many {number}", node(2 + number), 0.0) is RendezvousStatus.OK
    assert point.add("one more", node(9_999), 0.0) is RendezvousStatus.E_UNAVAILABLE
    assert point.add("of one 0", node(9_999), 0.0) is RendezvousStatus.OK


def test_the_network_with_most_registrations_gives_one_for_another() -> None:
    point = register()
    for number in range(MAX_REGISTERED):
        point.add("a", node(number, network="one"), 0.0)
    for number in range(3):
        late = node(MAX_REGISTERED + number, network="two")
        assert point.add("b", late, 0.0) is RendezvousStatus.OK
        assert late in point.sample_nodes("b", b"asker", 0, 0.0)
    again = node(0, network="one")
    assert point.add("a", again, 0.0) is RendezvousStatus.E_UNAVAILABLE


def test_the_network_with_most_registrations_gives_a_name_for_another() -> None:
    point = register()
    point.add("shared", node(0, network="one"), 0.0)
    point.add("shared", node(1, network="two"), 0.0)
    for number in range(MAX_NAMES - 1):
        assert point.add(f"{number}", node(2 + number, network="one"), 0.0) is RendezvousStatus.OK
    assert point.add("new", node(9_999, network="two"), 0.0) is RendezvousStatus.OK
    assert len(point.sample_nodes("shared", b"asker", 0, 0.0)) == 2
    assert point.sample_nodes("0", b"asker", 0, 0.0) == []


def test_an_answer_is_bounded_and_every_node_gets_a_turn_in_it() -> None:
    point = register()
    for number in range(100):
        point.add("a", node(number), 0.0)
    answers = [point.sample_nodes("a", b"asker", limit, 0.0) for limit in (0, 5, 10_000)]
    assert [len(rows) for rows in answers] == [MAX_DISCOVERED, 5, MAX_DISCOVERED]
    sampled = {r.peer for _ in range(50) for r in point.sample_nodes("a", b"asker", 0, 0.0)}
    assert len(sampled) == 100


def test_a_rendezvous_name_reveals_neither_the_name_of_the_mesh_nor_its_key() -> None:
    key = "ab" * 32
    names = {name_of(mesh_name, secret) for mesh_name in ("one", "two") for secret in (None, key)}
    assert len(names) == 4
    assert not any("one" in name or key[:6] in name for name in names)


def goings(connected: int, *, seconds: int) -> list[int]:
    rounds, visits = VisitSchedule(rng=random.Random(1)), []
    for now in range(seconds):
        if rounds.is_due(connected, float(now)):
            rounds.note_visit(float(now))
            visits.append(now)
    return visits


def test_a_lone_node_asks_at_once_and_then_ever_more_rarely() -> None:
    visits = goings(0, seconds=7_200)
    assert visits[0] == 0
    assert 7 <= visits[1] <= 13
    assert all(450 <= b - a <= 751 for a, b in pairwise(visits[7:]))
    assert len(visits) < 25


def test_a_node_with_company_goes_only_to_renew_its_registration() -> None:
    visits = goings(5, seconds=7_200)
    assert all(0.75 * RENEW_SECONDS <= b - a <= RENEW_SECONDS + 1 for a, b in pairwise(visits))
    assert len(visits) < 13


def test_a_node_that_loses_its_company_asks_soon() -> None:
    rounds = VisitSchedule(rng=random.Random(1))
    for _ in range(10):
        rounds.note_visit(0.0)
    assert not rounds.is_due(5, 300.0)
    rounds.note_visit(300.0)
    assert rounds.is_due(0, 320.0)
