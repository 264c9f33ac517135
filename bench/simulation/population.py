"""Population of a simulated world that has run quietly for long: all nodes know each other, with heartbeats out of step.

Thousands of replicas fit into one process because equal snapshots are one object, and a signature is verified once.

Neither changes the decisions of a replica. `Catalog.merge` is a pure function of immutable values, and `wire.decode` is one of
bytes, so their results may be cached. Every distinct frame is verified in full once per process; a frame that fails is not
cached, and fails again.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from weakref import WeakValueDictionary

from bench.simulation.member import Member
from bench.simulation.world import Plan, World
from registry import wire
from registry.catalog import Catalog, Signed
from registry.errors import LimitReached
from registry.records import PeerId, Reach, Service, Standing
from registry.replica import Replica
from registry.signing import Identity

_KNOWN: "WeakValueDictionary[tuple[int, int], SharedCatalog]" = WeakValueDictionary()

REMEMBERED_FRAMES = 300_000


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SharedCatalog(Catalog):
    """Catalog of which equal ones are the same object."""

    def merge(self, incoming: Iterable[Signed]) -> "Catalog":
        """Merge records; equal results are one object."""
        records = list(incoming)
        if len(records) == 1 and (cached := self._after(records[0])) is not None:
            return cached
        merged = Catalog.merge(self, records)
        if merged is self:
            return self
        return _KNOWN.setdefault((merged.total, len(merged.held)), merged)  # type: ignore[arg-type]

    def _after(self, signed: Signed) -> "SharedCatalog | None":
        # The digest of the result is known before the result is computed.
        before = self.held.get(signed.record.node)
        if before is not None and before.record.version >= signed.record.version:
            return None
        weight = int.from_bytes(signed.fingerprint)
        lost = int.from_bytes(before.fingerprint) if before else 0
        total = (self.total + weight - lost) % (1 << 256)
        return _KNOWN.get((total, len(self.held) + (before is None)))


@dataclass(frozen=True, slots=True)
class Beginning:
    """Stand-in for a catalog while a replica learns its initial records: the same answers, without copies."""

    held: dict[PeerId, Signed]

    def merge(self, incoming: Iterable[Signed]) -> "Beginning":
        """Add all records."""
        self.held.update((signed.record.node, signed) for signed in incoming)
        return Beginning(self.held)


def shared(records: Mapping[PeerId, Signed]) -> Catalog:
    """Return one catalog of many records."""
    return SharedCatalog().merge(records.values())


@contextmanager
def each_frame_verified_once() -> Iterator[None]:
    """Cache the verified frames of `wire.decode` for all replicas of this process."""
    original = wire.decode
    wire.decode = lru_cache(maxsize=REMEMBERED_FRAMES)(original)  # type: ignore[assignment]
    try:
        yield
    finally:
        wire.decode = original


FIRST_EPOCH = 1
MODELS = 200
MODELS_EACH = 3
CERTIFICATE_BYTES = 340


@lru_cache(maxsize=32_768)
def identity(number: int) -> Identity:
    """Return the key of one simulated node."""
    return Identity(number.to_bytes(32, "big"))


def services_of(number: int) -> tuple[Service, ...]:
    """Return the services of one node: a few of the models that many nodes serve."""
    rng = Random(number)
    models = rng.sample(range(MODELS), MODELS_EACH)
    return tuple(Service(f"project-{number % 50}", f"model-{model}") for model in sorted(models))


def reach_of(number: int) -> Reach:
    """Return the reach of one node, of the usual size."""
    host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return Reach(
        mesh=(f"/ip4/{host}/tcp/6101/p2p/{identity(number).peer}",),
        links=(f"{host}:6102",),
        certificate=bytes(CERTIFICATE_BYTES),
    )


def begin(plan: Plan) -> World:
    """Return a world at time zero in which all nodes know each other, with all nodes started."""
    world = World(plan)
    world.dialers.connect()
    chosen = _choose(world)
    records: dict[PeerId, Signed] = {}
    for number in range(plan.nodes):
        full = number in chosen
        replica = world.new_replica(identity(number), FIRST_EPOCH, full=full)
        replica.describe("modelvine/simulated", f"simulated-{number}")
        replica.announce(-1.0, services=services_of(number), reach=reach_of(number))
        records[replica.peer] = replica.catalog.held[replica.peer]
        world.add(Member(world, number, replica, full=full))
    everything = shared(records)
    for member in world.members:
        if member.full:
            _acquaint(member.replica, records)
            member.replica.catalog = everything
        # As if the first messages of this run were sent long ago.
        member.replica.tick(0.0)
    world.beginning = False
    for member in world.members:
        member.begin(0.0)
    world.dialers.begin()
    return world


def _choose(world: World) -> set[int]:
    """Choose the nodes with a whole replica: one node with all its neighbours, and random others."""
    plan = world.plan
    if plan.full >= plan.nodes:
        return set(range(plan.nodes))
    # Not a bootstrap node, as those have hundreds of neighbours.
    world.centre = plan.nodes // 2
    near = [n for n in world.overlay.links[world.centre] if n >= plan.bootstraps]
    chosen = dict.fromkeys([world.centre, *near])
    chosen.update(dict.fromkeys(world.rng.sample(range(plan.nodes), plan.full)))
    return set(list(chosen)[: max(plan.full, 1 + len(near))])


def speak(member: Member, now: float) -> None:
    """Let a node publish its first record of a run."""
    effects = member.replica.announce(
        now,
        services=services_of(member.number),
        reach=reach_of(member.number),
        standing=Standing.SERVING,
    )
    member.perform(effects, now)


def restart(world: World, number: int, *, frames: list[bytes]) -> None:
    """Restart a node under the next epoch, with the frames that its store kept of other nodes."""
    member = world.members[number]
    epoch = member.replica.own_record.version.epoch + 1
    member.replica = world.new_replica(identity(number), epoch, full=member.full)
    member.replica.catalog = shared({})
    now = world.timeline.now
    member.replica.restore(frames, now)
    world.overlay.set_up(number, up=True)
    world.dialers.enter(number)
    member.begin(now)
    speak(member, now)


def _acquaint(replica: Replica, records: dict[PeerId, Signed]) -> None:
    own_peer = replica.peer
    replica.catalog = Beginning({own_peer: records[own_peer]})  # type: ignore[assignment]
    for node, signed in records.items():
        if node != own_peer:
            try:
                replica.merge_record(signed, heard_at=0.0, now=0.0)
            except LimitReached as error:
                raise SystemExit(
                    f"the plan has more nodes than registry.max_nodes: {error}"
                ) from error
