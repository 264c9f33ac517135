"""Switchboard of a simulation's mesh: it carries nodes' messages in order, delayed or lost."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.seeds.wires import Wires
from registry.mesh import Origin
from registry.records import PeerId

if TYPE_CHECKING:
    from bench.seeds.mesh import SeedMesh


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame in transit, with the name by which each node takes it only once."""

    name: tuple[PeerId, int]
    content: bytes


@dataclass(eq=False, slots=True)
class MeshLine:
    """Connection between two nodes."""

    opener: PeerId
    origin: Origin


class Gossip:
    """The meshes of all nodes, by their ids."""

    def __init__(self, wires: Wires, note: Callable[..., None]) -> None:
        """`note` records what arrives."""
        self.wires = wires
        self.note = note
        self.places: dict[PeerId, SeedMesh] = {}
        self._chance: dict[tuple[PeerId, PeerId], random.Random] = {}
        self._last: dict[tuple[PeerId, PeerId], float] = {}

    def post(self, sender: "SeedMesh", peer: PeerId, method: str, *arguments: object) -> None:
        """Call a method of a peer's mesh with the sender and these arguments, after a delay, unless the message is lost."""
        cables, here = self.wires.cables, sender.host
        mesh = self.places.get(peer)
        if mesh is None or sender.process.gone:
            return
        rng = self._chance.get((sender.peer, peer)) or self._chance.setdefault(
            (sender.peer, peer), cables.chance(sender.peer, peer)
        )
        if cables.loses(here, mesh.host, rng) or not cables.passes(here, mesh.host):
            return
        # In order, as with TCP.
        arrives = self.wires.time() + cables.trip(here, mesh.host, rng)
        arrives = self._last[sender.peer, peer] = max(
            arrives, self._last.get((sender.peer, peer), 0.0) + 1e-6
        )
        self.wires.call_at(
            arrives, self._deliver, mesh, method, sender.peer, *arguments, context=mesh.context
        )

    def _deliver(self, mesh: "SeedMesh", method: str, sender: PeerId, *arguments: object) -> None:
        if mesh.is_running():
            self.note("mesh", mesh.process.name, method, sender[-4:])
            getattr(mesh, method)(sender, *arguments)

    def end(self, mesh: "SeedMesh") -> None:
        """End a killed process's connections: its kernel notifies the other ends, if packets pass."""
        for peer, lines in mesh.lines.items():
            for line in lines:
                self.post(mesh, peer, "hung_up", line)
        if self.places.get(mesh.peer) is mesh:
            del self.places[mesh.peer]
