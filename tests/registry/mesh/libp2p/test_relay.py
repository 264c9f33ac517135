"""Relays: a node that cannot be dialled is reached through them, within limits on number and time."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerInMessage
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg

from registry.errors import PeerUnreachable
from registry.mesh import Joined, PeerLeft, Pipe, Restarted
from registry.mesh.libp2p.relay import HOP, CarriedCircuits, RelayLimits, RelayRefusal, RelayTable
from registry.mesh.libp2p.watch import NEW_SECONDS
from registry.records import PeerId
from tests.registry.mesh.libp2p.test_faults import inside
from tests.registry.mesh.worlds import LibP2PWorld, Seat, echo, joined, until, world_of

pytestmark = pytest.mark.timeout(60)


class RelayWorld(LibP2PWorld):
    """A relay, a node that is reached through it, and one that asks."""

    async def hidden(self, *relays: Seat, name: str = "hidden", **limits: Any) -> Seat:
        seat = await self.seat(name, *relays, nat="yes", **limits)
        await until(lambda: bool(circuits(seat)))
        return seat


def circuits(seat: Seat) -> list[str]:
    return [address for address in seat.mesh.addresses() if "/p2p-circuit" in address]


def relayed(seat: Seat, other: Seat) -> bool | None:
    """Return whether the connection to another runs through a relay; `None` when there is none."""
    paths = [c.relayed for c in seat.mesh.connections() if c.peer == other.mesh.peer]
    return paths[0] if paths else None


async def echoed(seat: Seat, other: Seat, size: int = 100_000) -> bool:
    """Send bytes through a pipe and have them back."""
    pipe = await seat.mesh.open_pipe(other.mesh.peer, timeout=5)
    _, received = await asyncio.gather(_send(pipe, bytes(size)), _count(pipe))
    return received == size


async def _send(pipe: Pipe, sent: bytes) -> None:
    await pipe.write(sent)
    await pipe.finish()


async def _count(pipe: Pipe) -> int:
    received = 0
    while chunk := await pipe.read():
        received += len(chunk)
    return received


async def _heard(speaker: Seat, listener: Seat) -> None:
    async with asyncio.timeout(10):
        while not listener.frames():
            await speaker.mesh.publish(os.urandom(8))
            await asyncio.sleep(0.2)


async def refused(asker: Seat, address: str) -> None:
    with pytest.raises(PeerUnreachable):
        await asker.mesh.connect(address, timeout=5)


def directly(seat: Seat) -> str:
    (address,) = (a for a in seat.mesh.addresses() if "/p2p-circuit" not in a)
    return address


@pytest.fixture
async def world() -> AsyncIterator[RelayWorld]:
    async with world_of(RelayWorld) as world:
        assert isinstance(world, RelayWorld)
        yield world


async def test_a_hidden_node_is_asked_and_piped_through_a_relay(world: RelayWorld) -> None:
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    (address,) = circuits(hidden)
    assert address == f"{relay.mesh.addresses()[0]}/p2p-circuit/p2p/{hidden.mesh.peer}"
    assert await asker.mesh.connect(address, timeout=5) == hidden.mesh.peer
    await joined(asker, hidden)
    assert relayed(asker, hidden) is True
    assert relayed(hidden, asker) is True
    assert await asker.mesh.ask(hidden.mesh.peer, b"who", timeout=5) == await echo(
        asker.mesh.peer, b"who"
    )
    assert await echoed(asker, hidden)
    assert await echoed(hidden, asker)
    counted = relay.mesh.relay_counts()
    assert counted["opened"] == counted["circuits"] == counted["reservations"] == 1
    assert counted["bytes"] > 400_000


async def test_a_direct_connection_is_used_as_soon_as_one_stands_and_the_relayed_one_closed(
    world: RelayWorld,
) -> None:
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    await joined(asker, hidden)
    # The hidden node dials the asker, as one behind a NAT can.
    await hidden.mesh.connect(directly(asker), timeout=5)
    await until(lambda: relayed(asker, hidden) is False and relayed(hidden, asker) is False)
    before = relay.mesh.relay_counts()["bytes"]
    assert await echoed(asker, hidden)
    assert relay.mesh.relay_counts()["bytes"] - before < 100_000
    await until(lambda: relay.mesh.relay_counts()["circuits"] == 0)
    assert await echoed(asker, hidden)
    assert not any(isinstance(event, PeerLeft) for event in asker.seen)
    # Gossip goes on, though its stream belonged to the connection that is now closed.
    await relay.mesh.stop()
    await until(lambda: asker.peers() == {hidden.mesh.peer})
    await _heard(hidden, asker)
    await _heard(asker, hidden)


async def test_the_end_of_a_relayed_connection_is_no_sign_that_a_peer_is_gone(
    world: RelayWorld,
) -> None:
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    await joined(asker, hidden)
    await asker.mesh.disconnect(hidden.mesh.peer)
    await until(lambda: relayed(asker, hidden) is None and relayed(hidden, asker) is None)
    assert Joined(hidden.mesh.peer) in asker.seen
    assert PeerLeft(hidden.mesh.peer) not in asker.seen
    assert PeerLeft(asker.mesh.peer) not in hidden.seen


async def test_a_node_that_is_no_relay_passes_no_connection_on(world: RelayWorld) -> None:
    plain = await world.seat("plain")
    hidden = await world.seat("hidden", plain, nat="yes")
    asker = await world.seat("asker", plain)
    await refused(asker, f"{directly(plain)}/p2p-circuit/p2p/{hidden.mesh.peer}")
    assert circuits(hidden) == []


async def test_a_relay_connects_only_to_nodes_that_reserved_a_place_at_it(
    world: RelayWorld,
) -> None:
    relay = await world.seat("relay", relay=True)
    other = await world.seat("other", relay)
    asker = await world.seat("asker", relay)
    await refused(asker, f"{directly(relay)}/p2p-circuit/p2p/{other.mesh.peer}")
    assert relay.mesh.relay_counts()["refused"] == 1


class Members(RelayWorld):
    """A world in which every node has the record of every other."""

    knows = staticmethod(lambda _: True)


@pytest.fixture
async def members() -> AsyncIterator[RelayWorld]:
    async with world_of(Members) as world:
        assert isinstance(world, RelayWorld)
        yield world


async def test_members_are_carried_to_each_other_by_a_member_that_reaches_both(
    members: RelayWorld,
) -> None:
    helper = await members.seat("helper")
    far = await members.seat("far", helper)
    asker = await members.seat("asker", helper)
    address = f"/p2p/{helper.mesh.peer}/p2p-circuit/p2p/{far.mesh.peer}"
    await asker.mesh.connect(address, timeout=5)
    await joined(asker, far)
    assert relayed(asker, far) is relayed(far, asker) is True
    assert await echoed(asker, far)
    assert await echoed(far, asker)
    assert helper.mesh.relay_counts()["carried"] == 1
    await asker.mesh.disconnect(far.mesh.peer)
    await until(lambda: helper.mesh.relay_counts()["carried"] == 0)


@pytest.mark.parametrize(("at_helper", "at_target"), [(1, 8), (8, 1), (0, 8), (8, 0)])
async def test_the_helper_and_the_target_of_a_carried_circuit_each_keep_their_bounds(
    members: RelayWorld, at_helper: int, at_target: int
) -> None:
    helper = await members.seat("helper", carry=at_helper)
    far = await members.seat("far", helper, carry=at_target)
    askers = [await members.seat(name, helper) for name in ("one", "two")]
    address = f"/p2p/{helper.mesh.peer}/p2p-circuit/p2p/{far.mesh.peer}"
    for number, asker in enumerate(askers):
        if number < min(at_helper, at_target):
            await asker.mesh.connect(address, timeout=5)
        else:
            await refused(asker, address)


async def test_a_full_relay_refuses_a_newcomer_and_keeps_the_nodes_that_it_serves(
    world: RelayWorld,
) -> None:
    relay = await world.seat("relay", relay=True, relay_reservations=1, relay_circuits=1)
    hidden = await world.hidden(relay)
    second = await world.seat("second", relay, nat="yes")
    await until(lambda: relay.mesh.relay_counts()["refused"] >= 1)
    assert circuits(second) == []
    asker, late = await world.seat("asker", relay), await world.seat("late", relay)
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    await refused(late, circuits(hidden)[0])
    assert await echoed(asker, hidden)
    await asker.mesh.disconnect(hidden.mesh.peer)
    await until(lambda: relay.mesh.relay_counts()["circuits"] == 0)
    await late.mesh.connect(circuits(hidden)[0], timeout=5)


async def test_a_circuit_that_used_up_its_bytes_is_cut_and_may_be_dialled_anew(
    world: RelayWorld,
) -> None:
    relay = await world.seat("relay", relay=True, relay_bytes=1 << 17)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    for cut in (1, 2):
        await until(lambda: circuits(hidden))
        await asker.mesh.connect(circuits(hidden)[0], timeout=5)
        with pytest.raises(PeerUnreachable):
            await echoed(asker, hidden, 1 << 20)
        await until(lambda: relayed(asker, hidden) is None)
        assert relay.mesh.relay_counts()["cut"] == cut
    assert relayed(asker, relay) is False


async def test_a_circuit_ends_when_its_time_is_up(world: RelayWorld) -> None:
    relay = await world.seat("relay", relay=True, relay_seconds=1)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    await joined(asker, hidden)
    await until(lambda: relayed(asker, hidden) is None)
    assert relay.mesh.relay_counts()["cut"] == 1


async def test_places_are_renewed(world: RelayWorld) -> None:
    relay = await world.seat("relay", relay=True, relay_lease=2)
    hidden = await world.hidden(relay)
    await until(lambda: relay.mesh.relay_counts()["reserved"] >= 4)
    assert relay.mesh.relay_counts()["reservations"] == 1
    assert circuits(hidden)


async def test_when_a_relay_goes_another_takes_its_place(world: RelayWorld) -> None:
    first, second, third = [await world.seat(n, relay=True) for n in ("r1", "r2", "r3")]
    hidden = await world.hidden(first, second, third)
    await until(lambda: len(circuits(hidden)) == 2)
    used = [r for r in (first, second, third) if any(r.mesh.peer in a for a in circuits(hidden))]
    await used[0].mesh.stop()
    await until(
        lambda: (
            len(circuits(hidden)) == 2 and not any(used[0].mesh.peer in a for a in circuits(hidden))
        )
    )


async def test_a_place_at_a_relay_that_comes_back_is_taken_again(world: RelayWorld) -> None:
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    await relay.mesh.disconnect(hidden.mesh.peer)
    await until(lambda: not circuits(hidden))
    await until(lambda: bool(circuits(hidden)))


async def test_relays_work_in_a_private_swarm_too(world: RelayWorld) -> None:
    world.swarm_key = "ab" * 32
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    asker = await world.seat("asker", relay)
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    await joined(asker, hidden)
    assert await echoed(asker, hidden)


async def hop(liar: Seat, relay: Seat, message: HopMessage, then: bytes = b"") -> int:
    """Send a message to a relay, and the bytes `then` after its answer; return the status."""
    host, thread = inside(liar)

    async def say() -> int:
        stream = await host.new_stream(ID.from_string(relay.mesh.peer), [HOP])
        await write_delimited_msg(stream, message)
        status = int((await read_delimited_msg(stream, HopMessage)).status)
        if then:
            await stream.write(then)
        return status

    return await thread.call(say)


def target(seat: Seat) -> PeerInMessage:
    return PeerInMessage(id=ID.from_string(seat.mesh.peer).to_bytes())


async def test_a_peer_cannot_reserve_a_place_in_the_name_of_another(world: RelayWorld) -> None:
    relay = await world.seat("relay", relay=True)
    other = await world.seat("other", relay)
    liar = await world.seat("liar", relay)
    message = HopMessage(type=HopMessage.RESERVE, peer=target(other))
    assert await hop(liar, relay, message) == Status.OK
    request = HopMessage(type=HopMessage.CONNECT, peer=target(other))
    assert await hop(liar, relay, request) == Status.NO_RESERVATION


@pytest.mark.parametrize("garbage", [b"\xff" * 1000, b"\x13/multistream/1.0.0\n" + b"\x00" * 500])
async def test_garbage_through_a_circuit_costs_that_circuit(
    world: RelayWorld, garbage: bytes
) -> None:
    relay = await world.seat("relay", relay=True)
    hidden = await world.hidden(relay)
    liar, asker = await world.seat("liar", relay), await world.seat("asker", relay)
    request = HopMessage(type=HopMessage.CONNECT, peer=target(hidden))
    assert await hop(liar, relay, request, then=garbage) == Status.OK
    await asker.mesh.connect(circuits(hidden)[0], timeout=5)
    assert await echoed(asker, hidden)
    assert liar.mesh.peer not in hidden.peers()
    assert not any(isinstance(event, Restarted) for event in (*hidden.seen, *relay.seen))
    # A handshake that never comes is not waited for much longer than a dial.
    await until(lambda: relay.mesh.relay_counts()["circuits"] == 1, within=15)


LIMITS = RelayLimits(reservations=2, circuits=3, circuits_per_peer=2, size=1, seconds=1, lease=100)
A, B, C, D = map(PeerId, "ABCD")
HOME, AWAY = "10.0.0.1", "10.0.0.2"


def book(**changes: int) -> RelayTable:
    return RelayTable(replace(LIMITS, **changes), lambda _: True)


def test_a_place_lasts_for_its_lease_and_longer_when_it_is_renewed() -> None:
    relay = book()
    assert relay.reserve(A, HOME, 0) is None
    assert relay.open(B, A, 99) is None
    assert relay.open(C, A, 100) is RelayRefusal.NO_RESERVATION
    assert relay.reserve(A, HOME, 100) is None
    assert relay.open(C, A, 199) is None


def test_when_all_places_are_taken_a_newcomer_is_refused_and_old_holders_are_renewed() -> None:
    relay = book()
    assert [relay.reserve(peer, HOME, 0) for peer in (A, B, C)] == [
        None,
        None,
        RelayRefusal.TOO_MANY,
    ]
    assert relay.reserve(A, HOME, 50) is None
    assert relay.reservations(50) == 2
    assert relay.reserve(C, HOME, 100) is None
    assert relay.reserve(B, HOME, 100) is RelayRefusal.TOO_MANY


def test_a_place_ends_with_its_holders_connection() -> None:
    relay = book()
    relay.reserve(A, HOME, 0)
    relay.retain_connected({A, B})
    assert relay.reservations(0) == 1
    relay.retain_connected({B})
    assert relay.open(B, A, 0) is RelayRefusal.NO_RESERVATION


def test_circuits_are_bounded_for_each_end_and_in_all() -> None:
    relay = book(reservations=9)
    for peer in (A, B, C):
        relay.reserve(peer, HOME, 0)
    assert relay.open(D, A, 0) is None
    assert relay.open(D, B, 0) is None
    assert relay.open(D, C, 0) is RelayRefusal.TOO_MANY
    assert relay.open(B, C, 0) is None
    assert relay.circuits == 3
    assert relay.open(A, C, 0) is RelayRefusal.TOO_MANY
    relay.close(D, A)
    assert relay.open(A, C, 0) is None
    for pair in ((D, B), (B, C), (A, C)):
        relay.close(*pair)
    assert relay.circuits == 0
    assert not relay._circuits


def test_the_address_with_most_reservations_gives_an_unused_one_for_another() -> None:
    relay = book(reservations=3)
    for peer in (A, B, C):
        relay.reserve(peer, HOME, 0)
    relay.open(D, A, 0)
    relay.open(D, B, 0)
    assert relay.reserve(D, AWAY, 1) == C
    assert relay.reservations(1) == 3
    # A and B are in use, and an address with one place more than another does not lose it.
    assert relay.reserve(C, "10.0.0.3", 2) is RelayRefusal.TOO_MANY


def test_an_unused_reservation_of_an_unknown_peer_gives_way_to_its_neighbour() -> None:
    known_peers = {A}
    relay = RelayTable(LIMITS, known_peers.__contains__)
    for peer in (A, B):
        relay.reserve(peer, HOME, 0)
    assert relay.reserve(C, HOME, NEW_SECONDS - 1) is RelayRefusal.TOO_MANY
    assert relay.reserve(C, HOME, NEW_SECONDS) == B
    assert relay.open(D, B, NEW_SECONDS) is RelayRefusal.NO_RESERVATION


def test_circuits_are_carried_between_members_alone() -> None:
    carried = CarriedCircuits(2, {A, B}.__contains__)
    assert carried.open(A, C, 0) is carried.open(C, A, 0) is RelayRefusal.NO_RESERVATION
    assert CarriedCircuits(0, lambda _: True).open(A, B, 0) is RelayRefusal.NO_RESERVATION
    assert carried.open(A, B, 0) is None


def test_carried_circuits_are_bounded_and_one_asker_has_half_of_them() -> None:
    carried = CarriedCircuits(4, lambda _: True)
    opened = [carried.open(asker, D, 0) for asker in (A, A, A, B, C, C)]
    full = RelayRefusal.TOO_MANY
    assert opened == [None, None, full, None, None, full]
    assert carried.circuits == 4
    carried.close(A, D)
    assert carried.open(B, D, 0) is None
