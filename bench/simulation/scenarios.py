"""Scenarios of the simulation, each in a fresh world, and their figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.simulation.member import Member
from bench.simulation.overlay import Weather
from bench.simulation.population import begin, restart
from bench.simulation.world import ASKING, ENVELOPE, MESSAGE_ID, PACKET, Plan, Sighting, World
from registry.members.liveness import Status
from registry.records import PeerId, Service, Version
from registry.replica import Replica


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what was measured, its value and unit, and `of` how many."""

    scenario: str
    what: str
    value: float
    unit: str
    of: str = ""


def traffic(world: World, name: str, seconds: float) -> list[Figure]:
    """Return what a node sent in some seconds, by kind, and in total with all overhead."""
    counters, nodes = world.counters, world.plan.nodes
    full = len(world.full())
    per_node = {
        "heartbeats": counters["beat_bytes"] / nodes,
        "doubts": counters["doubt_bytes"] / nodes,
        "records": counters["record_bytes"] / nodes,
        "probes and comparisons": counters["sync_bytes"] / full,
    }
    rate = counters["messages"] / seconds
    naming = world.overlay.named_to() * 3 * rate * MESSAGE_ID
    around = (
        counters["copies"] / nodes * (ENVELOPE + PACKET) + counters["questions"] / full * ASKING
    )
    # Each end of a connection pings the other, and answers it.
    links = mean([float(len(links)) for links in world.overlay.links])
    pings = 2 * links / world.plan.mesh.ping * PACKET
    sent = sum(per_node.values())
    return [
        Figure(name, "messages that a node takes in", rate, "per s"),
        *(Figure(name, f"sent: {kind}", size / seconds, "B/s") for kind, size in per_node.items()),
        Figure(name, "sent: frames, questions and answers", sent / seconds, "B/s"),
        Figure(name, "sent: pings", pings, "B/s"),
        Figure(name, "sent: everything", (sent + around) / seconds + naming + pings, "B/s"),
    ]


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN if there are no values."""
    return sum(values) / len(values) if values else math.nan


def at_share(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all values lies, NaN if there are none."""
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else math.nan


def percentiles(name: str, title: str, values: Sequence[float]) -> list[Figure]:
    """Return the 50th and 99th percentiles and the maximum."""
    of = f"{len(values):,}"
    return [
        Figure(name, f"{title}, {label}", at_share(values, share), "s", of)
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    ]


DOWN_SECONDS = 2.0
HARD = Weather(delay=0.1, loss=0.02)
SIDE = 5, 2  # of five nodes, two are on the smaller side


Scenario = Callable[[Plan], list[Figure]]


def idle(plan: Plan) -> list[Figure]:
    """Measure the traffic of a quiet mesh: bytes per node and second."""
    # All together send a record in ten seconds.
    seconds = 600.0
    world = begin(plan)
    world.timeline.run(2.0)
    world.counters.clear()
    world.timeline.run(2.0 + seconds)
    return traffic(world, "idle", seconds)


def churn(plan: Plan, *, percent: float = 5.0, seconds: float = 60.0) -> list[Figure]:
    """Restart some per cent of all nodes each minute: traffic, and what the others see meanwhile."""
    world = begin(plan)
    world.timeline.run(2.0)
    world.counters.clear()
    gap = 60.0 / (plan.nodes * percent / 100.0)
    when = 2.0
    while (when := when + gap * (0.5 + world.rng.random())) < 2.0 + seconds:
        world.timeline.at(when, lambda _: _bounce(world))
    world.timeline.run(2.0 + seconds)
    figures = traffic(world, "churn", seconds)
    alone = [_missing(world, member) for member in world.full()]
    figures.append(Figure("churn", "records behind, at the end", mean(alone), "per node"))
    equal = _most_common_digest(world)
    figures.append(Figure("churn", "nodes with the commonest digest", 100 * equal, "%"))
    return figures


def visibility(plan: Plan, *, samples: int = 5) -> list[Figure]:
    """Change the services of some nodes: time until all nodes see it."""
    world = begin(plan)
    world.timeline.run(1.0)
    waits: list[float] = []
    for number in world.rng.sample([m.number for m in world.full()], min(samples, plan.full)):
        waits += _sees(world, number, (Service("new", f"model-of-{number}"),), within=4.0)
    return percentiles("visible", "until a node sees a registration", waits)


