"""Liveness of a node, and whether this node reaches it.

A table says which evidence moves a node between the states. Time is an argument.

Presence is this node's own, local opinion. It is never gossiped: no node can declare another dead for all.
"""

from dataclasses import dataclass
from enum import StrEnum

from registry.records import PeerId, Standing, Version
from registry.values import replace_fields


class Status(StrEnum):
    """State of a node as observed from here. A node that lives, but that this node does not reach, is `unreachable`."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    SUSPECT = "suspect"
    LOST = "lost"


class Evidence(StrEnum):
    """What can be observed about a node; `REASONS` describes each kind."""

    ANSWERED = "answered"
    ASKED = "asked"
    WORD = "word"
    PROVEN = "proven"
    TOLD = "told"
    LINKED = "linked"
    PARTED = "parted"
    FAILED = "failed"
    MISSED = "missed"
    UNREACHED = "unreached"
    DOUBT = "doubt"
    SILENCE = "silence"


REASONS: dict[Evidence, str] = {
    Evidence.ANSWERED: "it answered a request, a comparison or a probe",
    Evidence.ASKED: "it sent us a question",
    Evidence.WORD: "it published something new, signed by its key",
    Evidence.PROVEN: "it signed our challenge, which another node passed on",
    Evidence.TOLD: "a connected peer heard from it recently, and we have not since our start",
    Evidence.LINKED: "an authenticated connection to it is open",
    Evidence.PARTED: "the last connection to it closed",
    Evidence.FAILED: "a request to it failed to connect or broke",
    Evidence.MISSED: "it did not answer our own probe in time",
    Evidence.UNREACHED: "neither we nor the nodes that we asked reached it",
    Evidence.DOUBT: "it did not refute the suspicion in time",
    Evidence.SILENCE: "its lease expired without a sign of life",
}

OPENS = frozenset({Evidence.ANSWERED})
"""Evidence that this node's own path to a node works in both directions."""

SHUTS = frozenset({Evidence.FAILED, Evidence.MISSED, Evidence.UNREACHED})
"""Evidence that this node's own path does not work."""

LIFE = OPENS | {Evidence.ASKED, Evidence.WORD, Evidence.PROVEN}
"""Evidence that only a living node can give. An open connection is none: it stays open while the program behind it hangs."""

TABLE: dict[Status, dict[Evidence, Status]] = {
    Status.ALIVE: {
        Evidence.PARTED: Status.SUSPECT,
        Evidence.FAILED: Status.SUSPECT,
        Evidence.MISSED: Status.SUSPECT,
        Evidence.UNREACHED: Status.SUSPECT,
        Evidence.SILENCE: Status.LOST,
    },
    Status.UNREACHABLE: {
        **dict.fromkeys(OPENS, Status.ALIVE),
        Evidence.UNREACHED: Status.SUSPECT,
        Evidence.SILENCE: Status.LOST,
    },
    Status.SUSPECT: {
        **dict.fromkeys(LIFE, Status.ALIVE),
        Evidence.DOUBT: Status.LOST,
        Evidence.SILENCE: Status.LOST,
    },
    Status.LOST: {
        **dict.fromkeys(LIFE, Status.ALIVE),
        Evidence.TOLD: Status.ALIVE,
    },
}
"""The next state for each kind of evidence in each state; evidence that is not listed changes nothing.

Where this says alive and this node's own path is shut, the node is unreachable. For a lost node the state of the path is
forgotten.
"""

CONFIRMED = 2
"""Rounds of probes that must fail before a suspicion can end in loss: a single one may fail because of a lost packet.

Another node's doubt counts as one of them. At least one must be this node's own.
"""

UNPROBED = 3
"""Times `suspicion` after which a suspicion that probes have not confirmed ends in loss all the same."""

FRESH = 0.1
"""Seconds after a sign of life within which another one of the same kind shows nothing new."""

_BEFORE_ALL = Version(-1, -1)
_NEVER = float("-inf")


