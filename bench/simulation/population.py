"""Population of a simulated world that has long run quietly: every node known to all, its heartbeats out of step.

Thousands of replicas fit one process because equal snapshots are one object, and a signature is checked once.

Neither changes what a replica decides. `Catalog.merge` is a pure function of immutable values, so its results may be
remembered; `wire.decode` is a pure function of bytes, so is its verdict. Every distinct frame is verified in full
once per process; one that fails is not remembered, and fails again.
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
    """A catalog that is the same object wherever it holds the same."""

    def merge(self, incoming: Iterable[Signed]) -> "Catalog":
        """Fold records in; equal results are one object."""
        words = list(incoming)
        if len(words) == 1 and (known := self._after(words[0])) is not None:
            return known
        merged = Catalog.merge(self, words)
        if merged is self:
            return self
        return _KNOWN.setdefault((merged.total, len(merged.held)), merged)  # type: ignore[arg-type]

    def _after(self, word: Signed) -> "SharedCatalog | None":
        # The digest of the outcome is known before the outcome is made.
        before = self.held.get(word.record.node)
        if before is not None and before.record.version >= word.record.version:
            return None
        weight = int.from_bytes(word.fingerprint)
        lost = int.from_bytes(before.fingerprint) if before else 0
        total = (self.total + weight - lost) % (1 << 256)
        return _KNOWN.get((total, len(self.held) + (before is None)))


@dataclass(frozen=True, slots=True)
class Beginning:
    """Stands for a catalog while a replica learns what it starts with: the same answers, without copies."""

    held: dict[PeerId, Signed]

    def merge(self, incoming: Iterable[Signed]) -> "Beginning":
        """Take everything in."""
        self.held.update((signed.record.node, signed) for signed in incoming)
        return Beginning(self.held)


def shared(words: Mapping[PeerId, Signed]) -> Catalog:
    """Make one catalog of many words."""
    return SharedCatalog().merge(words.values())


@contextmanager
def each_frame_verified_once() -> Iterator[None]:
    """Let `wire.decode` remember what it verified, for all replicas of this process together."""
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
    """Return what one node serves: a few of the models that many serve."""
    rng = Random(number)
    models = rng.sample(range(MODELS), MODELS_EACH)
    return tuple(Service(f"project-{number % 50}", f"model-{model}") for model in sorted(models))


def reach_of(number: int) -> Reach:
    """Return how one node is reached; of the usual size."""
    host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return Reach(
        mesh=(f"/ip4/{host}/tcp/6101/p2p/{identity(number).peer}",),
        links=(f"{host}:6102",),
        certificate=bytes(CERTIFICATE_BYTES),
    )


def begin(plan: Plan) -> World:
    """Make a world at time zero in which everybody knows everybody, and start all its clocks."""
    world = World(plan)
    world.dialers.connect()
    chosen = _choose(world)
    words: dict[PeerId, Signed] = {}
    for number in range(plan.nodes):
        full = number in chosen
        replica = world.new_replica(identity(number), FIRST_EPOCH, full=full)
        replica.describe("modelvine/simulated", f"simulated-{number}")
        replica.announce(-1.0, services=services_of(number), reach=reach_of(number))
        words[replica.peer] = replica.catalog.held[replica.peer]
        world.add(Member(world, number, replica, full=full))
    everything = shared(words)
    for member in world.members:
        if member.full:
            _acquaint(member.replica, words)
            member.replica.catalog = everything
        # The first words of this run were said long ago.
        member.replica.tick(0.0)
    world.beginning = False
    for member in world.members:
        member.begin(0.0)
    world.dialers.begin()
    return world


def _choose(world: World) -> set[int]:
    """Choose who carries a whole replica: one node with all its neighbours, and others by chance."""
    plan = world.plan
    if plan.full >= plan.nodes:
        return set(range(plan.nodes))
    # Somebody who is no bootstrap peer: those have hundreds of neighbours.
    world.centre = plan.nodes // 2
    near = [n for n in world.overlay.links[world.centre] if n >= plan.bootstraps]
    chosen = dict.fromkeys([world.centre, *near])
    chosen.update(dict.fromkeys(world.rng.sample(range(plan.nodes), plan.full)))
    return set(list(chosen)[: max(plan.full, 1 + len(near))])


def speak(member: Member, now: float) -> None:
    """Have a node say its first word of a run."""
    effects = member.replica.announce(
        now,
        services=services_of(member.number),
        reach=reach_of(member.number),
        standing=Standing.SERVING,
    )
    member.perform(effects, now)


def restart(world: World, number: int, *, kept: list[bytes]) -> None:
    """Start a node again, under the next epoch, with what its store kept of others."""
    member = world.members[number]
    epoch = member.replica.own.version.epoch + 1
    member.replica = world.new_replica(identity(number), epoch, full=member.full)
    member.replica.catalog = shared({})
    now = world.timeline.now
    member.replica.restore(kept, now)
    world.overlay.set_up(number, up=True)
    world.dialers.enter(number)
    member.begin(now)
    speak(member, now)


def _acquaint(replica: Replica, words: dict[PeerId, Signed]) -> None:
    own = replica.peer
    replica.catalog = Beginning({own: words[own]})  # type: ignore[assignment]
    for node, word in words.items():
        if node != own:
            try:
                replica.learn(word, heard=0.0, now=0.0)
            except LimitReached as error:
                raise SystemExit(
                    f"the plan has more nodes than registry.max_nodes: {error}"
                ) from error
