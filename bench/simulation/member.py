"""Simulated node: the loops of `registry.service` as events in virtual time.

The service's shell is asyncio; its decisions are repeated here step by step: which node to compare with, when to tick, how to
handle effects. The replica, the exchange and the table of liveness are the real ones.
"""

from collections.abc import Generator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from bench.simulation.probe import Answered, Round, vouch
from registry import sync, wire
from registry.effects import Changed, Effect, Fetch, Probe, Publish
from registry.errors import InvalidFrame, LimitReached
from registry.intake.rate import RateLimit
from registry.members.liveness import LIFE, Evidence
from registry.prober import PROVE, VOUCH
from registry.records import PeerId
from registry.replica import Replica

if TYPE_CHECKING:
    from bench.simulation.world import World

# The service's own numbers, which are private there.
COMPARISONS_AT_ONCE = 4
WAITING_AT_MOST = 256
QUESTIONS_PER_SECOND = 20.0
QUESTIONS_AT_ONCE = 100.0
GRAIN = 0.25


class Member:
    """One node. `full` ones receive the others' messages; the rest only publish and forward frames."""

    def __init__(self, world: "World", number: int, replica: Replica, *, full: bool) -> None:
        self.number = number
        self.full = full
        self.replica = replica
        self.inbox: list[tuple[float, bytes]] = []
        self.life = 0
        self.syncs = 0
        self._world = world
        self._planned = float("inf")
        self._waiting: list[int] = []
        self._running = 0
        self._askers = RateLimit(rate=QUESTIONS_PER_SECOND, burst=QUESTIONS_AT_ONCE)

    @property
    def peer(self) -> PeerId:
        """Its id."""
        return self.replica.peer

    # Life.

    def begin(self, now: float) -> None:
        """Start ticks and comparisons."""
        self.life += 1
        self._planned = float("inf")
        self._waiting.clear()
        self._running = 0
        self.inbox.clear()
        self.plan(now)
        links = self._world.overlay.links[self.number] if self.full else {}
        for other in links:
            # Each was probed at a random moment of the last round over all.
            before = now - len(links) * self._world.settings.probe * self._world.rng.random()
            self.replica.observe(self._world.peer(other), Evidence.LINKED, before)
            self.replica.observe(self._world.peer(other), Evidence.ANSWERED, before)
        if self.full:
            self._compare_later(self.life)
            self._drain_later(self.life)

    def end(self) -> None:
        """Stop at once, as a killed process does."""
        self.life += 1

    # The service's loops.

    def hear(self, now: float) -> None:
        """Process the frames that have arrived by now."""
        if not self.inbox:
            return
        self.inbox.sort(key=itemgetter(0))
        arrived = self.inbox
        self.inbox = [entry for entry in arrived if entry[0] > now]
        for when, frame in arrived[: len(arrived) - len(self.inbox)]:
            try:
                effects = self.replica.receive(frame, when)
            except LimitReached:
                self._world.counters["refused"] += 1
            else:
                if effects:
                    self.perform(effects, when)
                if frame[1] == wire.DOUBT:
                    self._look_soon(now)
        self._world.counters["received"] += len(arrived) - len(self.inbox)

    def tick(self, now: float) -> None:
        """Do what is due, and plan the next tick."""
        self.hear(now)
        self.perform(self.replica.tick(now), now)
        self.plan(max(self.replica.next_due(), now + 0.005))

    def plan(self, when: float) -> None:
        """Plan a tick at `when`, unless an earlier one is planned."""
        if when >= self._planned:
            return
        self._planned = when
        life = self.life

        def due(now: float) -> None:
            if self.life == life and self._planned == when:
                self._planned = float("inf")
                self.tick(now)

        self._world.timeline.at(when, due)

    def joined(self, other: int, now: float) -> None:
        """Take note of a new connection."""
        if self.full:
            self.observe(self._world.peer(other), Evidence.LINKED, now)
            self.want(other, now)
            # Messages that were sent without a connection are sent again.
            if len(self._world.overlay.links[self.number]) == 1:
                self.replica.expedite_publication(now)
                self.plan(now)

    def parted(self, other: int, now: float) -> None:
        """Take note of a lost connection."""
        if self.full:
            self.observe(self._world.peer(other), Evidence.PARTED, now)

    def observe(
        self, node: PeerId, evidence: Evidence, now: float, *, asked_at: float | None = None
    ) -> None:
        """Process evidence, after all frames that have arrived before it."""
        self.hear(now)
        self.perform(self.replica.observe(node, evidence, now, asked_at=asked_at), now)
        if evidence not in LIFE:
            self._look_soon(now)

    def looked(self, node: PeerId, now: float) -> None:
        """Note that a round of probes is over."""
        self.replica.members.end_probe(node, now)
        self._look_soon(now)

    def perform(self, effects: Sequence[Effect], now: float) -> None:
        """Carry out effects."""
        for effect in effects:
            match effect:
                case Publish(frame):
                    self._world.publish(self, frame, now)
                case Fetch(node):
                    self._want_from(node, now)
                case Probe(node):
                    Round(self, self._world, node).begin(now)
                case Changed(nodes):
                    self._world.noted(self, nodes, now)
                    # The service wakes its ticks at once.
                    self.plan(now + 0.005)

    def _look_soon(self, now: float) -> None:
        # The service checks four times a second whether something is due.
        self.plan(now + GRAIN * self._world.rng.random())

    def _drain_later(self, life: int) -> None:
        # Heartbeats have no immediate effect except a comparison, so they are processed four times a second.
        def drain(now: float) -> None:
            if self.life == life:
                self.hear(now)
                self._world.timeline.at(now + GRAIN, drain)

        self._world.timeline.after(self._world.rng.random() * GRAIN, drain)

    # Comparisons.

    def _compare_later(self, life: int) -> None:
        before = self.syncs

        def compare(now: float) -> None:
            if self.life != life:
                return
            others = list(self._world.overlay.links[self.number])
            # Probes compare too, which need not be repeated.
            if others and self.syncs == before:
                self.want(others[int(self._world.rng.random() * len(others))], now)
            self._compare_later(life)

        self._world.timeline.after(
            self._world.settings.sync * (0.5 + self._world.rng.random()), compare
        )

    def want(self, other: int, now: float) -> None:
        """Compare with a neighbour as soon as there is room for a comparison."""
        if other in self._waiting or len(self._waiting) >= WAITING_AT_MOST:
            return
        self._waiting.append(other)
        self._start(now)

    def _want_from(self, node: PeerId, now: float) -> None:
        links = list(self._world.overlay.links[self.number])
        number = self._world.number(node)
        if number in links:
            self.want(number, now)
        elif links:
            self.want(links[int(self._world.rng.random() * len(links))], now)

    def _start(self, now: float) -> None:
        while self._waiting and self._running < COMPARISONS_AT_ONCE:
            self._running += 1
            talk = _Talk(self, self._world, self._waiting.pop(0))
            talk.go_on(None, now)

    def ended(self, now: float) -> None:
        """Make room for the next comparison."""
        self._running -= 1
        self._start(now)

    def answer(self, asker: PeerId, question: bytes, answered: Answered, now: float) -> None:
        """Answer a question, possibly later; never if it is refused."""
        self.hear(now)
        if not self._askers.allows(asker, now):
            self._world.counters["questions_refused"] += 1
            return
        if self.full:
            self.perform(self.replica.observe(asker, Evidence.ASKED, now), now)
        if question[:1] == PROVE:
            answered(self.replica.sign_challenge(question[1:]), now)
        elif question[:1] == VOUCH:
            vouch(self, self._world, question, answered, now)
        else:
            reply, effects = sync.answer(self.replica, question, now)
            answered(reply, now)
            self.perform(effects, now)