def burst(plan: Plan, *, models: int = 500) -> list[Figure]:
    """Register many models at one node within a second: time until all nodes see the last."""
    world = begin(plan)
    world.timeline.run(1.0)
    member = world.full()[0]
    begun = world.timeline.now
    for index in range(1, 11):
        upto = tuple(Service(f"burst-{n % 100}", f"model-{n}") for n in range(models * index // 10))
        world.timeline.at(begun + index / 10, _announcing(member, upto))
    sighting = world.watch(_knows(member, {Service("burst-99", f"model-{models - 1}")}))
    world.timeline.run(begun + 8.0)
    since = [
        seen_at - begun - 1.0 for number, seen_at in sighting.at.items() if number != member.number
    ]
    lost = plan.nodes - 1 - len(since)
    return [
        *percentiles("burst", f"until a node sees the last of {models} models", since),
        Figure("burst", "nodes that never saw it", lost, "nodes", f"{plan.nodes - 1}"),
    ]


def killed(plan: Plan) -> list[Figure]:
    """Kill a node's process: time until it is out of the live view at the others."""
    return _kill(plan, "killed", silently=False)


def vanished(plan: Plan) -> list[Figure]:
    """Disconnect a machine: time until it is out of the live view at the others."""
    return _kill(plan, "vanished", silently=True)


def false_deaths(plan: Plan, *, weather: Weather = HARD) -> list[Figure]:
    """Count how often a living node is taken for lost, under loss and delay."""
    plan = replace(plan, weather=weather)
    # The cost of a second grows with the square of N, and so do the pairs that are watched in it.
    seconds = min(600.0, max(60.0, 600.0 * (300 / plan.nodes) ** 2))
    world = begin(plan)
    world.timeline.run(seconds)
    pairs = len(world.full()) * (plan.nodes - 1)
    hours = f"{pairs * seconds / 3600:,.0f} pair-hours in {seconds:.0f} s"
    lost = world.counters["deaths"]
    name = "deaths" if not weather.drop else "drops"
    return [Figure(name, "living nodes taken for lost", lost, "deaths", hours)]


def split(plan: Plan, *, seconds: float = 20.0) -> list[Figure]:
    """Partition the net 2|3 for a while, with changes on both sides: time from healing until all digests are equal."""
    world = begin(plan)
    world.timeline.run(1.0)
    world.divide(lambda number: int(number % SIDE[0] < SIDE[1]))
    full = world.full()
    for index, member in enumerate(world.rng.sample(full, min(20, len(full)))):
        when = world.timeline.now + seconds * (0.1 + 0.8 * index / 20)
        world.timeline.at(when, _announcing(member, (Service("split", f"model-{index}"),)))
    world.timeline.run(world.timeline.now + seconds)
    world.heal()
    healed = world.timeline.now
    equal = _until(world, lambda: len({m.replica.catalog.digest for m in full}) == 1, within=60.0)
    alive = _until(world, lambda: _see_each_other(full), within=60.0)
    name = f"split {seconds:.0f} s"
    return [
        Figure(name, "from healing until all digests are equal", equal - healed, "s"),
        Figure(name, "from healing until everybody sees everybody alive", alive - healed, "s"),
    ]


def joining(plan: Plan) -> list[Figure]:
    """Start a node without any state: time until it sees everything, and until all nodes see it."""
    world = begin(plan)
    world.timeline.run(1.0)
    member = world.full()[-1]
    _take_down(world, member.number)
    world.timeline.run(world.timeline.now + DOWN_SECONDS)
    epoch = Version(member.replica.own_record.version.epoch + 1, 0)
    sighting = world.watch(Sighting(member.peer, lambda r: _version(r, member.peer) > epoch))
    started = world.timeline.now
    restart(world, member.number, frames=[])
    ready = _until(
        world, lambda: len(member.replica.catalog.held) == plan.nodes and _sees_all(member), 30.0
    )
    world.timeline.run(started + 12.0)
    times = [sighting.at.get(m.number, math.inf) - started for m in world.full() if m is not member]
    return [
        Figure("joiner", "until it sees everything", ready - started, "s"),
        *percentiles("joiner", "until a node sees it", times),
    ]


SCENARIOS: dict[str, Scenario] = {
    "idle": idle,
    "visible": visibility,
    "burst": burst,
    "killed": killed,
    "vanished": vanished,
    "deaths": false_deaths,
    "drops": lambda plan: false_deaths(plan, weather=Weather(delay=0.1, drop=0.02)),
    "joiner": joining,
    "split": split,
    "split90": lambda plan: split(plan, seconds=90.0),
    "churn": churn,
}
"""Every scenario by name."""


# Implementation.


def _kill(plan: Plan, name: str, *, silently: bool) -> list[Figure]:
    world = begin(plan)
    world.timeline.run(1.0)
    victim = world.members[world.centre or plan.nodes // 2]
    near = set(world.overlay.links[victim.number])
    died = world.timeline.now + world.settings.probe * world.rng.random()
    world.timeline.run(died)
    gone = world.watch(
        Sighting(victim.peer, lambda r: r.member_health()[victim.peer].contact is Status.LOST)
    )
    doubted = world.watch(
        Sighting(victim.peer, lambda r: r.member_health()[victim.peer].contact is not Status.ALIVE)
    )
    world.kill(victim.number, silently=silently)
    world.timeline.run(died + 25.0)
    others = [m.number for m in world.full()]
    lost = [gone.at[n] - died for n in others if n in gone.at]
    figures = percentiles(name, "until a node is out of the live view", lost)
    close = [doubted.at[n] - died for n in others if n in doubted.at and n in near]
    figures.append(Figure(name, "until its neighbours doubt it, median", at_share(close, 0.5), "s"))
    never = len(others) - len(lost)
    figures.append(Figure(name, "nodes that never noticed", never, "nodes", f"{len(others)}"))
    figures.append(Figure(name, "doubts said aloud", world.counters["doubts"], "doubts"))
    return figures


def _sees(world: World, number: int, services: tuple[Service, ...], within: float) -> list[float]:
    member = world.members[number]
    begun = world.timeline.now
    sighting = world.watch(_knows(member, set(services)))
    _announcing(member, services)(begun)
    _until(world, lambda: len(sighting.at) >= world.plan.nodes, within)
    world.sightings.remove(sighting)
    late = world.plan.nodes - len(sighting.at)
    times = [seen_at - begun for other, seen_at in sighting.at.items() if other != number]
    return times + [math.inf] * max(late, 0)


def _knows(member: Member, services: set[Service]) -> Sighting:
    peer = member.peer

    def holds(replica: Replica) -> bool:
        signed = replica.catalog.held.get(peer)
        return signed is not None and services.issubset(signed.record.services)

    return Sighting(peer, holds, by_frame=True)


def _announcing(member: Member, services: Sequence[Service]) -> Callable[[float], None]:
    def announce(now: float) -> None:
        member.perform(member.replica.announce(now, services=services), now)

    return announce


def _bounce(world: World) -> None:
    candidates = [m.number for m in world.members if world.overlay.up[m.number]]
    number = candidates[int(world.rng.random() * len(candidates))]
    _take_down(world, number)
    held = world.members[number].replica.catalog.held
    frames = [signed.frame for signed in held.values()] if world.members[number].full else []
    world.timeline.after(DOWN_SECONDS, lambda _: restart(world, number, frames=frames))


def _take_down(world: World, number: int) -> None:
    world.kill(number, silently=False)


def _until(world: World, holds: Callable[[], bool], within: float) -> float:
    """Run until a condition holds, checked ten times a second, and return the time; infinity if it does not in time."""
    end = world.timeline.now + within
    while not holds():
        if world.timeline.now >= end:
            return math.inf
        world.timeline.run(world.timeline.now + 0.1)
    return world.timeline.now


def _see_each_other(full: Sequence[Member]) -> bool:
    # A node without a replica does not notice that it was cut off, so it does not announce itself again either.
    peers = [m.peer for m in full]
    return all(
        m.replica.member_health()[peer].contact is not Status.LOST
        for m in full
        for peer in peers
        if peer != m.peer
    )


def _sees_all(member: Member) -> bool:
    return all(p.contact is not Status.LOST for p in member.replica.member_health().values())


def _version(replica: Replica, peer: PeerId) -> Version:
    signed = replica.catalog.held.get(peer)
    return signed.record.version if signed else Version(-1, -1)


def _missing(world: World, member: Member) -> float:
    held = member.replica.catalog.held
    return sum(
        other.peer not in held or held[other.peer].record.version < other.replica.own_record.version
        for other in world.members
    )


def _most_common_digest(world: World) -> float:
    digests = [member.replica.catalog.digest for member in world.full()]
    return max(map(digests.count, set(digests))) / len(digests)
