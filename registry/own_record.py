"""Own record: what this node publishes about itself, and when.

The record and its repetitions, heartbeats, doubts, load reports and refutations. No I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from registry import wire
from registry.catalog import Signed
from registry.clock import RandomSource
from registry.effects import Effect, Publish
from registry.errors import LimitReached
from registry.intake.rate import RateLimit
from registry.members.load import Reporter
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

# The first refutations go out at once; without a limit, a second machine with our key would be answered for ever.
_REFUTATIONS_PER_SECOND = 0.2
_REFUTATIONS_AT_ONCE = 5
_CONTESTS = 5
# Heartbeats out of turn: a few at once, then rarely, so that no peer can make this node flood the mesh.
_REASSURANCES_PER_SECOND = 0.2
_REASSURANCES_AT_ONCE = 3
_DOUBTS_PER_SECOND = 2.0
_DOUBTS_AT_ONCE = 20
_FOREVER = float("inf")


@dataclass(slots=True)
class _RepeatTimer:
    """When a message is repeated: a period after the last time, which grows with the mesh, or sooner.

    The period is multiplied by the rarity at the time of the check, not of the last message: a node knows the size of the
    mesh better later, above all after its first record.
    """

    period: float
    last: float
    spread: float = 1.0
    sooner: float = _FOREVER

    def due(self, rarity: float) -> float:
        return min(self.sooner, self.last + self.period * self.spread * rarity)

    def hasten(self, due_at: float) -> None:
        self.sooner = min(self.sooner, due_at)

    def note_sent(self, now: float, jitter: float) -> None:
        # Between 0.75 and 1.25 of the period, so that nodes which started together drift apart.
        self.last, self.spread, self.sooner = now, 0.75 + 0.5 * jitter, _FOREVER


class OwnRecord:
    """Publisher of one node's record; `latest_signed` is the newest that it signed, `None` before the first."""

    def __init__(
        self,
        identity: Identity,
        settings: RegistrySettings,
        *,
        epoch: int,
        jitter: RandomSource,
    ) -> None:
        self.own = Record(node=identity.peer, version=Version(epoch, 0))
        self.latest_signed: Signed | None = None
        self.is_silenced = False
        self._identity = identity
        self._settings = settings
        self._jitter = jitter
        self._epoch = epoch
        self._contests = 0
        self._beat = 0
        self._unpublished = False
        # Nothing is published before the first record; the first heartbeat is due with it.
        self._record_timer = _RepeatTimer(settings.reannounce, last=_FOREVER)
        self._heartbeat_timer = _RepeatTimer(settings.heartbeat, last=-_FOREVER)
        self._rarity = 1.0
        self._refutation_limit = RateLimit(rate=_REFUTATIONS_PER_SECOND, burst=_REFUTATIONS_AT_ONCE)
        self._reassurance_limit = RateLimit(
            rate=_REASSURANCES_PER_SECOND, burst=_REASSURANCES_AT_ONCE
        )
        self._doubt_limit = RateLimit(rate=_DOUBTS_PER_SECOND, burst=_DOUBTS_AT_ONCE)
        self._reporter = Reporter()

    def describe(self, agent: str, name: str = "") -> None:
        """Set the names of the software and of this node in our record, from its next version on."""
        self.own = replace(self.own, agent=agent, name=name)

    def draft(
        self,
        *,
        services: Sequence[Service] | None,
        reach: Reach | None,
        standing: Standing | None,
        revoked: Sequence[Revocation] | None = None,
    ) -> Record:
        """Return our record with these changes; `None` changes nothing. Raise `LimitReached` when it does not fit."""
        draft = self.own
        if services is not None:
            self.require_fit(services)
            draft = replace(draft, services=tuple(services))
        if reach is not None:
            # A machine with many interfaces has more addresses than a record carries; the first are kept.
            limit = wire.MAX_ADDRESSES
            draft = replace(
                draft, reach=replace(reach, mesh=reach.mesh[:limit], links=reach.links[:limit])
            )
        if revoked is not None:
            draft = replace(draft, revoked=tuple(revoked))
        return draft if standing is None else replace(draft, standing=standing)

    def require_fit(self, services: Sequence[Service]) -> None:
        """Raise `LimitReached` unless a record of these services could be announced."""
        if len(services) > self._settings.max_services:
            raise LimitReached(
                f"a node announces at most {self._settings.max_services:,} models, not {len(services):,}"
            )
        wire.encode_record(replace(self.own, services=tuple(services)), self._identity)

    def sign_next_version(self, draft: Record, now: float) -> Signed:
        """Sign the next version; it is published as soon as a burst of changes is over."""
        version = Version(self.own.version.epoch, self.own.version.sequence + 1)
        signed = wire.encode_record(replace(draft, version=version), self._identity)
        self.own = signed.record
        self.latest_signed = signed
        if not self._unpublished:
            self._unpublished = True
            self._record_timer.hasten(now + self._settings.coalesce)
        return signed

    def may_refute(self, version: Version, now: float) -> bool:
        """Return whether this node may refute a record under its key once more, and count the refutation.

        A version of our own epoch that this node never published is another machine's, which answers it. After a few
        rounds of that, the one whose epoch is contested, which started later, falls silent; the other's record stands.
        """
        self._contests += version.epoch == self._epoch
        self.is_silenced = self._contests > _CONTESTS
        return not self.is_silenced and self._refutation_limit.allows(self.own.node, now)

    def sign_challenge(self, challenge: bytes) -> bytes:
        """Sign a challenge; raise `InvalidFrame` when its length is wrong."""
        return wire.encode_proof(challenge, self._identity)

    def step_past(self, version: Version) -> None:
        """Make the next version of our record newer than `version`."""
        if version >= self.own.version:
            self.own = replace(self.own, version=version)

    def expedite_publication(self, now: float) -> None:
        """Make our record and a heartbeat due at once."""
        self._heartbeat_timer.hasten(now)
        if self.latest_signed is not None:
            self._record_timer.hasten(now)

    def schedule_heartbeat(self, now: float, *, due_at: float) -> None:
        """Make a heartbeat due at `due_at`, because a node doubts or lost this one; not if that happened too often lately."""
        soon = self._heartbeat_timer.due(self._rarity)
        if due_at < soon and self._reassurance_limit.allows(self.own.node, now):
            self._heartbeat_timer.hasten(due_at)

    def publish_doubt(self, about: PeerId, now: float) -> list[Effect]:
        """Publish a doubt about a node that this one cannot reach; nothing beyond the rate limit of doubts."""
        if (
            self.latest_signed is None
            or self.is_silenced
            or not self._doubt_limit.allows(self.own.node, now)
        ):
            return []
        self._beat += 1
        doubt = Doubt(self.own.node, self.own.version, self._beat, about)
        return [Publish(wire.encode_doubt(doubt, self._identity))]

    def publish_load(
        self, busy: Mapping[Service, Load], now: float, *, rarity: float = 1.0
    ) -> list[Effect]:
        """Publish our load when that is worth a note; not before the record that names the replicas is published."""
        if self.latest_signed is None or self.is_silenced or self._unpublished:
            return []
        loads = self._reporter.rows_to_report(busy, now, rarity=rarity)
        # A replica that is being unregistered has no place in the record any more.
        indexed = enumerate(self.own.services) if loads else ()
        rows = tuple(
            (position, loads[service]) for position, service in indexed if service in loads
        )
        if not rows:
            return []
        self._beat += 1
        note = LoadNote(self.own.node, self.own.version, self._beat, rows)
        return [Publish(wire.encode_load(note, self._identity))]

    def tick(self, now: float, *, rarity: float = 1.0) -> list[Effect]:
        """Publish what is due; `rarity` is the current factor on the periods of repetition and heartbeat."""
        self._rarity = rarity
        effects: list[Effect] = []
        if now < self.next_due():
            return effects
        if now >= self._record_timer.due(rarity) and self.latest_signed is not None:
            self._unpublished = False
            self._record_timer.note_sent(now, self._jitter())
            effects.append(Publish(self.latest_signed.frame))
        if now >= self._heartbeat_timer.due(rarity):
            self._heartbeat_timer.note_sent(now, self._jitter())
            self._beat += 1
            note = Heartbeat(self.own.node, self.own.version, self._beat)
            effects.append(Publish(wire.encode_heartbeat(note, self._identity)))
        return effects

    def next_due(self) -> float:
        """Return when `tick` next has something to publish."""
        if self.latest_signed is None or self.is_silenced:
            return _FOREVER
        return min(self._record_timer.due(self._rarity), self._heartbeat_timer.due(self._rarity))