class Presence(StrEnum):
    """State of a node as shown to readers: its own standing, combined with whether this node hears and reaches it."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


_AS_PRESENCE = {status: Presence(status) for status in Status}


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """What this node knows about the life of another; times are seconds on this machine's monotonic clock.

    `version` and `beat` are those of the newest heartbeat: only a greater pair proves life.
    """

    contact: Status
    heard: float
    since: float
    why: Evidence
    beat: int = -1
    version: Version = _BEFORE_ALL
    shut: Evidence | None = None
    """The latest evidence that this node's own path to it is shut; `None` while it is open, as far as is known."""
    rounds: int = 0
    """Rounds of probes that failed since the suspicion began; `unreached` is when the first of them did."""
    unreached: float = _NEVER
    accused: float = _NEVER
    """When a third node last said that it does not reach the node."""
    proved_by: PeerId | None = None
    """The intermediary that last got a proof of life from the node."""

    def is_healthy(self, now: float) -> bool:
        """Return whether the node was heard just now, is reached, and has not been doubted since."""
        fresh = self.contact is Status.ALIVE and now - self.heard < FRESH
        return fresh and self.shut is None and self.accused < self.heard

    def seconds_silent(self, now: float) -> float:
        """Return the seconds since the node was last heard, or since it has been followed if it never was."""
        return now - (self.heard if self.heard > _NEVER else self.since)

    def with_evidence(self, evidence: Evidence, now: float) -> "MemberHealth":
        """Return the health after `evidence` was seen at `now`."""
        moved = self._with_status(TABLE[self.contact].get(evidence, self.contact), evidence, now)
        if evidence is not Evidence.UNREACHED or moved.contact is not Status.SUSPECT:
            return moved
        first = moved.unreached if moved.rounds else now
        return replace_fields(moved, rounds=moved.rounds + 1, unreached=first)

    def with_path_failure(self, evidence: Evidence, now: float) -> "MemberHealth":
        """Return the health after a probe failed on this node's own path, while the node was heard: no reason for suspicion."""
        return self._with_status(self.contact, evidence, now)

    def next_change_at(self, *, lease: float, suspicion: float, awake: float = _NEVER) -> float:
        """Return when this health changes as time passes without evidence; infinity when it does not.

        `awake` is when this process last resumed after a stall: silence before that does not count.
        """
        if self.contact is Status.LOST:
            return float("inf")
        silence = max(self.heard, awake) + lease
        if self.contact is not Status.SUSPECT:
            return silence
        unconfirmed = max(self.since, awake) + UNPROBED * suspicion
        since = self.unreached
        seconded = self.accused > max(self.heard, self.unreached - UNPROBED * suspicion)
        if seconded:
            since = min(since, self.accused)
        if not self.rounds or self.rounds + seconded < CONFIRMED:
            return min(silence, unconfirmed)
        return min(silence, unconfirmed, max(since, awake) + suspicion)

    def at_time(
        self, now: float, *, lease: float, suspicion: float, awake: float = _NEVER
    ) -> "MemberHealth":
        """Return the health after time has passed without evidence."""
        if now < self.next_change_at(lease=lease, suspicion=suspicion, awake=awake):
            return self
        silent = now >= max(self.heard, awake) + lease
        return self.with_evidence(Evidence.SILENCE if silent else Evidence.DOUBT, now)

    def _with_status(self, contact: Status, evidence: Evidence, now: float) -> "MemberHealth":
        heard_at, shut = now if evidence in LIFE else self.heard, self.shut
        if evidence in OPENS or Status.LOST in (contact, self.contact):
            shut = None
        elif evidence in SHUTS:
            shut = evidence
        if contact is Status.ALIVE and shut:
            contact = Status.UNREACHABLE
        if contact is self.contact:
            return replace_fields(self, heard=heard_at, shut=shut)
        # A proof of life through an intermediary is not the reason why this node does not reach it.
        reason = shut if contact is Status.UNREACHABLE and shut else evidence
        reset = replace_fields(self, rounds=0, unreached=_NEVER)
        return replace_fields(
            reset, contact=contact, heard=heard_at, since=now, why=reason, shut=shut
        )


def initial_health(*, heard_at: float, now: float, lease: float) -> MemberHealth:
    """Return the first health of a node that was last heard at `heard_at`, maybe by another node."""
    fresh = heard_at + lease > now
    return MemberHealth(
        contact=Status.ALIVE if fresh else Status.LOST,
        heard=heard_at,
        since=now,
        why=Evidence.WORD if fresh else Evidence.SILENCE,
    )


def presence(standing: Standing, contact: Status) -> Presence:
    """Combine a node's own standing with its state as observed from here."""
    if standing is Standing.LEFT:
        return Presence.LEFT
    if contact is Status.LOST:
        return Presence.LOST
    if standing is Standing.DRAINING:
        return Presence.DRAINING
    return _AS_PRESENCE[contact]
