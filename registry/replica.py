"""What does one node know, say, and do next? The registry as a state machine without I/O.

Calls return effects; `registry.service` makes them happen. Time is an argument, chance comes in as `jitter`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from registry import wire
from registry.catalog import Catalog, Signed, newer
from registry.errors import InvalidFrame, LimitReached
from registry.liveness import Contact, Evidence, Presence, Pulse, first_pulse, presence
from registry.pace import Pace
from registry.records import Heartbeat, PeerId, Reach, Record, Service, Standing, Version
from registry.settings import RegistrySettings
from registry.signing import Identity

# The first refutations go out at once; a second machine with our key would have us answer it for ever.
_REFUTATIONS_PER_SECOND = 0.2
_REFUTATIONS_AT_ONCE = 5


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this word to the store."""

    signed: Signed


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove this node's word from the store: it made room for another."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this frame to the mesh."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """A node has a newer word than we hold; ask for it."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Changed:
    """What we know of these nodes is not what it was."""

    nodes: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class Contested:
    """Another machine speaks with our key; an operator must look."""

    version: Version


Effect = Persist | Forget | Publish | Fetch | Changed | Contested


class Replica:
    """One node's view of the registry, and its own word in it."""

    def __init__(
        self,
        identity: Identity,
        settings: RegistrySettings,
        *,
        epoch: int,
        jitter: Callable[[], float],
    ) -> None:
        """Begin empty. `epoch` must be greater than any used before and durable already; `jitter` is in [0, 1)."""
        self.peer = identity.peer
        self.own = Record(node=identity.peer, version=Version(epoch, 0))
        self.catalog = Catalog()
        self._identity = identity
        self._settings = settings
        self._jitter = jitter
        self._pulses: dict[PeerId, Pulse] = {}
        self._beat = 0
        self._unpublished = False
        self._next_publish = float("inf")
        self._next_beat = float("-inf")
        self._refutations = Pace(rate=_REFUTATIONS_PER_SECOND, burst=_REFUTATIONS_AT_ONCE)
        rate = settings.frames_per_second
        self._authors = Pace(rate=rate, burst=max(rate * 10, 1.0))

    # What we say.

    def restore(self, frames: Iterable[bytes], now: float) -> int:
        """Take in what the store kept; nobody in it counts as alive. Return how many frames were bad."""
        bad = 0
        for frame in frames:
            try:
                word = wire.decode(frame)
            except InvalidFrame:
                bad += 1
                continue
            if not isinstance(word, Signed):
                bad += 1
            elif word.record.node == self.peer:
                self._step_past(word.record.version)
            elif self._has_room(word.record.node):
                self.catalog = self.catalog.merge([word])
                self._pulses.setdefault(word.record.node, _silent(now))
        return bad

    def announce(
        self,
        now: float,
        *,
        services: Sequence[Service] | None = None,
        reach: Reach | None = None,
        standing: Standing | None = None,
    ) -> list[Effect]:
        """Change our own word; what is `None` stays. Raise `LimitReached`, and change nothing, when it does not fit."""
        draft = self.own
        if services is not None:
            self.fits(services)
            draft = replace(draft, services=tuple(services))
        if reach is not None:
            # A machine with many interfaces has more addresses than a record carries; the first do.
            most = wire.MAX_ADDRESSES
            draft = replace(
                draft, reach=replace(reach, mesh=reach.mesh[:most], links=reach.links[:most])
            )
        if standing is not None:
            draft = replace(draft, standing=standing)
        if draft == self.own and self.peer in self.catalog.held:
            return []
        return self._speak(draft, now)

    def describe(self, agent: str) -> None:
        """Name the software in our record, from the next word on."""
        self.own = replace(self.own, agent=agent)

    def fits(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless a record of these services could be announced."""
        if len(services) > self._settings.max_services:
            raise LimitReached(
                f"a node announces at most {self._settings.max_services:,} models, not {len(services):,}"
            )
        wire.encode_record(replace(self.own, services=tuple(services)), self._identity)

    def hurry(self, now: float) -> None:
        """Make our word and a heartbeat due at once."""
        self._next_beat = now
        if self.peer in self.catalog.held:
            self._next_publish = now

    def tick(self, now: float) -> list[Effect]:
        """Publish what is due, beat, and notice who fell silent."""
        effects: list[Effect] = []
        if now >= self._next_publish:
            self._unpublished = False
            self._next_publish = now + self._spread(self._settings.reannounce)
            effects.append(Publish(self.catalog.held[self.peer].frame))
        if now >= self._next_beat and self.peer in self.catalog.held:
            self._next_beat = now + self._spread(self._settings.heartbeat)
            self._beat += 1
            note = Heartbeat(self.peer, self.own.version, self._beat)
            effects.append(Publish(wire.encode_heartbeat(note, self._identity)))
        changed = frozenset(node for node in self._pulses if self._pass_time(node, now))
        return [*effects, Changed(changed)] if changed else effects

    def due(self) -> float:
        """Return when `tick` next has something to do."""
        settings = self._settings
        lapses = (
            pulse.due(lease=settings.lease, suspicion=settings.suspicion)
            for pulse in self._pulses.values()
        )
        return min(self._next_publish, self._next_beat, min(lapses, default=float("inf")))

    # What we hear.

    def receive(self, frame: bytes, now: float) -> list[Effect]:
        """Take in a frame of anyone's; raise `InvalidFrame` or `LimitReached`."""
        word = wire.decode(frame)
        if isinstance(word, Heartbeat):
            return self._hear_beat(word, now)
        # What is no news costs its author nothing: else whoever repeats old frames of another silences it.
        if self._is_news(word):
            self._spend(word.record.node, now)
        return self.learn(word, heard=now, now=now)

    def learn(self, word: Signed, *, heard: float, now: float) -> list[Effect]:
        """Take in a word that was last confirmed at `heard`; raise `LimitReached` when there is no room."""
        node = word.record.node
        if node == self.peer:
            return self._refute(word, now)
        known = self.catalog.held.get(node)
        effects: list[Effect] = []
        if known is None and not self._has_room(node):
            # The dead make room for the living only; else two full registries swap their dead for ever.
            if heard + self._settings.lease <= now:
                raise LimitReached(f"no room for {node}, which has been silent")
            effects += self._make_room()
        merged = self.catalog.merge([word])
        if merged is self.catalog:
            return effects
        self.catalog = merged
        pulse = self._pulses.get(node)
        # A newer word proves life only as far as it is fresh: a sync may bring one from long ago.
        if pulse is None or heard > pulse.heard:
            first = first_pulse(heard=heard, now=now, lease=self._settings.lease)
            self._pulses[node] = first if pulse is None else _carry(pulse, first)
        return [*effects, Persist(word), Changed(frozenset({node}))]

    def observe(self, node: PeerId, evidence: Evidence, now: float) -> list[Effect]:
        """Take in evidence about a node's life; strangers are not followed."""
        pulse = self._pulses.get(node)
        if pulse is None:
            return []
        self._pulses[node] = pulse.after(evidence, now)
        moved = self._pulses[node].contact is not pulse.contact
        return [Changed(frozenset({node}))] if moved else []

    # What we know.

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us; a stranger is lost."""
        if node == self.peer:
            return presence(self.own.standing, Contact.ALIVE)
        held = self.catalog.held.get(node)
        if held is None:
            return Presence.LOST
        return presence(held.record.standing, self._pulses[node].contact)

    def pulses(self) -> Mapping[PeerId, Pulse]:
        """Return the pulse of every other node that we know."""
        return self._pulses

    def room(self) -> int:
        """Return how many strangers could be taken in, the places of the lost included."""
        lost = sum(pulse.contact is Contact.LOST for pulse in self._pulses.values())
        return max(self._settings.max_nodes - len(self.catalog.held), 0) + lost

    def heard(self, node: PeerId, now: float) -> float:
        """Return when a node last gave a sign of life; `now` for ourselves."""
        pulse = self._pulses.get(node)
        return now if pulse is None else pulse.heard

    # How.

    def _speak(self, draft: Record, now: float) -> list[Effect]:
        version = Version(self.own.version.epoch, self.own.version.sequence + 1)
        signed = wire.encode_record(replace(draft, version=version), self._identity)
        self.own = signed.record
        self.catalog = self.catalog.merge([signed])
        if not self._unpublished:
            self._unpublished = True
            self._next_publish = now + self._settings.coalesce
        return [Persist(signed), Changed(frozenset({self.peer}))]

    def _refute(self, echo: Signed, now: float) -> list[Effect]:
        # Our own word from before a restored backup, or another machine's with our key. Only we
        # may speak for ourselves, so step past it and say again what holds now.
        held = self.catalog.held.get(self.peer)
        if held is not None and self.catalog.merge([echo]) is self.catalog:
            return []
        return self._outbid(echo.record.version, now)

    def _outbid(self, version: Version, now: float) -> list[Effect]:
        self._step_past(version)
        if not self._refutations.allows(self.peer, now):
            return [Contested(version)]
        return self._speak(self.own, now)

    def _step_past(self, version: Version) -> None:
        if version >= self.own.version:
            self.own = replace(self.own, version=version)

    def _hear_beat(self, note: Heartbeat, now: float) -> list[Effect]:
        node = note.node
        if node == self.peer:
            ahead = note.version > self.own.version
            return self._outbid(note.version, now) if ahead else []
        known = self.catalog.held.get(node)
        if known is None or note.version > known.record.version:
            return [Fetch(node)]
        pulse = self._pulses[node]
        # Versions come first: a node restored from a backup steps past its old words and counts beats anew.
        repeated = (note.version, note.beat) <= (pulse.version, pulse.beat)
        if repeated or note.version < known.record.version:
            return []
        self._spend(node, now)
        self._pulses[node] = replace(pulse, beat=note.beat, version=note.version)
        return self.observe(node, Evidence.WORD, now)

    def _is_news(self, word: Signed) -> bool:
        known = self.catalog.held.get(word.record.node)
        return known is None or newer(known, word).frame != known.frame

    def _spend(self, author: PeerId, now: float) -> None:
        if not self._authors.allows(author, now):
            raise LimitReached(f"{author} speaks too often")

    def _pass_time(self, node: PeerId, now: float) -> bool:
        before = self._pulses[node]
        after = before.at(now, lease=self._settings.lease, suspicion=self._settings.suspicion)
        self._pulses[node] = after
        return after is not before

    def _has_room(self, node: PeerId) -> bool:
        held = self.catalog.held
        return node in held or len(held) < self._settings.max_nodes

    def _make_room(self) -> list[Effect]:
        gone = [n for n, p in self._pulses.items() if p.contact is Contact.LOST]
        if not gone:
            raise LimitReached(
                f"the registry holds {self._settings.max_nodes:,} live nodes already"
            )
        oldest = min(gone, key=lambda node: self._pulses[node].heard)
        self.catalog = self.catalog.without(oldest)
        del self._pulses[oldest]
        return [Forget(oldest), Changed(frozenset({oldest}))]

    def _spread(self, seconds: float) -> float:
        # Between 0.75 and 1.25 of the setting, so that nodes which started together drift apart.
        return seconds * (0.75 + 0.5 * self._jitter())


def _silent(now: float) -> Pulse:
    return Pulse(Contact.LOST, heard=float("-inf"), since=now, why=Evidence.SILENCE)


def _carry(pulse: Pulse, fresh: Pulse) -> Pulse:
    kept = replace(pulse, heard=fresh.heard)
    # A word from before the failure that we saw ourselves does not outweigh it.
    outdated = pulse.why is not Evidence.SILENCE and fresh.heard <= pulse.since
    if fresh.contact is pulse.contact or fresh.contact is Contact.LOST or outdated:
        return kept
    return replace(kept, contact=fresh.contact, since=fresh.since, why=fresh.why)
