"""Liveness of a node, and whether it is reached from here.

Which evidence moves it between the states, as a table; time is an argument.

Presence is this node's own, local opinion. It is never gossiped: nobody can declare another dead for everyone.
"""

from dataclasses import dataclass
from enum import StrEnum

from registry.records import PeerId, Standing, Version
from registry.values import changed


class Status(StrEnum):
    """What we make of a node's silence or noise. One that lives, but not for us, is `unreachable`."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    SUSPECT = "suspect"
    LOST = "lost"


class Evidence(StrEnum):
    """What can be observed about a node; `REASONS` says it in words."""

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
"""Evidence that our own way to a node works: there and back."""

SHUTS = frozenset({Evidence.FAILED, Evidence.MISSED, Evidence.UNREACHED})
"""Evidence that it does not."""

LIFE = OPENS | {Evidence.ASKED, Evidence.WORD, Evidence.PROVEN}
"""Evidence that only a living node can give. A connection is none: it stands while the program behind it hangs."""

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
"""What each piece of evidence does in each state; what is not listed changes nothing.

Where this says alive and our own way is shut, the node is unreachable. The loss of a node forgets how we reached it.
"""

CONFIRMED = 2
"""Rounds of probes that must fail before a doubt can end in loss: of one, a lost packet may be the reason.

One of them may be another's: that is what it says by a doubt. Without one of our own nobody is lost.
"""

UNPROBED = 3
"""A doubt that no probes have confirmed ends in loss all the same, after so many times `suspicion`."""

FRESH = 0.1
"""Seconds after a sign of life in which another one of the same kind shows nothing new."""

_BEFORE_ALL = Version(-1, -1)
_NEVER = float("-inf")


class Presence(StrEnum):
    """What a node is to us: its own word on itself, tempered by whether we hear and reach it."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


_AS_PRESENCE = {status: Presence(status) for status in Status}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What we know of one node's life; times are seconds on this machine's monotonic clock.

    `version` and `beat` are those of the newest heartbeat: only a greater pair proves anything.
    """

    contact: Status
    heard: float
    since: float
    why: Evidence
    beat: int = -1
    version: Version = _BEFORE_ALL
    shut: Evidence | None = None
    """What showed last that our own way to it is shut; none while it is open, as far as we know."""
    rounds: int = 0
    """Rounds of probes that failed since the doubt began, and when the first of them had."""
    unreached: float = _NEVER
    accused: float = _NEVER
    """When another node last said that it does not reach this one."""
    proved_by: PeerId | None = None
    """Who got its last proof of life that was not for us."""

    def well(self, now: float) -> bool:
        """Say whether it was heard just now, is reached, and nobody has doubted it since."""
        fresh = self.contact is Status.ALIVE and now - self.heard < FRESH
        return fresh and self.shut is None and self.accused < self.heard

    def silence(self, now: float) -> float:
        """Return the seconds since it was last heard; of one that never was, since it is followed."""
        return now - (self.heard if self.heard > _NEVER else self.since)

    def after(self, evidence: Evidence, now: float) -> "Pulse":
        """Return the pulse once `evidence` has been seen at `now`."""
        moved = self._become(TABLE[self.contact].get(evidence, self.contact), evidence, now)
        if evidence is not Evidence.UNREACHED or moved.contact is not Status.SUSPECT:
            return moved
        first = moved.unreached if moved.rounds else now
        return changed(moved, rounds=moved.rounds + 1, unreached=first)

    def barred(self, evidence: Evidence, now: float) -> "Pulse":
        """Return the pulse once our own way has failed to a node that spoke meanwhile: no reason to doubt its life."""
        return self._become(self.contact, evidence, now)

    def due(self, *, lease: float, suspicion: float, awake: float = _NEVER) -> float:
        """Return when this pulse changes by the mere passing of time; infinity when it does not.

        `awake` is when we ourselves last woke from a standstill: what others did not say before is no silence.
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

    def at(self, now: float, *, lease: float, suspicion: float, awake: float = _NEVER) -> "Pulse":
        """Return the pulse after time has passed without evidence."""
        if now < self.due(lease=lease, suspicion=suspicion, awake=awake):
            return self
        silent = now >= max(self.heard, awake) + lease
        return self.after(Evidence.SILENCE if silent else Evidence.DOUBT, now)

    def _become(self, contact: Status, evidence: Evidence, now: float) -> "Pulse":
        heard, shut = now if evidence in LIFE else self.heard, self.shut
        if evidence in OPENS or Status.LOST in (contact, self.contact):
            shut = None
        elif evidence in SHUTS:
            shut = evidence
        if contact is Status.ALIVE and shut:
            contact = Status.UNREACHABLE
        if contact is self.contact:
            return changed(self, heard=heard, shut=shut)
        # Others' proof of its life is not why we do not reach it.
        why = shut if contact is Status.UNREACHABLE and shut else evidence
        kept = changed(self, rounds=0, unreached=_NEVER)
        return changed(kept, contact=contact, heard=heard, since=now, why=why, shut=shut)


def first_pulse(*, heard: float, now: float, lease: float) -> Pulse:
    """Begin to follow a node that was last heard at `heard`, maybe by somebody else."""
    fresh = heard + lease > now
    return Pulse(
        contact=Status.ALIVE if fresh else Status.LOST,
        heard=heard,
        since=now,
        why=Evidence.WORD if fresh else Evidence.SILENCE,
    )


def presence(standing: Standing, contact: Status) -> Presence:
    """Combine a node's own word with our contact."""
    if standing is Standing.LEFT:
        return Presence.LEFT
    if contact is Status.LOST:
        return Presence.LOST
    if standing is Standing.DRAINING:
        return Presence.DRAINING
    return _AS_PRESENCE[contact]
