"""Dials of simulated nodes: the mesh's own `Dialer` for every node that lacks connections, and the duration of dials."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from registry.mesh.libp2p.dial import Dialer, DialTarget
from registry.records import PeerId

if TYPE_CHECKING:
    from bench.simulation.world import World

# As in the mesh; importing it from there would import all of libp2p.
DIAL_TICK = 0.25
# Known nodes that the service keeps to dial.
KEPT = 64
# libp2p waits this long for a second address even if the first answers; then come five half round trips.
_DIAL_SECONDS = 0.25
_HALF_ROUND_TRIPS = 6


class Dialers:
    """Creator of a world's connections, which it also repairs."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._dialers: dict[int, Dialer] = {}
        self._under_way: dict[int, set[PeerId]] = {}
        self._lacking: set[int] = set()
        self._ticks = 0

    def connect(self) -> None:
        """Connect all nodes as after a long quiet time."""
        world = self._world
        numbers = list(range(world.plan.nodes))
        world.rng.shuffle(numbers)
        for number in numbers:
            for target in range(min(world.plan.bootstraps, world.plan.nodes)):
                self._connect(number, target)
            candidates = self._kept(number)
            world.rng.shuffle(candidates)
            for target in candidates:
                if len(world.overlay.links[number]) >= world.plan.mesh.degree:
                    break
                self._connect(number, target)
        world.overlay.mend()

    def begin(self) -> None:
        """Repair connections from now on."""
        world = self._world
        self._lacking.update(n for n in range(world.plan.nodes) if self._lacks(n))
        world.timeline.every(DIAL_TICK, self._dial)
        world.timeline.every(1.0, lambda _: world.overlay.mend())

    def lost(self, number: int, other: int, now: float) -> None:
        """Note that a connection ended."""
        self._dialer(number).note_lost(self._world.peer(other), now)
        self._lacking.add(number)

    def enter(self, number: int) -> None:
        """Let a node that has just started dial."""
        self._dialers.pop(number, None)
        self._under_way.pop(number, None)
        self._lacking.add(number)

    def _connect(self, number: int, target: int) -> None:
        overlay = self._world.overlay
        if number != target and target not in overlay.links[number] and self._room(target):
            overlay.link(number, target)

    def _room(self, number: int) -> bool:
        limit = self._world.plan.mesh.max_connections
        return len(self._world.overlay.links[number]) < limit

    def _lacks(self, number: int) -> bool:
        plan, links = self._world.plan, self._world.overlay.links[number]
        first = (b for b in range(min(plan.bootstraps, plan.nodes)) if b != number)
        if len(links) < plan.mesh.degree or any(b not in links for b in first):
            return True
        dialer = self._dialers.get(number)
        return dialer is not None and bool(dialer.missed_targets(self._connected(number)))

    def _connected(self, number: int) -> set[PeerId]:
        return {self._world.peer(other) for other in self._world.overlay.links[number]}

    def _kept(self, number: int) -> list[int]:
        plan = self._world.plan
        chosen = self._world.rng.sample(range(plan.nodes), min(KEPT, plan.nodes))
        return [n for n in chosen if n != number]

    def _dialer(self, number: int) -> Dialer:
        if number not in self._dialers:
            world, plan = self._world, self._world.plan
            dialer = Dialer(
                world.peer(number),
                plan.mesh.degree,
                plan.mesh.redial,
                random.Random(world.rng.random()),
            )
            first = range(min(plan.bootstraps, plan.nodes))
            dialer.set_targets(
                *(
                    [f"/sim/{n}/p2p/{world.peer(n)}" for n in ns]
                    for ns in (first, self._kept(number))
                )
            )
            self._dialers[number] = dialer
        return self._dialers[number]

    def _dial(self, now: float) -> None:
        overlay = self._world.overlay
        self._ticks += 1
        for number in sorted(self._lacking):
            if not overlay.up[number] or not self._lacks(number):
                self._lacking.discard(number)
                continue
            # A node that has enough connections, but lacks a certain one, tries only once in two seconds, to save CPU time.
            enough = len(overlay.links[number]) >= self._world.plan.mesh.degree
            if enough and (self._ticks + number) % 8:
                continue
            busy = self._under_way.setdefault(number, set())
            for target in self._dialer(number).due_targets(self._connected(number) | busy, now):
                busy.add(target.peer)
                self._call(number, target)

    def call(
        self,
        number: int,
        other: int,
        *,
        within: float,
        failed: Callable[[float], None],
        stands: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Dial a node; connect and call `stands`, or call `failed`."""
        world = self._world
        life = world.members[number].life
        silent = world.overlay.side[number] != world.overlay.side[other]
        silent |= other in world.silent
        delay = world.overlay.draw_delay()
        dial_seconds = _DIAL_SECONDS + _HALF_ROUND_TRIPS * delay
        # A machine whose process is dead refuses at once.
        refused = not (silent or world.overlay.up[other])
        wait = within if silent else min(2 * delay if refused else dial_seconds, within)

        def done(now: float) -> None:
            if world.members[number].life != life:
                return
            overlay = world.overlay
            has_room = self._room(other) and self._room(number)
            if other not in overlay.links[number]:
                if refused or not (
                    overlay.carries(number, other) and has_room and dial_seconds <= within
                ):
                    failed(now)
                    return
                world.link(number, other, now)
            self._done(number, world.peer(other))
            self._done(other, world.peer(number))
            stands(now)

        world.timeline.after(wait, done)

    def _call(self, number: int, target: DialTarget) -> None:
        def failed(now: float) -> None:
            self._under_way[number].discard(target.peer)
            self._dialer(number).note_failure(target.peer, now)

        other = self._world.number(target.peer)
        self.call(number, other, within=self._world.plan.mesh.dial_timeout, failed=failed)

    def _done(self, number: int, peer: PeerId) -> None:
        self._under_way.get(number, set()).discard(peer)
        if number in self._dialers:
            self._dialers[number].note_connected(peer, str(self._world.number(peer)))
