"""TCP connections: over IPv6 one is as direct, and counted under its address, as over IPv4; packets fit any path."""

import socket

import pytest
from libp2p.host.autonat.pb.autonat_pb2 import Message

from registry.mesh import Direction
from registry.mesh.libp2p.node import SEGMENT_BYTES
from tests.registry.mesh.libp2p.test_autonat import verdict, world
from tests.registry.mesh.libp2p.test_connection_limits import try_to_connect
from tests.registry.mesh.worlds import LibP2PWorld, joined, until

__all__ = ["world"]

LISTEN = {"ip4": "/ip4/127.0.0.1/tcp/0", "ip6": "/ip6/::1/tcp/0"}

both_families = pytest.mark.parametrize("family", LISTEN)


@both_families
async def test_a_connection_without_a_relay_is_direct_and_has_the_address_of_its_other_end(
    world: LibP2PWorld, family: str
) -> None:
    one, other = [await world.seat(name, listen=(LISTEN[family],)) for name in ("one", "other")]
    await one.mesh.connect(other.mesh.addresses()[0], timeout=5)
    await joined(one, other)
    (outbound,), (inbound,) = one.mesh.connections(), other.mesh.connections()
    assert not outbound.relayed
    assert not inbound.relayed
    assert outbound.address == other.mesh.addresses()[0]
    assert inbound.direction is Direction.INBOUND
    assert inbound.address.startswith(LISTEN[family].removesuffix("0"))


@both_families
async def test_one_address_holds_a_bounded_number_of_connections(
    world: LibP2PWorld, family: str
) -> None:
    listen = (LISTEN[family],)
    host = await world.seat("host", listen=listen, max_connections_per_address=2)
    guests = [await world.seat(f"guest {n}", listen=listen) for n in range(3)]
    for guest in guests[:2]:
        assert await try_to_connect(guest, host)
    await until(lambda: len(host.peers()) == 2)
    await try_to_connect(guests[2], host)
    await until(lambda: host.mesh.refusal_counts()["connections_refused"] > 0)


@both_families
async def test_a_peer_is_dialled_back_at_the_address_from_which_it_asks(
    world: LibP2PWorld, family: str
) -> None:
    listen = (LISTEN[family],)
    asked = await world.seat("asked", listen=listen)
    asker = await world.seat("asker", listen=listen)
    await asker.mesh.connect(asked.mesh.addresses()[0], timeout=5)
    await joined(asker, asked)
    address = asker.mesh.addresses()[0].partition("/p2p/")[0]
    assert await verdict(asker, asked, address) == Message.OK


@both_families
async def test_a_node_tells_those_that_connect_to_send_no_packets_that_a_tunnel_may_lose(
    world: LibP2PWorld, family: str
) -> None:
    seat = await world.seat("host", listen=(LISTEN[family],))
    _, _, host, _, port, *_ = seat.mesh.addresses()[0].split("/")
    with socket.create_connection((host, port)) as caller:
        assert caller.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SEGMENT_BYTES
