"""Invariants of every run, whatever the seed, and their checks.

1. No ghost: at the end every node that is up lists for every other node exactly the services that it was last told to serve. A
   node that is gone for good is lost, or has left.
2. No lost registration: what a node has acknowledged is listed until it is withdrawn, also across restarts.
3. No answer twice: a caller gets one complete answer from one worker; the words of a stream arrive each once and in order. Once
   a worker's complete answer has reached the caller, no other worker begins the same request, except one that had received it
   before, if its machine, or the way to it, stood still meanwhile.
4. No request fails while there is a healthy replica, that is, one for which the following held from the beginning of the request
   to its end. Its node and the called node were up, and did not stand still; its worker was well; there was no fault between the
   two machines. In addition, the called node listed it as alive at the beginning, or should have: it had been acknowledged, and
   none of these had a fault for `SETTLED` seconds. Not counted are requests that killed two workers (a node takes those for
   poisonous), names with more than `router.attempts - 1` other replicas that are not well (not all are tried), and requests
   written to a connection whose other end lost its power less than `IDLE` seconds before, as they are not sent again.
5. Bounded memory: at the end nothing is in flight, held or queued, and every table is within its bound.
"""

from collections.abc import Iterator
from math import inf

from bench.seeds.callers import AskedChat
from bench.seeds.machine import SeedMachine
from bench.seeds.worker import Work
from bench.seeds.world import SeedWorld
from registry.intake.newcomers import weight_of
from registry.members.liveness import Presence

SETTLED = 10.0
"""Seconds until nodes list each other as alive again after a fault, as docs/reliability.md promises for partitions."""

IDLE = 15.0
"""Seconds for which an idle connection to another node is kept."""

MOST_TASKS = 150
"""Most tasks of a node at rest, which has some fifty, and a few for each connection."""

_GONE = frozenset({Presence.LOST, Presence.LEFT})
_POISON = "poisonous_request"


class Checks:
    """The checks of one run."""

    def __init__(self, world: SeedWorld) -> None:
        self.world = world
        self.broken: list[str] = []
        world.judged = self._judge  # type: ignore[method-assign]

    def at_end(self) -> list[str]:
        """Return all violations."""
        world = self.world
        for machine in world.machines:
            for error in machine.failures:
                self.broken.append(f"n{machine.number} ended by itself: {error!r}")
        up = [machine for machine in world.machines if machine.parts is not None]
        for viewer in up:
            for machine in world.machines:
                self.broken += self._seen(viewer, machine)
            self.broken += self._bounds(viewer)
        for asked in world.asked:
            self.broken += self._once(asked)
        return self.broken

    # Registrations.

    def _seen(self, viewer: SeedMachine, machine: SeedMachine) -> Iterator[str]:
        parts = viewer.parts
        assert parts is not None
        who = f"n{viewer.number} of n{machine.number}"
        presence = parts.registry.presence(machine.peer)
        if machine.parts is None:
            if machine.peer in parts.registry.catalog.held and presence not in _GONE:
                yield f"ghost: {who}, which is gone: {presence.value}"
            return
        signed = parts.registry.catalog.held.get(machine.peer)
        listed = {s.model for s in signed.record.services} if signed else set()
        registered, host = self.world.registered, machine.number
        kept = {name for where, name in registered.kept if where == host}
        unsure = {name for where, name in registered.open if where == host}
        if viewer is not machine and presence is not Presence.ALIVE:
            yield f"lost: {who}, which lives: {presence.value}"
        if missing := kept - listed:
            yield f"lost registration: {who}: {sorted(missing)[:9]}"
        if ghosts := listed - kept - unsure:
            yield f"ghost: {who}: {sorted(ghosts)[:9]}"

    # Requests.

    def _judge(self, asked: AskedChat) -> None:
        if asked.error and (healthy := self._healthy(asked)):
            self.broken.append(f"request failed though n{healthy[0]} served it: {asked}")

    def _healthy(self, asked: AskedChat) -> list[int]:
        world, since = self.world, asked.began
        if asked.error == _POISON or self._upset(world.machines[asked.host]) >= since:
            return []
        places = [p for p, (_, model) in enumerate(world.plan.workers) if model == asked.model]
        well = [place for place in places if self._is_well(place, asked, since)]
        limit = world.machines[asked.host].settings.router.attempts - 1
        return [world.plan.workers[p][0] for p in well] if len(places) - len(well) <= limit else []

    def _is_well(self, place: int, asked: AskedChat, since: float) -> bool:
        world, ills = self.world, self.world.faults.ills
        host, name = world.plan.workers[place]
        here, there = world.machines[asked.host], world.machines[host]
        registered = world.registered.kept.get((host, name), inf)
        apart = ills.last((asked.host, host)) if host != asked.host else -inf
        ill = max(apart, ills.last(world.models[place].name))
        calm = max(registered, apart, self._upset(here), self._upset(there))
        known = host in asked.listed or calm + SETTLED < since
        stale = asked.error == "worker_died" and there is not here and there.served + IDLE > since
        well = world.models[place].well and not stale
        return self._upset(there) < since and ill < since and well and known

    def _upset(self, machine: SeedMachine) -> float:
        """Return the time when a node was last not up, or stood still; infinity while that is so."""
        if not machine.serves:
            return inf
        return max(machine.served, self.world.faults.ills.last(machine.number))

    def _once(self, asked: AskedChat) -> Iterator[str]:
        if asked.error:
            return
        done = [work for work in self.world.works if work.request == asked.name and work.written]
        if asked.stream:
            if asked.said.split() != [f"w{n}" for n in range(8)]:
                yield f"not each word once: {asked}: {asked.said!r}"
            return
        own = [work for work in done if work.answer == asked.said]
        if len(own) != 1:
            yield f"an answer that nobody gave: {asked}: {asked.said!r}"
        else:
            again = [
                w for w in self.world.works if w.request == asked.name and self._late(w, asked)
            ]
            if again:
                yield f"done again after it was answered: {asked}: {again}"

    def _late(self, work: Work, asked: AskedChat) -> bool:
        """Return whether a worker that was reachable all the time began a request that had already been answered."""
        world = self.world
        ills, place = world.faults.ills, int(work.worker[1:])
        host = world.plan.workers[place][0]
        last = max(map(ills.last, (work.worker, host, asked.host, (asked.host, host))))
        return work.began > asked.ended and last < asked.began

    # Memory.

    def _weight(self, machine: SeedMachine) -> int:
        assert machine.parts is not None
        own = {other.peer for other in self.world.machines}
        held = machine.parts.registry.catalog.held
        return sum(weight_of(word) for node, word in held.items() if node not in own)

    def _bounds(self, machine: SeedMachine) -> Iterator[str]:
        parts, mesh, process = machine.parts, machine.mesh, machine.process
        assert parts is not None
        assert mesh is not None
        assert process is not None
        router, settings = parts.router, machine.settings
        sizes = {
            "attempts under way": (router.attempts_in_flight, 0),
            "requests held": (router.held_count, 0),
            "in flight": (router.in_flight.total(), 0),
            "records": (len(parts.registry.catalog.held), settings.registry.max_nodes),
            "weight of strangers": (self._weight(machine), settings.registry.stranger_services),
            "tasks": (len(self.world.wires.tasks_of(process)), MOST_TASKS),
            "connections": (self.world.wires.open_of(process), 4 * len(self.world.machines) + 20),
            "questions that wait": (mesh.sizes()["waits"], 8),
        }
        for what, (size, most) in sizes.items():
            if size > most:
                yield f"too much at n{machine.number}: {size} {what}, at most {most}"
