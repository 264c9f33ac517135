"""Laws of dialling a peer over the mesh: no request waits for an address that failed until the peer is heard of again."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from registry.catalog import Catalog, Signed
from registry.errors import PeerUnreachable
from registry.members.liveness import Evidence, MemberHealth, Status
from registry.mesh import Pipe
from registry.mesh.memory import MemoryMesh, MemoryNet, address_of
from registry.records import PeerId, Reach, Record, Version
from registry.signing import Identity
from router.peers.pipes import HELPERS_ASKED, MeshPeers

OWN = Identity(bytes([1]) * 32).peer
THERE = Identity(bytes([2]) * 32).peer
RELAY = Identity(bytes([3]) * 32).peer
AT_RELAY = f"/memory/0/p2p/{RELAY}/p2p-circuit/p2p/{THERE}"


class Watched(MemoryMesh):
    """A mesh that records the dialled addresses."""

    def __init__(self, peer: PeerId, net: MemoryNet) -> None:
        super().__init__(peer, net)
        self.dialled: list[str] = []

    async def connect(self, address: str, *, timeout: float) -> PeerId:
        """Record the address and dial it."""
        self.dialled.append(address)
        return await super().connect(address, timeout=timeout)


class World:
    """The own node, and another one that may be running."""

    def __init__(self) -> None:
        self.net = MemoryNet()
        self.mesh = Watched(OWN, self.net)
        self.other = MemoryMesh(THERE, self.net)
        self.now = 0.0
        self.mesh_addresses: tuple[str, ...] = (address_of(THERE),)
        self.pulses: dict[PeerId, MemberHealth] = {}
        self.peers = MeshPeers(self.mesh, self, timeout=1.0, now=lambda: self.now)

    @property
    def catalog(self) -> Catalog:
        record = Record(THERE, Version(1, 0), reach=Reach(mesh=self.mesh_addresses))
        return Catalog().merge([Signed(record, b"")])

    def health_of(self, node: PeerId) -> MemberHealth | None:
        return self.pulses.get(node)

    async def fails(self) -> None:
        with pytest.raises(PeerUnreachable):
            await self.peers.open_pipe(THERE)


async def no_answer(_: PeerId, question: bytes) -> bytes:
    return question


async def no_pipes(pipe: Pipe) -> None:
    await pipe.read()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.mesh.start(no_answer, no_pipes)
    yield world
    await world.peers.close()
    await world.other.stop()
    await world.mesh.stop()


async def test_an_unconnected_peer_is_dialled_and_its_connection_reused(
    world: World,
) -> None:
    await world.other.start(no_answer, no_pipes)
    for _ in range(2):
        assert (await world.peers.open_pipe(THERE)).peer == THERE
    assert world.mesh.dialled == [address_of(THERE)]


async def test_an_address_that_did_not_answer_is_not_waited_for_again(world: World) -> None:
    await world.fails()
    await world.fails()
    assert world.mesh.dialled == [address_of(THERE)]


async def test_an_address_that_failed_is_dialled_again_later_in_the_background(
    world: World,
) -> None:
    await world.fails()
    await world.other.start(no_answer, no_pipes)
    await world.fails()
    world.now = 5.0
    await world.fails()
    while not world.mesh.connections():
        await world.peers._tasks.spawn(no_answer(THERE, b""))
    assert (await world.peers.open_pipe(THERE)).peer == THERE


async def test_a_forgiven_peer_is_waited_for_again(world: World) -> None:
    await world.fails()
    await world.other.start(no_answer, no_pipes)
    world.peers.retry_addresses(THERE)
    assert (await world.peers.open_pipe(THERE)).peer == THERE


async def test_a_relay_is_dialled_when_none_of_the_peers_own_addresses_answers(
    world: World,
) -> None:
    await world.other.start(no_answer, no_pipes)
    world.mesh_addresses = (f"/ip4/127.0.0.1/tcp/1/p2p/{THERE}", AT_RELAY)
    assert (await world.peers.open_pipe(THERE)).peer == THERE
    assert world.mesh.dialled == [AT_RELAY]


async def test_an_unknown_node_is_unreachable(world: World) -> None:
    with pytest.raises(PeerUnreachable):
        await world.peers.open_pipe(RELAY)
    assert world.mesh.dialled == []


async def test_checking_whether_a_peer_is_relayed_connects_to_it_and_never_raises(
    world: World,
) -> None:
    assert await world.peers.connects_through_relay(THERE) is False
    await world.other.start(no_answer, no_pipes)
    world.peers.retry_addresses(THERE)
    assert await world.peers.connects_through_relay(THERE) is False
    assert [connection.peer for connection in world.mesh.connections()] == [THERE]


async def test_the_node_that_proved_an_unreachable_peer_alive_is_the_first_asked_to_relay(
    world: World,
) -> None:
    helpers = [MemoryMesh(PeerId(f"helper-{number}"), world.net) for number in range(6)]
    for helper in helpers:
        await helper.start(no_answer, no_pipes)
        await world.mesh.connect(address_of(helper.peer), timeout=1.0)
    last = helpers[-1].peer
    world.mesh_addresses = ("/ip4/127.0.0.1/tcp/1",)
    world.pulses[THERE] = MemberHealth(Status.ALIVE, 0.0, 0.0, Evidence.WORD, proved_by=last)
    await world.fails()
    unreached = replace(world.pulses[THERE], contact=Status.UNREACHABLE)
    world.pulses[THERE] = unreached
    world.mesh.dialled.clear()
    await world.fails()
    assert world.mesh.dialled[0] == f"/p2p/{last}/p2p-circuit/p2p/{THERE}"
    assert len(world.mesh.dialled) == HELPERS_ASKED
    assert world.peers.is_cut_off(THERE)
    await world.other.start(no_answer, no_pipes)
    assert (await world.peers.open_pipe(THERE)).peer == THERE
    for helper in helpers:
        await helper.stop()
