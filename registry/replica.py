"""What does one node know, say, and do next? The registry as a state machine without I/O.

Calls return effects; `registry.service` makes them happen. Time is an argument, chance comes in as `jitter`.
What we say is in `registry.voice`, who lives in `registry.membership`; here is what we hear and hold.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from registry import wire
from registry.catalog import Catalog, Signed, newer
from registry.effects import Changed, Contested, Effect, Fetch, Forget, Persist, Publish
from registry.errors import InvalidFrame, LimitReached
from registry.liveness import Contact, Evidence, Presence, Pulse, presence
from registry.membership import Membership
from registry.pace import Pace
from registry.records import Heartbeat, PeerId, Reach, Record, Service, Standing, Version
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.voice import Voice

__all__ = [
    "Changed",
    "Contested",
    "Effect",
    "Fetch",
    "Forget",
    "Persist",
    "Publish",
    "Replica",
]


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
        self.catalog = Catalog()
        self._settings = settings
        self._voice = Voice(identity, settings, epoch=epoch, jitter=jitter)
        self._members = Membership(settings)
        rate = settings.frames_per_second
        self._authors = Pace(rate=rate, burst=max(rate * 10, 1.0))

    # What we say.

    @property
    def own(self) -> Record:
        """Our own newest word."""
        return self._voice.own

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
                self._voice.step_past(word.record.version)
            elif self._has_room(word.record.node):
                self.catalog = self.catalog.merge([word])
                self._members.restore(word.record.node, now)
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
        draft = self._voice.draft(services=services, reach=reach, standing=standing)
        if draft == self.own and self._voice.spoken is not None:
            return []
        return self._speak(draft, now)

    def describe(self, agent: str) -> None:
        """Name the software in our record, from the next word on."""
        self._voice.describe(agent)

    def fits(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless a record of these services could be announced."""
        self._voice.fits(services)

    def hurry(self, now: float) -> None:
        """Make our word and a heartbeat due at once."""
        self._voice.hurry(now)

    def tick(self, now: float) -> list[Effect]:
        """Publish what is due, beat, and notice who fell silent."""
        effects = self._voice.tick(now)
        changed = self._members.tick(now)
        return [*effects, Changed(changed)] if changed else effects

    def due(self) -> float:
        """Return when `tick` next has something to do."""
        return min(self._voice.due(), self._members.due())

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
        effects: list[Effect] = []
        if not self._has_room(node):
            # The dead make room for the living only; else two full registries swap their dead for ever.
            if heard + self._settings.lease <= now:
                raise LimitReached(f"no room for {node}, which has been silent")
            effects += self._make_room()
        merged = self.catalog.merge([word])
        if merged is self.catalog:
            return effects
        self.catalog = merged
        self._members.follow(node, heard=heard, now=now)
        return [*effects, Persist(word), Changed(frozenset({node}))]

    def observe(self, node: PeerId, evidence: Evidence, now: float) -> list[Effect]:
        """Take in evidence about a node's life; strangers are not followed."""
        moved = self._members.observe(node, evidence, now)
        return [Changed(frozenset({node}))] if moved else []

    # What we know.

    def presence(self, node: PeerId) -> Presence:
        """Say what a node is to us; a stranger is lost."""
        if node == self.peer:
            return presence(self.own.standing, Contact.ALIVE)
        held = self.catalog.held.get(node)
        if held is None:
            return Presence.LOST
        return presence(held.record.standing, self._members.pulses[node].contact)

    def pulses(self) -> Mapping[PeerId, Pulse]:
        """Return the pulse of every other node that we know."""
        return self._members.pulses

    def room(self) -> int:
        """Return how many strangers could be taken in, the places of the lost included."""
        free = max(self._settings.max_nodes - len(self.catalog.held), 0)
        return free + len(self._members.lost())

    def heard(self, node: PeerId, now: float) -> float:
        """Return when a node last gave a sign of life; `now` for ourselves."""
        pulse = self._members.pulses.get(node)
        return now if pulse is None else pulse.heard

    # How.

    def _speak(self, draft: Record, now: float) -> list[Effect]:
        signed = self._voice.speak(draft, now)
        self.catalog = self.catalog.merge([signed])
        return [Persist(signed), Changed(frozenset({self.peer}))]

    def _refute(self, echo: Signed, now: float) -> list[Effect]:
        # Our own word from before a restored backup, or another machine's with our key. Only we
        # may speak for ourselves, so step past it and say again what holds now.
        spoken = self._voice.spoken
        if spoken is not None and newer(spoken, echo).frame == spoken.frame:
            return []
        return self._outbid(echo.record.version, now)

    def _outbid(self, version: Version, now: float) -> list[Effect]:
        self._voice.step_past(version)
        if not self._voice.may_refute(now):
            return [Contested(version)]
        return self._speak(self.own, now)

    def _hear_beat(self, note: Heartbeat, now: float) -> list[Effect]:
        node = note.node
        if node == self.peer:
            ahead = note.version > self.own.version
            return self._outbid(note.version, now) if ahead else []
        known = self.catalog.held.get(node)
        if known is None or note.version > known.record.version:
            return [Fetch(node)]
        pulse = self._members.pulses[node]
        # Versions come first: a node restored from a backup steps past its old words and counts beats anew.
        repeated = (note.version, note.beat) <= (pulse.version, pulse.beat)
        if repeated or note.version < known.record.version:
            return []
        self._spend(node, now)
        self._members.beat(node, note.version, note.beat)
        return self.observe(node, Evidence.WORD, now)

    def _is_news(self, word: Signed) -> bool:
        known = self.catalog.held.get(word.record.node)
        return known is None or newer(known, word).frame != known.frame

    def _spend(self, author: PeerId, now: float) -> None:
        if not self._authors.allows(author, now):
            raise LimitReached(f"{author} speaks too often")

    def _has_room(self, node: PeerId) -> bool:
        held = self.catalog.held
        return node in held or len(held) < self._settings.max_nodes

    def _make_room(self) -> list[Effect]:
        gone = self._members.lost()
        if not gone:
            raise LimitReached(
                f"the registry holds {self._settings.max_nodes:,} live nodes already"
            )
        oldest = gone[0]
        self.catalog = self.catalog.without(oldest)
        self._members.forget(oldest)
        return [Forget(oldest), Changed(frozenset({oldest}))]
