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
        for request in world.asked:
            self.broken += self._once(request)
        return self.broken

    # Registrations.

    def _seen(self, viewer: SeedMachine, machine: SeedMachine) -> Iterator[str]:
        parts = viewer.parts
        assert parts is not None
        label = f"n{viewer.number} of n{machine.number}"
        presence = parts.registry.presence(machine.peer)
        if machine.parts is None:
            if machine.peer in parts.registry.catalog.held and presence not in _GONE:
                yield f"ghost: {label}, which is gone: {presence.value}"
            return
        signed = parts.registry.catalog.held.get(machine.peer)
        listed = {s.model for s in signed.record.services} if signed else set()
        registered, host = self.world.registered, machine.number
        kept = {name for owner, name in registered.kept if owner == host}
        unsure = {name for owner, name in registered.open if owner == host}
        if viewer is not machine and presence is not Presence.ALIVE:
            yield f"lost: {label}, which lives: {presence.value}"
        if missing := kept - listed:
            yield f"lost registration: {label}: {sorted(missing)[:9]}"
        if ghosts := listed - kept - unsure:
            yield f"ghost: {label}: {sorted(ghosts)[:9]}"

    # Requests.

    def _judge(self, request: AskedChat) -> None:
        if request.error and (healthy := self._healthy(request)):
            self.broken.append(f"request failed though n{healthy[0]} served it: {request}")

    def _healthy(self, request: AskedChat) -> list[int]:
        world, since = self.world, request.began
        if request.error == _POISON or self._upset(world.machines[request.host]) >= since:
            return []
        indexes = [p for p, (_, model) in enumerate(world.plan.workers) if model == request.model]
        well = [index for index in indexes if self._is_well(index, request, since)]
        limit = world.machines[request.host].settings.router.attempts - 1
        return [world.plan.workers[p][0] for p in well] if len(indexes) - len(well) <= limit else []

    def _is_well(self, index: int, request: AskedChat, since: float) -> bool:
        world, ills = self.world, self.world.faults.ills
        host, name = world.plan.workers[index]
        here, there = world.machines[request.host], world.machines[host]
        registered = world.registered.kept.get((host, name), inf)
        apart = ills.last((request.host, host)) if host != request.host else -inf
        ill = max(apart, ills.last(world.models[index].name))
        calm = max(registered, apart, self._upset(here), self._upset(there))
        listed = host in request.listed or calm + SETTLED < since
        stale = request.error == "worker_died" and there is not here and there.served + IDLE > since
        well = world.models[index].well and not stale
        return self._upset(there) < since and ill < since and well and listed

    def _upset(self, machine: SeedMachine) -> float:
        """Return the time when a node was last not up, or stood still; infinity while that is so."""
        if not machine.serves:
            return inf
        return max(machine.served, self.world.faults.ills.last(machine.number))

    def _once(self, request: AskedChat) -> Iterator[str]:
        if request.error:
            return
        done = [work for work in self.world.works if work.request == request.name and work.written]
        if request.stream:
            if request.said.split() != [f"w{n}" for n in range(8)]:
                yield f"not each word once: {request}: {request.said!r}"
            return
        matching = [work for work in done if work.answer == request.said]
        if len(matching) != 1:
            yield f"an answer that nobody gave: {request}: {request.said!r}"
        else:
            again = [
                w for w in self.world.works if w.request == request.name and self._late(w, request)
            ]
            if again:
                yield f"done again after it was answered: {request}: {again}"

    def _late(self, work: Work, request: AskedChat) -> bool:
        """Return whether a worker that was reachable all the time began a request that had already been answered."""
        world = self.world
        ills, index = world.faults.ills, int(work.worker[1:])
        host = world.plan.workers[index][0]
        last = max(map(ills.last, (work.worker, host, request.host, (request.host, host))))
        return work.began > request.ended and last < request.began

    # Memory.

    def _weight(self, machine: SeedMachine) -> int:
        assert machine.parts is not None
        own_peers = {other.peer for other in self.world.machines}
        held = machine.parts.registry.catalog.held
        return sum(weight_of(signed) for node, signed in held.items() if node not in own_peers)

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
        for kind, (size, limit) in sizes.items():
            if size > limit:
                yield f"too much at n{machine.number}: {size} {kind}, at most {limit}"
