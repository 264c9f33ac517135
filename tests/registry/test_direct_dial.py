"""Direct dials to relayed peers: only the peer's own addresses are dialled, and not too often."""

from dataclasses import replace

from registry.catalog import Signed
from registry.direct_dial import DirectDial
from registry.errors import PeerUnreachable
from registry.mesh import Direction, PeerConnection
from registry.mesh.memory.mesh import MemoryMesh
from registry.mesh.memory.network import MemoryNet
from registry.records import PeerId, Reach, Record, Version
from registry.signing import Identity

OWN = Identity(bytes([1]) * 32).peer
THERE = Identity(bytes([2]) * 32).peer
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

    def connections(self) -> tuple[PeerConnection, ...]:
        """Return the one connection."""
        return (self._connection,)

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
        record = Record(THERE, Version(1, 1), reach=Reach(mesh=mesh))
        self.shortcuts = DirectDial(
            self.mesh,
            own=lambda: Reach(mesh=(f"/ip4/192.0.2.5/tcp/1/p2p/{OWN}",)),
            held=lambda: {THERE: Signed(record, b"")},
            now=lambda: self.now,
        )


async def test_a_peers_own_addresses_are_dialled_beside_the_relay_and_no_others() -> None:
    world = World(LOOPBACK, DIRECT, RELAYED, f"/ip4/192.0.2.7/tcp/1/p2p/{RELAY}")
    await world.shortcuts.look()
    assert world.mesh.dialled == [DIRECT]


async def test_an_address_that_does_not_answer_is_left_alone_longer_each_time() -> None:
    world = World(DIRECT)
    for world.now in (0.0, 14.0, 15.0, 44.0, 45.0):
        await world.shortcuts.look()
    assert world.mesh.dialled == [DIRECT] * 3


async def test_once_there_is_a_direct_connection_nothing_is_dialled_any_more() -> None:
    world = World(DIRECT)
    world.mesh.reachable = True
    await world.shortcuts.look()
    world.now = 1000.0
    await world.shortcuts.look()
    assert world.mesh.dialled == [DIRECT]
