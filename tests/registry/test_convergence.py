"""Convergence: whatever is lost, doubled, reordered, replayed or restored, once all is delivered all replicas agree.

A hypothesis state machine over a few replicas, their stores, backups of their stores, and every frame ever published.
"""

from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from registry import sync, wire
from registry.catalog import Signed
from registry.effects import Effect, Forget, Persist, Publish
from registry.errors import LimitReached
from registry.records import Heartbeat, PeerId, Service, Standing, Version
from registry.replica import Replica
from registry.settings import RegistrySettings
from tests.strategies import IDENTITIES, few_services, lists_of

SETTINGS = RegistrySettings()
OWNERS = {identity.peer: identity for identity in IDENTITIES}


class Machine:
    """One node: a replica, the store that its effects fill, and what it really serves."""

    def __init__(self, number: int) -> None:
        self.identity = IDENTITIES[number]
        self.disk: dict[PeerId, bytes] = {}
        self.epoch = 0
        self.backups: list[tuple[dict[PeerId, bytes], int]] = []
        self.served: tuple[Service, ...] = ()
        self.outbox: list[bytes] = []

    def start(self, now: float) -> None:
        self.epoch += 1
        self.replica = Replica(self.identity, SETTINGS, epoch=self.epoch, jitter=lambda: 0.5)
        assert self.replica.restore(self.disk.values(), now) == 0
        self.seen: dict[PeerId, Version] = {}
        self.announce(now, standing=Standing.SERVING)

    def announce(self, now: float, *, standing: Standing | None = None) -> None:
        self.perform(self.replica.announce(now, services=self.served, standing=standing))

    def tick(self, now: float) -> None:
        self.perform(self.replica.tick(now))

    def receive(self, frame: bytes, now: float) -> None:
        # Too much at once is dropped, as the service does; comparing makes up for it.
        try:
            effects = self.replica.receive(frame, now)
        except LimitReached:
            return
        self.perform(effects)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist(signed):
                    self.disk[signed.record.node] = signed.frame
                case Forget(node):
                    del self.disk[node]
                case Publish(frame):
                    self.outbox.append(frame)


def compare(asker: Machine, peer: Machine, now: float) -> None:
    talk = sync.compare(asker.replica, lambda: now)
    step = next(talk)
    while True:
        asker.perform([*step.effects])
        reply, effects = sync.answer(peer.replica, step.question, now)
        peer.perform(effects)
        try:
            step = talk.send(reply)
        except StopIteration as done:
            asker.perform(done.value)
            return


someone = st.integers(0, 4)
anything = st.integers(0, 10_000)


