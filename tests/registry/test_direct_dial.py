"""Direct dials to relayed peers: only the peer's own addresses are dialled, and not too often."""

from dataclasses import replace

from registry.direct_dial import AT_ONCE, DirectDial
from registry.errors import PeerUnreachable
from registry.mesh import Direction, PeerConnection
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.records import PeerId, Reach
from registry.replica import Replica
from registry.settings import RegistrySettings
from registry.signing import Identity

OURS, THEIRS = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
OWN, THERE = OURS.peer, THEIRS.peer
RELAY = Identity(bytes([3]) * 32).peer
DIRECT = f"/ip4/192.0.2.1/tcp/1/p2p/{THERE}"
RELAYED = f"/ip4/192.0.2.9/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{THERE}"
LOOPBACK = f"/ip4/127.0.0.1/tcp/1/p2p/{THERE}"


class RelayedMesh(MemoryMesh):
    """A mesh with one connection, through a relay, until a dial succeeds."""

    def __init__(self) -> None:
        super().__init__(OWN, MemoryNet())
        self.dialled: list[str] = []
        self.reachable = False
        self._connection = PeerConnection(THERE, RELAYED, Direction.INBOUND, relayed=True)
        self.others: tuple[PeerConnection, ...] = ()

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the connections."""
        return (*self.others, self._connection)

    async def connect(self, address: str, *, timeout: float) -> PeerId:
        """Note what is dialled."""
        self.dialled.append(address)
        if not self.reachable:
            raise PeerUnreachable(address)
        self._connection = replace(self._connection, relayed=False)
        return THERE


class World:
    """Our node, which has a peer through a relay."""

    def __init__(self, *mesh: str) -> None:
        self.now = 0.0
        self.mesh = RelayedMesh()
        ours, theirs = replica(OURS, f"/ip4/192.0.2.5/tcp/1/p2p/{OWN}"), replica(THEIRS, *mesh)
        ours.merge_record(theirs.catalog.held[THERE], heard_at=0.0, now=0.0)
        self.ours = ours
        self.direct_dial = DirectDial(self.mesh, ours, now=lambda: self.now)


def replica(owner: Identity, *mesh: str) -> Replica:
    """Return a node's registry, with a record of these addresses."""
    node = Replica(owner, RegistrySettings(), epoch=1, jitter=lambda: 0.5)
    node.announce(0.0, reach=Reach(mesh=mesh))
    return node


async def test_a_peers_own_addresses_are_dialled_beside_the_relay_and_no_others() -> None:
    world = World(LOOPBACK, DIRECT, RELAYED, f"/ip4/192.0.2.7/tcp/1/p2p/{RELAY}")
    await world.direct_dial.dial_due()
    assert world.mesh.dialled == [DIRECT]


async def test_an_address_that_does_not_answer_is_left_alone_longer_each_time() -> None:
    world = World(DIRECT)
    for world.now in (0.0, 14.0, 15.0, 44.0, 45.0):
        await world.direct_dial.dial_due()
    assert world.mesh.dialled == [DIRECT] * 3


async def test_once_there_is_a_direct_connection_nothing_is_dialled_any_more() -> None:
    world = World(DIRECT)
    world.mesh.reachable = True
    await world.direct_dial.dial_due()
    world.now = 1000.0
    await world.direct_dial.dial_due()
    assert world.mesh.dialled == [DIRECT]


async def test_relayed_peers_with_ever_new_addresses_delay_no_other() -> None:
    world = World(DIRECT)
    others = [Identity(bytes([number]) * 32) for number in range(10, 10 + AT_ONCE)]
    replicas = [replica(other) for other in others]
    world.mesh.others = tuple(
        PeerConnection(other.peer, RELAYED, Direction.INBOUND, relayed=True) for other in others
    )
    for attempt in range(2):
        for other, theirs in zip(others, replicas, strict=True):
            new = tuple(f"/ip4/192.0.2.1/tcp/{attempt}{n}/p2p/{other.peer}" for n in range(AT_ONCE))
            theirs.announce(float(attempt), reach=Reach(mesh=new))
            world.ours.merge_record(theirs.catalog.held[other.peer], heard_at=0.0, now=0.0)
        await world.direct_dial.dial_due()
        world.now += 1.0
    assert len(world.mesh.dialled) == 2 * AT_ONCE
    assert world.mesh.dialled[AT_ONCE] == DIRECT
