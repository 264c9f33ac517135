"""Switchboard of a simulation's mesh: carries what nodes post to each other, in order, late or not at all."""

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
    """A frame on its way, with the name by which each node takes it once."""

    name: tuple[PeerId, int]
    content: bytes


@dataclass(eq=False, slots=True)
class MeshLine:
    """A connection between two nodes."""

    opener: PeerId
    origin: Origin


class Gossip:
    """All nodes' places in the mesh, by their ids."""

    def __init__(self, wires: Wires, note: Callable[..., None]) -> None:
        """`note` writes down what arrives."""
        self.wires = wires
        self.note = note
        self.places: dict[PeerId, SeedMesh] = {}
        self._chance: dict[tuple[PeerId, PeerId], random.Random] = {}
        self._last: dict[tuple[PeerId, PeerId], float] = {}

    def post(self, sender: "SeedMesh", peer: PeerId, what: str, *given: object) -> None:
        """Have a method of a peer's called with the sender and this, in its own time, unless it gets lost."""
        cables, here = self.wires.cables, sender.host
        place = self.places.get(peer)
        if place is None or sender.process.gone:
            return
        rng = self._chance.get((sender.peer, peer)) or self._chance.setdefault(
            (sender.peer, peer), cables.chance(sender.peer, peer)
        )
        if cables.loses(here, place.host, rng) or not cables.passes(here, place.host):
            return
        # In order, as TCP has it.
        arrives = self.wires.time() + cables.trip(here, place.host, rng)
        arrives = self._last[sender.peer, peer] = max(
            arrives, self._last.get((sender.peer, peer), 0.0) + 1e-6
        )
        self.wires.call_at(
            arrives, self._deliver, place, what, sender.peer, *given, context=place.context
        )

    def _deliver(self, place: "SeedMesh", what: str, sender: PeerId, *given: object) -> None:
        if place.running():
            self.note("mesh", place.process.name, what, sender[-4:])
            getattr(place, what)(sender, *given)

    def end(self, mesh: "SeedMesh") -> None:
        """A process was killed: its kernel tells the other ends, if anything passes."""
        for peer, lines in mesh.lines.items():
            for line in lines:
                self.post(mesh, peer, "hung_up", line)
        if self.places.get(mesh.peer) is mesh:
            del self.places[mesh.peer]
