"""Limits of inbound connections: in all, for each address, and on how often an address comes again."""

import asyncio

from registry.errors import PeerUnreachable
from registry.mesh.libp2p.guards import RENEWED, Callers
from tests.registry.mesh.libp2p.test_faults import world
from tests.registry.mesh.worlds import LibP2PWorld, Seat, until

__all__ = ["world"]


def test_one_address_holds_a_bounded_number_of_connections_and_others_are_let_in() -> None:
    callers = Callers(limit=100, per_address=3)
    assert [bool(callers.enter("a", 0.0)) for _ in range(4)] == [False, False, False, True]
    assert not callers.enter("b", 0.0)
    callers.leave("a")
    assert not callers.enter("a", 0.0)


def test_all_addresses_together_hold_a_bounded_number_of_connections() -> None:
    callers = Callers(limit=5, per_address=3)
    refused = [callers.enter(f"address {n}", 0.0) for n in range(6)]
    assert [bool(reason) for reason in refused] == [False] * 5 + [True]


def test_an_address_that_comes_and_goes_too_often_has_to_wait() -> None:
    callers = Callers(limit=100, per_address=3)
    for _ in range(6):
        assert not callers.enter("a", 0.0)
        callers.leave("a")
    assert "too often" in callers.enter("a", 0.0)
    assert not callers.enter("a", RENEWED / 3)


async def try_to_connect(guest: Seat, host: Seat) -> bool:
    try:
        await guest.mesh.connect(host.mesh.addresses()[0], timeout=5)
    except PeerUnreachable:
        return False
    return True


async def test_a_node_refuses_connections_beyond_the_limit_of_one_address_and_counts_them(
    world: LibP2PWorld,
) -> None:
    host = await world.seat("host", max_connections_per_address=2)
    guests = [await world.seat(f"guest {n}") for n in range(3)]
    for guest in guests[:2]:
        assert await try_to_connect(guest, host)
    await until(lambda: len(host.peers()) == 2)
    await try_to_connect(guests[2], host)
    await until(lambda: host.mesh.refusal_counts()["connections_refused"] > 0)
    # It is counted before its connection is closed.
    await until(lambda: guests[2].mesh.peer not in host.peers())
    await guests[0].mesh.disconnect(host.mesh.peer)
    await until(lambda: len(host.peers()) == 1)
    assert await try_to_connect(guests[2], host)
    await until(lambda: guests[2].mesh.peer in host.peers())


async def test_a_node_holds_no_more_connections_than_it_is_told_to(
    world: LibP2PWorld,
) -> None:
    host = await world.seat("host", max_connections=3)
    guests = [await world.seat(f"guest {n}") for n in range(5)]
    for guest in guests:
        await try_to_connect(guest, host)
    await until(lambda: host.mesh.refusal_counts()["connections_refused"] >= 2)
    await until(lambda: len(host.peers()) == 3)


async def test_idle_peers_make_room_for_a_newcomer(world: LibP2PWorld) -> None:
    host = await world.seat("host", max_connections=2)
    guests = [await world.seat(f"guest {n}") for n in range(3)]
    first, second, late = guests
    assert await try_to_connect(first, host)
    assert await try_to_connect(second, host)
    # No peer's record is known here: the one that came first gives way once it has had its time.
    while late.mesh.peer not in host.peers() or len(host.peers()) > 2:
        await try_to_connect(late, host)
        await asyncio.sleep(0.3)
    assert first.mesh.peer not in host.peers()


async def test_a_handshake_that_fails_is_counted_and_a_bare_connection_to_the_port_is_not(
    world: LibP2PWorld,
) -> None:
    world.swarm_key = "1" * 64
    host, friend = await world.seat("host"), await world.seat("friend")
    world.swarm_key = "2" * 64
    stranger = await world.seat("stranger")
    port = int(host.mesh.addresses()[0].split("/")[4])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    assert await try_to_connect(friend, host)
    assert host.mesh.refusal_counts()["handshakes_failed"] == 0
    assert not await try_to_connect(stranger, host)
    await until(lambda: host.mesh.refusal_counts()["handshakes_failed"] == 1)
    assert stranger.mesh.peer not in host.peers()
