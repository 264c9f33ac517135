"""World of simulated nodes: virtual time, the network between them, and counters of what they send."""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.simulation.dialer import Dialers
from bench.simulation.member import Member
from bench.simulation.overlay import NEVER, Overlay, Spread, Weather
from registry import wire
from registry.members.liveness import Status
from registry.members.membership import FEW, LONGEST_LEASE
from registry.prober import PROVE, VOUCH
from registry.records import PeerId
from registry.replica import Replica
from registry.settings import MeshSettings, RegistrySettings
from registry.signing import Identity

Action = Callable[[float], None]
"""Callback that gets the virtual time at which it runs."""


class Timeline:
    """Queue of actions by virtual time, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._count = 0

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def at(self, when: float, action: Action) -> None:
        """Run `action` at `when`, or at once if that has passed."""
        self._count += 1
        heapq.heappush(self._planned, (max(when, self.now), self._count, action))

    def after(self, delay: float, action: Action) -> None:
        """Run `action` in `delay` seconds."""
        self.at(self.now + delay, action)

    def every(self, period: float, action: Action) -> None:
        """Run `action` once each period, first after one period."""

        def again(now: float) -> None:
            action(now)
            self.at(now + period, again)

        self.after(period, again)

    def run(self, until: float) -> None:
        """Run all actions up to the time `until`."""
        planned = self._planned
        while planned and planned[0][0] <= until:
            self.now, _, action = heapq.heappop(planned)
            action(self.now)
        self.now = until


ENVELOPE = 172
"""Bytes that gossipsub adds to a frame: author, number, topic, key and its own signature, as py-libp2p encodes them."""

PACKET = 82 + 42
"""Bytes of lower layers for a short message: noise 18, yamux 12, TCP and IP 52; and 0.8 acknowledgements, as in `bench.idle`."""

ASKING = 4 + 4 + 2 * PACKET
"""Bytes of overhead of one question and answer on an open stream: lengths and packets."""

MESSAGE_ID = 48
"""Bytes by which a message is named to a neighbour."""

NAMES = {wire.RECORD: "record_bytes", wire.HEARTBEAT: "beat_bytes", wire.DOUBT: "doubt_bytes"}

POOL = 64
POOL_USES = 50
EXACT_UP_TO = 500


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a simulation. `full` nodes carry a whole replica; all others only publish and forward frames."""

    nodes: int
    full: int
    seed: int = 1
    weather: Weather = field(default_factory=Weather)
    settings: RegistrySettings = field(default_factory=RegistrySettings)
    mesh: MeshSettings = field(default_factory=MeshSettings)
    bootstraps: int = 3


@dataclass(slots=True)
class Sighting:
    """Times at which each node first saw something, in virtual seconds."""

    author: PeerId
    holds: Callable[[Replica], bool]
    by_frame: bool = False
    at: dict[int, float] = field(default_factory=dict)


