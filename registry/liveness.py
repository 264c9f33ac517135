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
    """What can be observed about a node."""

    WORD = "word"  # a newer signed frame of its own
    LINKED = "linked"  # an authenticated connection stands
    ANSWERED = "answered"  # it answered a request or a comparison
    PARTED = "parted"  # the last connection closed
    FAILED = "failed"  # a request to it failed to connect or broke
    DOUBT = "doubt"  # suspicion was not refuted in time
    SILENCE = "silence"  # the lease passed without a word


TABLE: dict[Contact, dict[Evidence, Contact]] = {
    Contact.ALIVE: {
        Evidence.PARTED: Contact.SUSPECT,
        Evidence.FAILED: Contact.SUSPECT,
        Evidence.SILENCE: Contact.LOST,
    },
    Contact.SUSPECT: {
        Evidence.WORD: Contact.ALIVE,
        Evidence.LINKED: Contact.ALIVE,
        Evidence.ANSWERED: Contact.ALIVE,
        Evidence.DOUBT: Contact.LOST,
        Evidence.SILENCE: Contact.LOST,
    },
    Contact.LOST: {
        Evidence.WORD: Contact.ALIVE,
        Evidence.LINKED: Contact.ALIVE,
        Evidence.ANSWERED: Contact.ALIVE,
    },
}
"""What each piece of evidence does in each state; what is not listed changes nothing."""

_BEFORE_ALL = Version(-1, -1)

LIFE = frozenset({Evidence.WORD, Evidence.LINKED, Evidence.ANSWERED})


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

    def after(self, evidence: Evidence, now: float) -> "Pulse":
        """Return the pulse once `evidence` has been seen at `now`."""
        heard = now if evidence in LIFE else self.heard
        contact = TABLE[self.contact].get(evidence, self.contact)
        if contact is self.contact:
            return replace(self, heard=heard)
        return replace(self, contact=contact, heard=heard, since=now, why=evidence)

    def due(self, *, lease: float, suspicion: float) -> float:
        """Return when this pulse changes by the mere passing of time; infinity when it does not."""
        if self.contact is Contact.LOST:
            return float("inf")
        silence = self.heard + lease
        return min(silence, self.since + suspicion) if self.contact is Contact.SUSPECT else silence

    def at(self, now: float, *, lease: float, suspicion: float) -> "Pulse":
        """Return the pulse after time has passed without evidence."""
        if now < self.due(lease=lease, suspicion=suspicion):
            return self
        silent = now >= self.heard + lease
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
