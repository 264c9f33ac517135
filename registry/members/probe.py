"""Probe of a silent member: direct, then through helpers. A generator without I/O.

Its own way and others' are different questions: others may prove that a node lives which we do not reach. A connection on
which two probes in a row went unanswered is cut, whatever others say: the next one begins with fresh packets.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.members.liveness import Contact, Evidence, Pulse
from registry.records import PeerId

HELPERS = 3
"""Other nodes that are asked to probe a silent one; memberlist asks as many."""

ROUND_TRIPS = 4
"""Round trips that an answer may take beyond `probe_timeout`: one for the stream, one for the question, as much again."""

DIALLING = 2.0
"""Times `probe_timeout` that a connection may take to stand, beyond the round trips of its handshakes."""

DIAL_TRIPS = 6

_LONGEST_TRIP = 1.0


class Own(StrEnum):
    """What we try ourselves: a question over the connection that stands, or over one that is dialled for it."""

    NOTHING = "nothing"
    ASK = "ask"
    DIAL = "dial"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Try this all at one time. Each answer is evidence at once: `ANSWERED` to us, `PROVEN` through a helper."""

    own: Own
    helpers: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Saw:
    """Take this in as evidence."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection to the node."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of an attempt: did we get an answer, did a helper get a proof?"""

    reached: bool = False
    proven: bool = False


Round = Generator[Attempt | Saw | Cut, Found, None]
"""Yields what to do next, and is sent what an attempt found; anything after `Saw` and `Cut`."""


def look_for(pulse: Pulse, *, linked: bool, helpers: tuple[PeerId, ...], dial: bool) -> Round:
    """Go through one round; `dial` says not to content ourselves with what others say of a node that is not linked."""
    if linked:
        if (yield Attempt(Own.ASK)).reached:
            return
        yield Saw(Evidence.MISSED)
        if pulse.contact is Contact.LOST:
            return
        found = yield Attempt(Own.ASK, helpers)
        if not found.reached:
            yield Cut()
    elif dial or pulse.shut:
        found = yield Attempt(Own.DIAL, helpers)
    else:
        # Whoever is in doubt far from here is nobody that all should dial.
        if (yield Attempt(Own.NOTHING, helpers)).proven:
            return
        found = yield Attempt(Own.DIAL)
    if not found.reached:
        yield Saw(Evidence.MISSED if found.proven else Evidence.UNREACHED)


def choose_helpers(
    connected: Mapping[PeerId, float],
    node: PeerId,
    last: PeerId | None,
    random: Callable[[], float],
) -> tuple[PeerId, ...]:
    """Choose whom to ask about a node: who proved it last, as that one is connected to it, and others by chance."""
    among = sorted((peer for peer in connected if peer != node), key=lambda _: random())
    return tuple(sorted(among, key=lambda peer: peer != last)[:HELPERS])


def patience(probe_timeout: float, round_trip: float) -> float:
    """Return how many seconds an answer to us may take; one through a helper may take twice as many."""
    return probe_timeout + ROUND_TRIPS * min(round_trip, _LONGEST_TRIP)


def dial_patience(probe_timeout: float, connected: Mapping[PeerId, float]) -> float:
    """Return how many seconds a dial may take, where the slowest peer is as far as any may be."""
    slowest = min(max(connected.values(), default=0.0), _LONGEST_TRIP)
    return DIALLING * probe_timeout + DIAL_TRIPS * slowest
