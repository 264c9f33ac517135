"""Does a node live? Which evidence moves it between the states, as a table; time is an argument.

Presence is this node's own, local opinion. It is never gossiped: nobody can declare another dead for everyone.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from registry.records import Standing, Version


class Contact(StrEnum):
    """What we make of a node's silence or noise."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    LOST = "lost"


class Evidence(StrEnum):
    """What can be observed about a node; `REASONS` says it in words."""

    WORD = "word"
    LINKED = "linked"
    ANSWERED = "answered"
    PROVEN = "proven"
    TOLD = "told"
    PARTED = "parted"
    FAILED = "failed"
    MISSED = "missed"
    UNREACHED = "unreached"
    DOUBT = "doubt"
    SILENCE = "silence"


REASONS: dict[Evidence, str] = {
    Evidence.WORD: "it said something new, signed by its key",
    Evidence.LINKED: "an authenticated connection to it stands",
    Evidence.ANSWERED: "it answered a request, a comparison or a probe, or asked us",
    Evidence.PROVEN: "it signed our challenge, which another node put to it",
    Evidence.TOLD: "a connected peer heard it lately, and we not at all since our start",
    Evidence.PARTED: "the last connection to it closed",
    Evidence.FAILED: "a request to it failed to connect or broke",
    Evidence.MISSED: "it did not answer a probe in time",
    Evidence.UNREACHED: "neither we nor any node that we asked reached it",
    Evidence.DOUBT: "the doubt was not refuted in time",
    Evidence.SILENCE: "its lease passed without a sign of life",
}

LIFE = frozenset({Evidence.WORD, Evidence.LINKED, Evidence.ANSWERED, Evidence.PROVEN})
"""Evidence that only a living node can give."""

TABLE: dict[Contact, dict[Evidence, Contact]] = {
    Contact.ALIVE: {
        Evidence.PARTED: Contact.SUSPECT,
        Evidence.FAILED: Contact.SUSPECT,
        Evidence.MISSED: Contact.SUSPECT,
        Evidence.UNREACHED: Contact.SUSPECT,
        Evidence.SILENCE: Contact.LOST,
    },
    Contact.SUSPECT: {
        **dict.fromkeys(LIFE, Contact.ALIVE),
        Evidence.DOUBT: Contact.LOST,
        Evidence.SILENCE: Contact.LOST,
    },
    Contact.LOST: {
        **dict.fromkeys(LIFE, Contact.ALIVE),
        Evidence.TOLD: Contact.ALIVE,
    },
}
"""What each piece of evidence does in each state; what is not listed changes nothing."""

UNPROBED = 3
"""A doubt that no probe has confirmed ends in loss all the same, after so many times `suspicion`."""

_BEFORE_ALL = Version(-1, -1)
_NEVER = float("-inf")


class Presence(StrEnum):
    """What a node is to us: its own word on itself, tempered by whether we hear it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Pulse:
    """What we know of one node's life; times are seconds on this machine's monotonic clock.

    `version` and `beat` are those of the newest heartbeat: only a greater pair proves anything.
    """

    contact: Contact
    heard: float
    since: float
    why: Evidence
    beat: int = -1
    version: Version = _BEFORE_ALL
    unreached: bool = False
    """Whether a whole round of probes has failed since the doubt began."""

    def after(self, evidence: Evidence, now: float) -> "Pulse":
        """Return the pulse once `evidence` has been seen at `now`."""
        heard = now if evidence in LIFE else self.heard
        contact = TABLE[self.contact].get(evidence, self.contact)
        failed = evidence is Evidence.UNREACHED
        if contact is self.contact:
            return replace(self, heard=heard, unreached=self.unreached or failed)
        return replace(
            self, contact=contact, heard=heard, since=now, why=evidence, unreached=failed
        )

    def due(self, *, lease: float, suspicion: float, awake: float = _NEVER) -> float:
        """Return when this pulse changes by the mere passing of time; infinity when it does not.

        `awake` is when we ourselves last woke from a standstill: what others did not say before is no silence.
        """
        if self.contact is Contact.LOST:
            return float("inf")
        silence = max(self.heard, awake) + lease
        if self.contact is Contact.ALIVE:
            return silence
        patience = suspicion if self.unreached else UNPROBED * suspicion
        return min(silence, max(self.since, awake) + patience)

    def at(self, now: float, *, lease: float, suspicion: float, awake: float = _NEVER) -> "Pulse":
        """Return the pulse after time has passed without evidence."""
        if now < self.due(lease=lease, suspicion=suspicion, awake=awake):
            return self
        silent = now >= max(self.heard, awake) + lease
        return self.after(Evidence.SILENCE if silent else Evidence.DOUBT, now)


def first_pulse(*, heard: float, now: float, lease: float) -> Pulse:
    """Begin to follow a node that was last heard at `heard`, maybe by somebody else."""
    fresh = heard + lease > now
    return Pulse(
        contact=Contact.ALIVE if fresh else Contact.LOST,
        heard=heard,
        since=now,
        why=Evidence.WORD if fresh else Evidence.SILENCE,
    )


def presence(standing: Standing, contact: Contact) -> Presence:
    """Combine a node's own word with our contact."""
    if standing is Standing.LEFT:
        return Presence.LEFT
    if contact is Contact.LOST:
        return Presence.LOST
    if standing is Standing.DRAINING:
        return Presence.DRAINING
    return Presence(contact.value)
