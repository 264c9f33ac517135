"""Dialling back (AutoNAT): only the asker's own address is dialled, and only the asker itself counts."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from libp2p.host.autonat.pb.autonat_pb2 import Message
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from multiaddr import Multiaddr

from registry.mesh.libp2p.nat import DIALBACK
from tests.registry.mesh.libp2p.test_faults import inside
from tests.registry.mesh.worlds import LibP2PWorld, Seat, world_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def world() -> AsyncIterator[LibP2PWorld]:
    async with world_of(LibP2PWorld) as world:
        assert isinstance(world, LibP2PWorld)
        yield world


class Listener:
    """Port of another program, which counts the connections to it."""

    def __init__(self) -> None:
        self.knocks = 0

    async def __aenter__(self) -> "Listener":
        self._server = await asyncio.start_server(self._knock, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _knock(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.knocks += 1
        writer.close()


async def verdict(asker: Seat, other: Seat, *claims: str) -> int:
    """Ask to be dialled at addresses; return the status."""
    host, thread = inside(asker)

    async def ask() -> int:
        stream = await host.new_stream(ID.from_string(other.mesh.peer), [DIALBACK])
        peer_info = Message.PeerInfo(
            id=host.get_id().to_bytes(), addrs=[Multiaddr(claim).to_bytes() for claim in claims]
        )
        request = Message(type=Message.DIAL, dial=Message.Dial(peer=peer_info))
        await write_delimited_msg(stream, request)
        reply = await read_delimited_msg(stream, Message)
        return int(reply.dialResponse.status)

    return await thread.call(ask)


def port_of(seat: Seat) -> int:
    return int(seat.mesh.addresses()[0].split("/")[4])


async def test_a_node_that_can_be_dialled_is_told_so(world: LibP2PWorld) -> None:
    other = await world.seat("other")
    asker = await world.seat("asker", other)
    assert await verdict(asker, other, f"/ip4/127.0.0.1/tcp/{port_of(asker)}") == Message.OK
    assert len(asker.mesh.connections()) == 1


async def test_addresses_of_other_transports_are_passed_over(world: LibP2PWorld) -> None:
    other = await world.seat("other")
    asker = await world.seat("asker", other)
    claims = "/ip4/127.0.0.1/udp/4001/quic-v1", f"/ip4/127.0.0.1/tcp/{port_of(asker)}"
    assert await verdict(asker, other, *claims) == Message.OK


async def test_another_service_at_that_port_does_not_count(world: LibP2PWorld) -> None:
    other, third = await world.seat("other"), await world.seat("third")
    asker = await world.seat("asker", other)
    async with Listener() as listener:
        claim = f"/ip4/127.0.0.1/tcp/{listener.port}"
        assert await verdict(asker, other, claim) == Message.E_DIAL_ERROR
    claim = f"/ip4/127.0.0.1/tcp/{port_of(third)}"
    assert await verdict(asker, other, claim) == Message.E_DIAL_ERROR


async def test_an_asker_cannot_have_us_dial_an_address_that_is_not_its_own(
    world: LibP2PWorld,
) -> None:
    other = await world.seat("other")
    asker = await world.seat("asker", other)
    async with Listener() as listener:
        # 127.0.0.2 is another machine's address here: the asker's connection does not come from there.
        claims = [f"/ip4/127.0.0.2/tcp/{listener.port}", f"/ip4/127.0.0.1/tcp/{port_of(asker)}"]
        assert await verdict(asker, other, *claims) == Message.OK
        assert listener.knocks <= 1


async def test_a_peer_that_asks_all_the_time_is_refused(world: LibP2PWorld) -> None:
    other = await world.seat("other")
    asker = await world.seat("asker", other)
    claim = f"/ip4/127.0.0.1/tcp/{port_of(asker)}"
    verdicts = [await verdict(asker, other, claim) for _ in range(4)]
    assert verdicts == [Message.OK, Message.OK, Message.E_DIAL_REFUSED, Message.E_DIAL_REFUSED]


async def test_in_a_private_swarm_the_swarm_key_suffices_to_be_dialled_back(
    world: LibP2PWorld,
) -> None:
    world.swarm_key = "ab" * 32
    other = await world.seat("other")
    asker = await world.seat("asker", other)
    claim = f"/ip4/127.0.0.1/tcp/{port_of(asker)}"
    assert await verdict(asker, other, claim) == Message.OK
