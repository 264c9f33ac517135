"""Replica of the registry: the registry of one node as a state machine without I/O.

Calls return effects; `registry.service` performs them. Time is an argument, randomness comes in as `jitter`.
This module has what the node receives and holds; `registry.own_record` has what it publishes, `registry.members.membership`
which nodes live.
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
            capacity=settings.max_nodes,
            per_second=settings.strangers_per_second,
            heaviest=settings.stranger_services,
        )
        self._hearsays_left = _HEARSAYS
        self._author_rate = AuthorRate(rate=settings.frames_per_second)
        self._load_limit = RateLimit(rate=_LOADS_PER_SECOND, burst=_LOADS_AT_ONCE)

    # Sending.

    @property
    def own_record(self) -> Record:
        """The newest version of our own record."""
        return self._own_record.own

    def is_draining(self) -> bool:
        """Return whether our own record says that this node takes no new requests."""
        return self.own_record.standing is not Standing.SERVING

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
                signed = wire.decode(frame)
            except InvalidFrame:
                bad += 1
                continue
            if not isinstance(signed, Signed):
                bad += 1
            elif signed.record.node == self.peer:
                self._own_record.step_past(signed.record.version)
            elif self._can_restore(signed):
                node = signed.record.node
                self.catalog = self.catalog.merge([signed])
                self.newcomers.note_held(node, weight=weight_of(signed))
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
        if draft == self.own_record and self._own_record.latest_signed is not None:
            return []
        return self._change_own_record(draft, now)

    def describe(self, agent: str, name: str = "") -> None:
        """Set the names of the software and of this node in our record, from its next version on."""
        self._own_record.describe(agent, name)

    def require_fit(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless a record of these services could be announced."""
        self._own_record.require_fit(services)

    def sign_challenge(self, challenge: bytes) -> bytes:
        """Sign a challenge, which proves that this node lives; raise `InvalidFrame` when its length is wrong."""
        return self._own_record.sign_challenge(challenge)

    def expedite_publication(self, now: float) -> None:
        """Make our record and a heartbeat due at once."""
        self._own_record.expedite_publication(now)

    def publish_load(self, busy: Mapping[Service, Load], now: float) -> list[Effect]:
        """Publish the load of our replicas when that is worth a note; `busy` are those with requests."""
        return self._own_record.publish_load(busy, now, rarity=self.members.rarity)

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

    def next_due(self) -> float:
        """Return when `tick` next has something to do."""
        return min(self._own_record.next_due(), self.members.next_due())

    def note_proof(self, node: PeerId, via: PeerId, now: float, *, asked_at: float) -> list[Effect]:
        """Note that an intermediary, which was asked at `asked_at`, got a node's proof of life."""
        self.members.note_proof(node, via)
        return self.observe(node, Evidence.PROVEN, now, asked_at=asked_at)

    def note_stall(self, seconds: float, now: float) -> None:
        """Note that this process stalled: it heard nothing, and is more patient with other nodes for a while."""
        self.members.note_stall(seconds, now)

    # Receiving.

    def receive(self, frame: bytes, now: float, *, via: PeerId | None = None) -> list[Effect]:
        """Process a frame of any author, which `via` forwarded; raise `InvalidFrame` or `LimitReached`."""
        # Before the signature is checked: an author that is excluded, or sent too much, shall not cost that check.
        author = wire.author_of(frame)
        self.access.require_admitted(author)
        self._author_rate.require(author, frame, now)
        message = wire.decode(frame)
        if isinstance(message, Doubt):
            return self._receive_doubt(message, now)
        if isinstance(message, LoadNote):
            return self._receive_load(message, now)
        if isinstance(message, Heartbeat):
            return self._receive_heartbeat(message, now)
        # What is no news costs its author nothing: otherwise a node that repeats an author's old frames silences it.
        if self._is_news(message):
            self._author_rate.spend(author, now, frame_bytes=len(frame))
        return self.merge_record(message, heard_at=now, now=now, via=via)

    def merge_record(
        self, signed: Signed, *, heard_at: float, now: float, via: PeerId | None = None
    ) -> list[Effect]:
        """Merge a record that was last confirmed at `heard_at`; raise `LimitReached` when there is no room.

        `via` is the neighbour that forwarded it; `None` means a trusted source, for which the record has no weight.
        """
        node = signed.record.node
        if node == self.peer:
            return self._refute(signed, now)
        self.access.require_admitted(node)
        if not self._is_news(signed):
            return []
        fresh, held = heard_at + self.members.lease > now, self.catalog.held
        lost = self.members.lost_nodes
        evicted = self.newcomers.places_for(signed, via, now, held=held, fresh=fresh, lost=lost)
        effects = [effect for peer in evicted for effect in self._forget(peer)]
        self.catalog = self.catalog.merge([signed])
        before = self.members.health.get(node)
        has_left = signed.record.standing is Standing.LEFT
        self.members.note_record(node, heard_at=heard_at, now=now, has_left=has_left)
        self._reassure_returned(node, before, now)
        return [*effects, Persist(signed), Changed(frozenset({node}))]

    def note_connected(self, peer: PeerId, now: float, *, chosen: bool) -> list[Effect]:
        """Note that a connection to a peer is open, and whether this node dialled it."""
        self.newcomers.note_connected(peer, chosen=chosen)
        return self.observe(peer, Evidence.LINKED, now)

    def note_disconnected(self, peer: PeerId, now: float) -> list[Effect]:
        """Note that the last connection to a peer is gone."""
        self.newcomers.note_disconnected(peer, held=peer in self.catalog.held)
        return self.observe(peer, Evidence.PARTED, now)

    def observe(
        self, node: PeerId, evidence: Evidence, now: float, *, asked_at: float | None = None
    ) -> list[Effect]:
        """Note evidence about a node's life, as `Membership.observe` does; unknown nodes are ignored."""
        before = self.members.health.get(node)
        moved = self.members.observe(node, evidence, now, asked_at=asked_at)
        self._reassure_returned(node, before, now)
        return [Changed(frozenset({node}))] if moved else []

    def note_hearsay(self, node: PeerId, heard: float, now: float) -> list[Effect]:
        """Note that a peer heard a node at `heard`; it counts if this node has not heard it since its start."""
        return [Changed(frozenset({node}))] if self.members.note_hearsay(node, heard, now) else []

    # Reading.

    def presence(self, node: PeerId) -> Presence:
        """Return the presence of a node; an unknown node is lost."""
        if node == self.peer:
            return presence(self.own_record.standing, Status.ALIVE)
        # Looked up in its part, since `PersistentMap` is interpreted and each request over a hop asks.
        signed = self.catalog.held.parts[bucket_of(node)].get(node)
        if signed is None:
            return Presence.LOST
        return presence(signed.record.standing, self.members.health[node].contact)

    def is_healthy(self, node: PeerId, now: float) -> bool:
        """Return whether a node was heard just now, is reached, and has not been doubted since."""
        health = self.members.health.get(node)
        return health is not None and health.is_healthy(now)

    def member_health(self) -> Mapping[PeerId, MemberHealth]:
        """Return the health of every other node that is known."""
        return self.members.health

    def room_for_strangers(self, via: PeerId | None, now: float) -> int:
        """Return how many strangers a neighbour could introduce; places of lost nodes count as free."""
        free = max(self._settings.max_nodes - len(self.catalog.held), 0)
        free += len(self.members.lost_nodes())
        return free if via is None else min(free, self.newcomers.allowance(via, now))

    def is_refused(self, node: PeerId, now: float) -> bool:
        """Return whether a node's record was refused as too heavy a short time ago."""
        return self.newcomers.is_refused(node, now)

    def last_heard(self, node: PeerId, now: float) -> float:
        """Return when a node last gave a sign of life; `now` for ourselves."""
        health = self.members.health.get(node)
        return now if health is None else health.heard

    def alive_nodes(self) -> list[PeerId]:
        """Return the nodes that count as alive, also those that this node does not reach."""
        members = self.members.health.items()
        return [node for node, health in members if health.contact in _LIVING]

    def wants_hearsay(self) -> bool:
        """Return, true at most a few times after a start, whether some nodes are known from old records only."""
        wanted = self.lacks_hearsay()
        self._hearsays_left -= wanted
        return wanted

    def lacks_hearsay(self) -> bool:
        """Return what `wants_hearsay` would, without counting it."""
        return self._hearsays_left > 0 and self.members.has_unheard_nodes()

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer may take part here."""
        return self.access.admits(peer)

    @property
    def is_silenced(self) -> bool:
        """Whether this node fell silent because another machine, which started before, uses its key."""
        return self._own_record.is_silenced

    def _can_restore(self, signed: Signed) -> bool:
        node, held = signed.record.node, self.catalog.held
        has_room = node in held or self.newcomers.has_room(node, len(held))
        heavy = self.newcomers.is_too_heavy(node, weight_of(signed))
        return has_room and not heavy and self.access.admits(node)

    def _reassure_returned(self, node: PeerId, before: MemberHealth | None, now: float) -> None:
        # A lost node that is heard again has lost this one as well, and so have all on its side of a cut that has healed.
        lost = before is not None and before.contact is Status.LOST and before.heard > float("-inf")
        if lost and self.members.health[node].contact is Status.ALIVE:
            rarity = min(self.members.rarity, _GREETING)
            wait = self._settings.probe * self.jitter() * rarity
            self._own_record.schedule_heartbeat(now, due_at=now + wait)

    def _change_own_record(self, draft: Record, now: float) -> list[Effect]:
        signed = self._own_record.sign_next_version(draft, now)
        self.catalog = self.catalog.merge([signed])
        return [Persist(signed), Changed(frozenset({self.peer}))]

    def _refute(self, echo: Signed, now: float) -> list[Effect]:
        # Our own record from before a restored backup, or another machine's with our key. Only this node may publish its
        # record, so step past that version and publish again what holds now.
        latest = self._own_record.latest_signed
        if latest is not None and newer(latest, echo).frame == latest.frame:
            return []
        return self._supersede(echo.record.version, now)

    def _supersede(self, version: Version, now: float) -> list[Effect]:
        self._own_record.step_past(version)
        if not self._own_record.may_refute(version, now):
            return [Contested(version)]
        return self._change_own_record(self.own_record, now)

    def _receive_heartbeat(self, note: Heartbeat | Doubt | LoadNote, now: float) -> list[Effect]:
        node = note.node
        if node == self.peer:
            ahead = note.version > self.own_record.version
            return self._supersede(note.version, now) if ahead else []
        signed = self.catalog.held.get(node)
        if signed is None or note.version > signed.record.version:
            self._author_rate.spend(node, now, frame_bytes=_FETCH_BYTES)
            return [Fetch(node, note.version)]
        if note.version < signed.record.version or not self._is_newer_beat(note):
            return []
        self._author_rate.spend(node, now, frame_bytes=0)
        self.members.note_heartbeat(node, note.version, note.beat)
        return [Remember(node, note.version, note.beat), *self.observe(node, Evidence.WORD, now)]

    def _receive_doubt(self, doubt: Doubt, now: float) -> list[Effect]:
        effects = self._receive_heartbeat(doubt, now)
        # A doubt counts if its beat does: from a member, and each note once.
        if any(isinstance(effect, Remember) for effect in effects):
            if doubt.about == self.peer:
                self._own_record.schedule_heartbeat(now, due_at=now)
            else:
                self.members.note_doubt(doubt.about, now)
        return effects

    def _receive_load(self, note: LoadNote, now: float) -> list[Effect]:
        effects = self._receive_heartbeat(note, now)
        # A report counts if its beat does: from a member, each note once, and about the record that is held here.
        counts = any(isinstance(effect, Remember) for effect in effects)
        accepted = counts and self._load_limit.allows(note.node, now)
        loads = loads_by_service(note, self.catalog.held[note.node].record) if accepted else {}
        return [*effects, Loaded(note.node, loads)]

    def _is_newer_beat(self, note: Heartbeat | Doubt | LoadNote) -> bool:
        # Versions come first: a node restored from a backup steps past its old versions and counts beats from the start.
        health = self.members.health[note.node]
        return (note.version, note.beat) > (health.version, health.beat)

    def _is_news(self, signed: Signed) -> bool:
        current = self.catalog.held.get(signed.record.node)
        return current is None or newer(current, signed).frame != current.frame

    def _forget(self, node: PeerId) -> list[Effect]:
        self.catalog = self.catalog.without(node)
        self.members.forget(node)
        self.newcomers.forget(node)
        return [Forget(node), Changed(frozenset({node}))]