class _Talk:
    """One comparison in progress: a question travels, and an answer comes back or times out."""

    def __init__(self, member: Member, world: "World", other: int) -> None:
        self._member = member
        self._world = world
        self._other = other
        self._life = member.life
        self._asked = world.timeline.now
        self._exchange: Generator[sync.Step, bytes, list[Effect]] = sync.compare(
            member.replica, world.timeline.time
        )

    def go_on(self, reply: bytes | None, now: float) -> None:
        """Take an answer, `None` before the first, and send the next question."""
        member = self._member
        member.hear(now)
        try:
            step = next(self._exchange) if reply is None else self._exchange.send(reply)
        except StopIteration as done:
            member.perform(done.value, now)
            self._world.counters["comparisons"] += 1
            member.syncs += 1
            member.ended(now)
        except InvalidFrame:
            self._fail(now)
        else:
            member.perform(step.effects, now)
            wait = self._world.settings.ask_timeout
            self._asked = now
            self._world.ask(
                member, self._other, step.question, self._replied, self._failed, within=wait
            )

    def _replied(self, peer: PeerId, reply: bytes, now: float) -> None:
        if self._member.life == self._life:
            effects = self._member.replica.observe(
                peer, Evidence.ANSWERED, now, asked_at=self._asked
            )
            self._member.perform(effects, now)
            self.go_on(reply, now)

    def _failed(self, now: float) -> None:
        if self._member.life == self._life:
            self._fail(now)

    def _fail(self, now: float) -> None:
        self._world.counters["comparisons_failed"] += 1
        self._member.ended(now)