class Convergence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.machines: list[Machine] = []
        self.flying: list[tuple[int, bytes]] = []
        self.ever: list[bytes] = []

    @initialize(count=st.integers(3, 5))
    def begin(self, count: int) -> None:
        self.machines = [Machine(number) for number in range(count)]
        for machine in self.machines:
            machine.start(self.now)
            machine.backups.append((dict(machine.disk), machine.epoch))

    def one(self, number: int) -> Machine:
        return self.machines[number % len(self.machines)]

    def collect(self) -> None:
        """Put the published frames on their way to all other machines."""
        for author, machine in enumerate(self.machines):
            for frame in machine.outbox:
                self.ever.append(frame)
                receivers = (n for n in range(len(self.machines)) if n != author)
                self.flying += ((receiver, frame) for receiver in receivers)
            machine.outbox.clear()

    # What operators do.

    @rule(number=someone, services=lists_of(few_services))
    def serve(self, number: int, services: tuple[Service, ...]) -> None:
        self.one(number).served = services
        self.one(number).announce(self.now)

    @rule(number=someone)
    def withdraw(self, number: int) -> None:
        self.one(number).served = ()
        self.one(number).announce(self.now)

    @rule(number=someone, standing=st.sampled_from(Standing))
    def stand(self, number: int, standing: Standing) -> None:
        machine = self.one(number)
        machine.announce(self.now, standing=standing)
        machine.replica.expedite_publication(self.now)

    # What machines do.

    @rule(number=someone)
    def restart(self, number: int) -> None:
        self.one(number).start(self.now)

    @rule(number=someone)
    def back_up(self, number: int) -> None:
        machine = self.one(number)
        machine.backups.append((dict(machine.disk), machine.epoch))

    @rule(number=someone, which=anything)
    def restart_from_a_backup(self, number: int, which: int) -> None:
        machine = self.one(number)
        disk, machine.epoch = machine.backups[which % len(machine.backups)]
        machine.disk = dict(disk)
        machine.start(self.now)

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 5.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for machine in self.machines:
            machine.tick(self.now)
        self.collect()

    # What the network does.

    @precondition(lambda self: self.flying)
    @rule(which=anything)
    def deliver(self, which: int) -> None:
        receiver, frame = self.flying.pop(which % len(self.flying))
        self.machines[receiver].receive(frame, self.now)

    @precondition(lambda self: self.flying)
    @rule(which=anything)
    def drop(self, which: int) -> None:
        self.flying.pop(which % len(self.flying))

    @precondition(lambda self: self.flying)
    @rule(which=anything)
    def double(self, which: int) -> None:
        self.flying.append(self.flying[which % len(self.flying)])

    @precondition(lambda self: self.ever)
    @rule(number=someone, which=anything)
    def replay(self, number: int, which: int) -> None:
        self.one(number).receive(self.ever[which % len(self.ever)], self.now)

    @rule(asker=someone, peer=someone)
    def compare_two(self, asker: int, peer: int) -> None:
        if self.one(asker) is not self.one(peer):
            compare(self.one(asker), self.one(peer), self.now)

    # What always holds.

    @invariant()
    def nobodys_record_was_written_by_another(self) -> None:
        for machine in self.machines:
            for node, signed in machine.replica.catalog.held.items():
                assert signed.record.node == node
                assert signed.frame[2:34] == OWNERS[node].public

    @invariant()
    def versions_never_go_back(self) -> None:
        for machine in self.machines:
            held = machine.replica.catalog.held
            for node, version in machine.seen.items():
                assert held[node].record.version >= version
            machine.seen = {node: signed.record.version for node, signed in held.items()}

    @invariant()
    def what_is_known_of_others_is_what_the_store_would_give_back(self) -> None:
        for machine in self.machines:
            for node, signed in machine.replica.catalog.held.items():
                assert machine.disk[node] == signed.frame

    @invariant()
    def our_own_word_is_the_last_we_said(self) -> None:
        for machine in self.machines:
            signed = machine.replica.catalog.held[machine.identity.peer]
            assert signed.record.services == machine.served

    # What holds in the end.

    def teardown(self) -> None:
        if not self.machines:
            return
        self.settle()
        digests = {machine.replica.catalog.digest for machine in self.machines}
        assert len(digests) == 1
        for machine in self.machines:
            for other in self.machines:
                record = machine.replica.catalog.held[other.identity.peer].record
                assert record == other.replica.own_record
                assert record.services == other.served

    def settle(self) -> None:
        """Deliver everything, then compare all pairs a few times, as time goes on."""
        self.collect()
        for _ in range(4):
            for receiver, frame in self.flying:
                self.machines[receiver].receive(frame, self.now)
            self.flying.clear()
            for asker, peer in permutations(self.machines, 2):
                compare(asker, peer, self.now)
            self.wait(6.0)


TestConvergence = Convergence.TestCase
TestConvergence.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=40
)


def test_the_machine_publishes_records_and_heartbeats() -> None:
    # If nothing were published, everything above would hold trivially.
    one, other = Machine(0), Machine(1)
    for machine in (one, other):
        machine.start(0.0)
        machine.served = (Service("p", "llama"),)
        machine.announce(0.0)
        machine.tick(1.0)
    kinds = {type(wire.decode(frame)) for frame in one.outbox}
    assert kinds == {Signed, Heartbeat}
