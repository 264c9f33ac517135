"""Replica of the registry: the registry of one node as a state machine without I/O.

Calls return effects; `registry.service` performs them. Time is an argument, randomness comes in as `jitter`.
What this node publishes is in `registry.own_record`, and which nodes live in `registry.members.membership`; here is what it
hears and holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from registry import wire
from registry.catalog import Catalog, Signed, bucket_of, newer
from registry.clock import RandomSource
from registry.effects import (
    Changed,
    Contested,
    Effect,
    Fetch,
    Forget,
    Loaded,
    Persist,
    Probe,
    Remember,
)
from registry.errors import InvalidFrame
from registry.intake.access_list import access_list_of
from registry.intake.newcomers import Newcomers, weight_of
from registry.intake.rate import FRAME_COST, AuthorRate, RateLimit
from registry.members.liveness import Evidence, MemberHealth, Presence, Status, presence
from registry.members.load import loads_by_service
from registry.members.membership import Membership
from registry.own_record import OwnRecord
from registry.records import (
    Doubt,
    Heartbeat,
    Load,
    LoadNote,
    PeerId,
    Reach,
    Record,
    Revocation,
    Service,
    Standing,
    Version,
)
from registry.settings import RegistrySettings
from registry.signing import Identity

# A node reports its load once a second at most; a few reports arrive together when the mesh was slow.
_LOADS_PER_SECOND = 2.0
_LOADS_AT_ONCE = 5.0

# The size of a frame that costs its author as much as a note that makes this node fetch a newer record of it.
_FETCH_BYTES = 20 * FRAME_COST

# A peer that restarted too may know no more than this node, so a few are asked which nodes they have heard.
_HEARSAYS = 8

# Times `probe` within which all nodes send a heartbeat after a cut: many at once are a flood, but hours are too long.
_GREETING = 60.0

_LIVING = frozenset({Status.ALIVE, Status.UNREACHABLE})


class Replica:
    """One node's view of the registry, and its own record in it."""

    def __init__(
        self,
        identity: Identity,
        settings: RegistrySettings,
        *,
        epoch: int,
        jitter: RandomSource,
    ) -> None:
        """Start empty. `epoch` must be greater than any used before and durable already; `jitter` is in [0, 1)."""
        self.peer = identity.peer
        self.catalog = Catalog()
        self._settings = settings
        self._own_record = OwnRecord(identity, settings, epoch=epoch, jitter=jitter)
        self.members = Membership(settings, jitter)
        self.jitter = jitter
        self.access = access_list_of(identity.peer, allow=settings.allow, deny=settings.deny)
        self.newcomers = Newcomers(
            places=settings.max_nodes,
            per_second=settings.strangers_per_second,
            heaviest=settings.stranger_services,
        )
        self._hearsays = _HEARSAYS
        self._authors = AuthorRate(rate=settings.frames_per_second)
        self._reporters = RateLimit(rate=_LOADS_PER_SECOND, burst=_LOADS_AT_ONCE)

    # Sending.

    @property
    def own(self) -> Record:
        """The newest version of our own record."""
        return self._own_record.own

    def is_draining(self) -> bool:
        """Return whether our own record says that this node takes no new requests."""
        return self.own.standing is not Standing.SERVING

    def restore(
        self,
        frames: Iterable[bytes],
        now: float,
        *,
        beats: Mapping[PeerId, tuple[Version, int]] = MappingProxyType({}),
    ) -> int:
        """Load what the store kept; no node in it counts as alive. Return how many frames were bad.

        `beats` are the newest heartbeats that counted: no older one proves anything.
        """
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
                self._own_record.step_past(word.record.version)
            elif self._can_restore(word):
                node = word.record.node
                self.catalog = self.catalog.merge([word])
                self.newcomers.held(node, weight=weight_of(word))
                self.members.restore(node, now, beat=beats.get(node))
        return bad

    def announce(
        self,
        now: float,
        *,
        services: Sequence[Service] | None = None,
        reach: Reach | None = None,
        standing: Standing | None = None,
        revoked: Sequence[Revocation] | None = None,
    ) -> list[Effect]:
        """Change our record; `None` changes nothing. Raise `LimitReached`, and change nothing, when it does not fit."""
        draft = self._own_record.draft(
            services=services, reach=reach, standing=standing, revoked=revoked
        )
        if draft == self.own and self._own_record.latest_signed is not None:
            return []
        return self._change_own_record(draft, now)

    def describe(self, agent: str, name: str = "") -> None:
        """Set the names of the software and of this node in our record, from its next version on."""
        self._own_record.describe(agent, name)

    def fits(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless a record of these services could be announced."""
        self._own_record.fits(services)

    def sign_challenge(self, challenge: bytes) -> bytes:
        """Sign a challenge, which proves that this node lives; raise `InvalidFrame` when its length is wrong."""
        return self._own_record.sign_challenge(challenge)

    def expedite_publication(self, now: float) -> None:
        """Make our record and a heartbeat due at once."""
        self._own_record.expedite_publication(now)

    def report(self, busy: Mapping[Service, Load], now: float) -> list[Effect]:
        """Publish the load of our replicas when that is worth a note; `busy` are those with requests."""
        return self._own_record.report(busy, now, rarity=self.members.rarity)

    def tick(self, now: float) -> list[Effect]:
        """Publish the records, heartbeats and doubts that are due, note the nodes that became lost, and begin probes."""
        changed = self.members.tick(now)
        effects = self._own_record.tick(now, rarity=self.members.rarity)
        if changed:
            effects.append(Changed(changed))
        for node in self.members.take_due_doubts(now):
            effects += self._own_record.publish_doubt(node, now)
        effects += map(Probe, self.members.start_due_probes(now))
        return effects

    def due(self) -> float:
        """Return when `tick` next has something to do."""
        return min(self._own_record.due(), self.members.due())

    def note_proof(self, node: PeerId, helper: PeerId, now: float, *, asked: float) -> list[Effect]:
        """Note that a helper, which was asked at `asked`, got a node's proof of life."""
        self.members.note_proof(node, helper)
        return self.observe(node, Evidence.PROVEN, now, asked=asked)

    def note_stall(self, seconds: float, now: float) -> None:
        """Note that this process stalled: it heard nothing, and is more patient with other nodes for a while."""
        self.members.note_stall(seconds, now)

    # Receiving.

    def receive(self, frame: bytes, now: float, *, via: PeerId | None = None) -> list[Effect]:
        """Process a frame of any author, which `via` forwarded; raise `InvalidFrame` or `LimitReached`."""
        # Before the signature is checked: an author that is excluded, or sent too much, shall not cost that check.
        author = wire.author_of(frame)
        self.access.require(author)
        self._authors.require(author, frame, now)
        word = wire.decode(frame)
        if isinstance(word, Doubt):
            return self._receive_doubt(word, now)
        if isinstance(word, LoadNote):
            return self._receive_load(word, now)
        if isinstance(word, Heartbeat):
            return self._receive_heartbeat(word, now)
        # What is no news costs its author nothing: otherwise a node that repeats an author's old frames silences it.
        if self._is_news(word):
            self._authors.spend(author, now, frame_bytes=len(frame))
        return self.learn(word, heard=now, now=now, via=via)

    def learn(
        self, word: Signed, *, heard: float, now: float, via: PeerId | None = None
    ) -> list[Effect]:
        """Merge a record that was last confirmed at `heard`; raise `LimitReached` when there is no room.

        `via` is the neighbour that forwarded it; `None` means a trusted source, for which the record has no weight.
        """
        node = word.record.node
        if node == self.peer:
            return self._refute(word, now)
        self.access.require(node)
        if not self._is_news(word):
            return []
        fresh, held, lost = heard + self.members.lease > now, self.catalog.held, self.members.lost
        places = self.newcomers.places_for(word, via, now, held=held, fresh=fresh, lost=lost)
        effects = [effect for gone in places for effect in self._forget(gone)]
        self.catalog = self.catalog.merge([word])
        before = self.members.pulses.get(node)
        left = word.record.standing is Standing.LEFT
        self.members.follow(node, heard=heard, now=now, left=left)
        self._reassure_returned(node, before, now)
        return [*effects, Persist(word), Changed(frozenset({node}))]

    def note_connected(self, peer: PeerId, now: float, *, chosen: bool) -> list[Effect]:
        """Note that a connection to a peer is open, and whether this node dialled it."""
        self.newcomers.note_connected(peer, chosen=chosen)
        return self.observe(peer, Evidence.LINKED, now)

    def part(self, peer: PeerId, now: float) -> list[Effect]:
        """Note that the last connection to a peer is gone."""
        self.newcomers.part(peer, held=peer in self.catalog.held)
        return self.observe(peer, Evidence.PARTED, now)

    def observe(
        self, node: PeerId, evidence: Evidence, now: float, *, asked: float | None = None
    ) -> list[Effect]:
        """Note evidence about a node's life, as `Membership.observe` does; unknown nodes are ignored."""
        before = self.members.pulses.get(node)
        moved = self.members.observe(node, evidence, now, asked=asked)
        self._reassure_returned(node, before, now)
        return [Changed(frozenset({node}))] if moved else []

    def told(self, node: PeerId, heard: float, now: float) -> list[Effect]:
        """Note that a peer heard a node at `heard`; it counts if this node has not heard it since its start."""
        return [Changed(frozenset({node}))] if self.members.told(node, heard, now) else []

    # Reading.

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node; an unknown node is lost."""
        if node == self.peer:
            return presence(self.own.standing, Status.ALIVE)
        # Looked up in its part, since `PersistentMap` is interpreted and each request over a hop asks.
        held = self.catalog.held.parts[bucket_of(node)].get(node)
        if held is None:
            return Presence.LOST
        return presence(held.record.standing, self.members.pulses[node].contact)

    def is_healthy(self, node: PeerId, now: float) -> bool:
        """Return whether a node was heard just now, is reached, and has not been doubted since."""
        pulse = self.members.pulses.get(node)
        return pulse is not None and pulse.well(now)

    def pulses(self) -> Mapping[PeerId, MemberHealth]:
        """Return the pulse of every other node that is known."""
        return self.members.pulses

    def room(self, via: PeerId | None, now: float) -> int:
        """Return how many strangers a neighbour could introduce; places of lost nodes count as free."""
        free = max(self._settings.max_nodes - len(self.catalog.held), 0) + len(self.members.lost())
        return free if via is None else min(free, self.newcomers.allowance(via, now))

    def is_refused(self, node: PeerId, now: float) -> bool:
        """Return whether a node's record was refused as too heavy a short time ago."""
        return self.newcomers.is_refused(node, now)

    def heard(self, node: PeerId, now: float) -> float:
        """Return when a node last gave a sign of life; `now` for ourselves."""
        pulse = self.members.pulses.get(node)
        return now if pulse is None else pulse.heard

    def alive(self) -> list[PeerId]:
        """Return the nodes that count as alive, also those that this node does not reach."""
        pulses = self.members.pulses.items()
        return [node for node, pulse in pulses if pulse.contact in _LIVING]

    def wants_hearsay(self) -> bool:
        """Return, true at most a few times after a start, whether some nodes are known from old records only."""
        wanted = self.lacks_hearsay()
        self._hearsays -= wanted
        return wanted

    def lacks_hearsay(self) -> bool:
        """Return what `wants_hearsay` would, without counting it."""
        return self._hearsays > 0 and self.members.has_unheard_nodes()

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer may take part here."""
        return self.access.admits(peer)

    @property
    def is_silenced(self) -> bool:
        """Whether this node fell silent because another machine, which started before, uses its key."""
        return self._own_record.is_silenced

    # Internals.

    def _can_restore(self, word: Signed) -> bool:
        node, held = word.record.node, self.catalog.held
        room = node in held or self.newcomers.has_room(node, len(held))
        heavy = self.newcomers.is_too_heavy(node, weight_of(word))
        return room and not heavy and self.access.admits(node)

    def _reassure_returned(self, node: PeerId, before: MemberHealth | None, now: float) -> None:
        # A lost node that is heard again has lost this one as well, and so have all on its side of a cut that has healed.
        lost = before is not None and before.contact is Status.LOST and before.heard > float("-inf")
        if lost and self.members.pulses[node].contact is Status.ALIVE:
            rarity = min(self.members.rarity, _GREETING)
            wait = self._settings.probe * self.jitter() * rarity
            self._own_record.schedule_heartbeat(now, at=now + wait)

    def _change_own_record(self, draft: Record, now: float) -> list[Effect]:
        signed = self._own_record.speak(draft, now)
        self.catalog = self.catalog.merge([signed])
        return [Persist(signed), Changed(frozenset({self.peer}))]

    def _refute(self, echo: Signed, now: float) -> list[Effect]:
        # Our own record from before a restored backup, or another machine's with our key. Only this node may publish its
        # record, so step past that version and publish again what holds now.
        spoken = self._own_record.latest_signed
        if spoken is not None and newer(spoken, echo).frame == spoken.frame:
            return []
        return self._supersede(echo.record.version, now)

    def _supersede(self, version: Version, now: float) -> list[Effect]:
        self._own_record.step_past(version)
        if not self._own_record.may_refute(version, now):
            return [Contested(version)]
        return self._change_own_record(self.own, now)

    def _receive_heartbeat(self, note: Heartbeat | Doubt | LoadNote, now: float) -> list[Effect]:
        node = note.node
        if node == self.peer:
            ahead = note.version > self.own.version
            return self._supersede(note.version, now) if ahead else []
        known = self.catalog.held.get(node)
        if known is None or note.version > known.record.version:
            self._authors.spend(node, now, frame_bytes=_FETCH_BYTES)
            return [Fetch(node, note.version)]
        if note.version < known.record.version or not self._is_newer_beat(note):
            return []
        self._authors.spend(node, now, frame_bytes=0)
        self.members.beat(node, note.version, note.beat)
        return [Remember(node, note.version, note.beat), *self.observe(node, Evidence.WORD, now)]

    def _receive_doubt(self, doubt: Doubt, now: float) -> list[Effect]:
        effects = self._receive_heartbeat(doubt, now)
        # A doubt counts if its beat does: from a member, and each note once.
        if any(isinstance(effect, Remember) for effect in effects):
            if doubt.about == self.peer:
                self._own_record.schedule_heartbeat(now, at=now)
            else:
                self.members.note_doubt(doubt.about, now)
        return effects

    def _receive_load(self, note: LoadNote, now: float) -> list[Effect]:
        effects = self._receive_heartbeat(note, now)
        # A report counts if its beat does: from a member, each note once, and about the record that is held here.
        counts = any(isinstance(effect, Remember) for effect in effects)
        taken = counts and self._reporters.allows(note.node, now)
        loads = loads_by_service(note, self.catalog.held[note.node].record) if taken else {}
        return [*effects, Loaded(note.node, loads)]

    def _is_newer_beat(self, note: Heartbeat | Doubt | LoadNote) -> bool:
        # Versions come first: a node restored from a backup steps past its old versions and counts beats from the start.
        pulse = self.members.pulses[note.node]
        return (note.version, note.beat) > (pulse.version, pulse.beat)

    def _is_news(self, word: Signed) -> bool:
        known = self.catalog.held.get(word.record.node)
        return known is None or newer(known, word).frame != known.frame

    def _forget(self, node: PeerId) -> list[Effect]:
        self.catalog = self.catalog.without(node)
        self.members.forget(node)
        self.newcomers.forget(node)
        return [Forget(node), Changed(frozenset({node}))]