class World:
    """All nodes, and the network between them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.rng = random.Random(plan.seed)
        self.timeline = Timeline()
        self.overlay = Overlay(plan.nodes, plan.weather, self.rng)
        self.counters: Counter[str] = Counter()
        self.members: list[Member] = []
        self.sightings: list[Sighting] = []
        self._full: list[Member] = []
        self.beginning = True
        self.centre = 0
        self.silent: set[int] = set()
        self._numbers: dict[PeerId, int] = {}
        self._pool: dict[int, deque[Spread]] = {}
        self._uses: Counter[int] = Counter()
        self.dialers = Dialers(self)

    # Nodes.

    def add(self, member: Member) -> None:
        """Add a node; its number is its position."""
        self.members.append(member)
        if member.full:
            self._full.append(member)
        self._numbers[member.peer] = member.number

    def peer(self, number: int) -> PeerId:
        """Return a node's id."""
        return self.members[number].peer

    def number(self, peer: PeerId) -> int:
        """Return a node's number."""
        return self._numbers[peer]

    def full(self) -> list[Member]:
        """Return the nodes with a whole replica that are up."""
        return [m for m in self._full if self.overlay.up[m.number]]

    def new_replica(self, identity: Identity, epoch: int, *, full: bool) -> Replica:
        """Return a replica with this world's randomness; one that is not full gets the intervals of a mesh of this size."""
        settings = self.settings
        if not full:
            rarity = min(max(self.plan.nodes / FEW, 1.0), LONGEST_LEASE / settings.lease)
            slower = {name: rarity * vars(settings)[name] for name in ("heartbeat", "reannounce")}
            settings = settings.model_copy(update=slower)
        return Replica(identity, settings, epoch=epoch, jitter=self._jitter)

    def _jitter(self) -> float:
        # Intervals of three quarters to five quarters of a period become, at the beginning, any part of a period: as if all
        # nodes had run for long.
        return (self.rng.random() - 0.75) * 2 if self.beginning else self.rng.random()

    # Frames.

    def publish(self, author: Member, frame: bytes, now: float) -> None:
        """Send a frame through the mesh."""
        origin = author.number
        if not self.overlay.up[origin]:
            return
        kind = frame[1]
        exact = kind != wire.HEARTBEAT or self.plan.nodes <= EXACT_UP_TO
        spread = self.overlay.spread(origin) if exact else self._like_others(origin)
        self.counters["messages"] += 1
        self.counters["doubts"] += kind == wire.DOUBT
        self.counters["copies"] += spread.copies
        self.counters[NAMES[kind]] += spread.copies * len(frame)
        for member in self._full:
            after = spread.after[member.number]
            if after < NEVER and member.number != origin:
                member.inbox.append((now + after, frame))
                if kind != wire.HEARTBEAT:
                    self._wake(member, now + after)
        if kind == wire.RECORD:
            self._sight_frame(author, spread, now)

    def _like_others(self, origin: int) -> Spread:
        # One spread in fifty is computed; the others reuse a recent one of this side. A heartbeat may thus arrive some tens
        # of milliseconds sooner or later, compared with a lease of seconds.
        side = self.overlay.side[origin]
        pool = self._pool.setdefault(side, deque(maxlen=POOL))
        self._uses[side] += 1
        if len(pool) < POOL or self._uses[side] % POOL_USES == 0:
            pool.append(self.overlay.spread(origin))
            return pool[-1]
        return pool[int(self.rng.random() * len(pool))]

    def forget_ways(self) -> None:
        """Clear the pool of spreads, after a change that concerns all nodes."""
        self._pool.clear()

    def _wake(self, member: Member, when: float) -> None:
        life = member.life
        self.timeline.at(when, lambda now: member.hear(now) if member.life == life else None)

    # Questions.

    def ask(
        self,
        asker: Member,
        other: int,
        question: bytes,
        replied: Callable[[PeerId, bytes, float], None],
        failed: Callable[[float], None],
        *,
        within: float,
    ) -> None:
        """Carry a question and its answer; if either is lost, the question times out."""
        overlay, timeline = self.overlay, self.timeline
        give_up = timeline.now + within
        there, back = overlay.trip(asker.number, other), overlay.trip(asker.number, other)
        stands_for = self._stand_in(asker, other, question)
        self.counters["questions"] += 1
        self.counters["sync_bytes"] += len(question)
        settled = False

        def give_it_up(now: float) -> None:
            if not settled:
                failed(now)

        def take(now: float, reply: bytes) -> None:
            nonlocal settled
            if now < give_up and not settled:
                settled = True
                replied(self.peer(other), reply, now)

        def send_back(reply: bytes, now: float) -> None:
            self.counters["sync_bytes"] += len(reply)
            if back < NEVER:
                timeline.at(now + back, lambda then: take(then, reply))

        def arrive(now: float) -> None:
            if stands_for and overlay.carries(asker.number, other):
                stands_for.answer(asker.peer, question, send_back, now)

        timeline.at(give_up, give_it_up)
        if there < NEVER:
            timeline.after(there, arrive)

    def _stand_in(self, asker: Member, other: int, question: bytes) -> Member | None:
        # For a neighbour without a replica, a random node on the same side that has one answers.
        if self.members[other].full or question[:1] in (PROVE, VOUCH):
            return self.members[other]
        side = self.overlay.side[asker.number]
        able = [m for m in self.full() if m is not asker and self.overlay.side[m.number] == side]
        return able[int(self.rng.random() * len(able))] if able else None

    # Faults.

    def link(self, one: int, other: int, now: float) -> None:
        """Connect two nodes and notify both."""
        self.overlay.link(one, other)
        self.members[one].joined(other, now)
        self.members[other].joined(one, now)

    def unlink(self, one: int, other: int, now: float) -> None:
        """Remove a connection and notify both ends that are up."""
        if other not in self.overlay.links[one]:
            return
        self.overlay.unlink(one, other)
        for a, b in ((one, other), (other, one)):
            if self.overlay.up[a]:
                self.dialers.lost(a, b, now)
                self.members[a].parted(b, now)

    def kill(self, number: int, *, silently: bool) -> None:
        """End a node. Its neighbours notice by a reset or, with `silently`, by unanswered pings."""
        self.overlay.set_up(number, up=False)
        if silently:
            self.silent.add(number)
        self.members[number].end()
        for other in list(self.overlay.links[number]):
            wait = self.ping_wait() if silently else 0.1 + self.overlay.links[number][other]
            self._unlink_later(number, other, wait)

    def divide(self, side_of: Callable[[int], int]) -> None:
        """Partition the network; connections across end when their pings fail."""
        self.overlay.divide(side_of)
        self.forget_ways()
        for one, links in enumerate(self.overlay.links):
            for other in links:
                if one < other and not self.overlay.carries(one, other):
                    self._unlink_later(one, other, self.ping_wait())

    def heal(self) -> None:
        """End the partition; connections come back when they are dialled."""
        self.overlay.divide(lambda _: 0)
        self.forget_ways()

    def ping_wait(self) -> float:
        """Draw the seconds until a connection that carries nothing is given up."""
        return self.rng.random() * self.plan.mesh.ping + self.plan.mesh.ping_timeout

    def _unlink_later(self, one: int, other: int, wait: float) -> None:
        def give_up(now: float) -> None:
            if not self.overlay.carries(one, other):
                self.unlink(one, other, now)

        self.timeline.after(wait, give_up)

    # Measurements.

    def noted(self, member: Member, nodes: Iterable[PeerId], now: float) -> None:
        """Check whether a node's news completes a sighting, or declares a living node lost."""
        for node in nodes:
            health = member.replica.member_health().get(node)
            lost = health is not None and health.contact is Status.LOST and health.since == now
            if lost and self.overlay.up[self._numbers[node]]:
                self.counters["deaths"] += 1
        for sighting in self.sightings:
            fresh = member.number not in sighting.at and sighting.author in nodes
            if fresh and sighting.holds(member.replica):
                sighting.at[member.number] = now

    def watch(self, sighting: Sighting) -> Sighting:
        """Add a sighting to watch for."""
        self.sightings.append(sighting)
        return sighting

    def _sight_frame(self, author: Member, spread: Spread, now: float) -> None:
        # A node without a replica has seen a record when the frame arrives.
        for sighting in self.sightings:
            if (
                sighting.by_frame
                and sighting.author == author.peer
                and sighting.holds(author.replica)
            ):
                for member in self.members:
                    if not member.full and spread.after[member.number] < NEVER:
                        sighting.at.setdefault(member.number, now + spread.after[member.number])
