"""Probe of a silent member: direct, then through helpers. A generator without I/O.

Its own way and others' are different questions: others may prove that a node lives which we do not reach. A connection on
which two probes in a row went unanswered is cut, whatever others say: the next one begins with fresh packets.

Schedule of probes over connected peers against which nothing speaks: the one that was silent longest. No I/O.
"""

from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.clock import Chance
from registry.members.liveness import Evidence, Pulse, Status
from registry.records import PeerId
from registry.settings import RegistrySettings

_SPARSE = 2.5  # the greatest factor on the time between probes, reached with ten connected peers
_QUIET = 1.5  # times `probe` for which a peer must have been silent
_NEVER = float("-inf")


class ProbeSchedule:
    """The peers that are connected, and when it is whose turn."""

    def __init__(self, settings: RegistrySettings, jitter: Chance) -> None:
        self.linked: set[PeerId] = set()
        self._settings = settings
        self._jitter = jitter
        self._probed: dict[PeerId, float] = {}
        self._next = _NEVER

    def join(self, node: PeerId) -> None:
        """Take in that a peer is connected."""
        self.linked.add(node)

    def part(self, node: PeerId) -> None:
        """Take in that it is not any more."""
        self.linked.discard(node)
        self._probed.pop(node, None)

    def next(
        self, pulses: Mapping[PeerId, Pulse], *busy: Container[PeerId]
    ) -> tuple[PeerId, float] | None:
        """Return who is next, and when; nobody when all that are connected are strangers or busy."""
        quiet = {
            node: max(pulses[node].heard, self._probed.get(node, _NEVER))
            for node in self.linked
            if node in pulses and not any(node in probed for probed in busy)
        }
        if not quiet:
            return None
        node = min(quiet, key=lambda n: (quiet[n], n))
        return node, max(self._next, quiet[node] + _QUIET * self._settings.probe)

    def take(self, node: PeerId, now: float) -> None:
        """Give a peer its turn now."""
        self._probed[node] = now
        sparse = min(max(len(self.linked) / 4, 1.0), _SPARSE)
        self._next = now + self._settings.probe * sparse * (0.9 + 0.2 * self._jitter())


HELPERS = 3
"""Other nodes that are asked to probe a silent one; memberlist asks as many."""

ROUND_TRIPS = 4
"""Round trips that an answer may take beyond `probe_timeout`: one for the stream, one for the question, as much again."""

DIALLING = 2.0
"""Times `probe_timeout` that a connection may take to stand, beyond the round trips of its handshakes."""

DIAL_TRIPS = 6

_LONGEST_TRIP = 1.0


class OwnProbe(StrEnum):
    """What we try ourselves: a question over the connection that stands, or over one that is dialled for it."""

    NOTHING = "nothing"
    ASK = "ask"
    DIAL = "dial"


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Try this all at one time. Each answer is evidence at once: `ANSWERED` to us, `PROVEN` through a helper."""

    own: OwnProbe
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
    """What came of a probe: whether we got an answer, and whether a helper got a proof."""

    reached: bool = False
    proven: bool = False


Round = Generator[ProbeStep | Saw | Cut, Found, None]
"""Yields what to do next, and is sent what an attempt found; anything after `Saw` and `Cut`."""


def look_for(pulse: Pulse, *, linked: bool, helpers: tuple[PeerId, ...], dial: bool) -> Round:
    """Go through one round; `dial` says not to content ourselves with what others say of a node that is not linked."""
    if linked:
        if (yield ProbeStep(OwnProbe.ASK)).reached:
            return
        yield Saw(Evidence.MISSED)
        if pulse.contact is Status.LOST:
            return
        found = yield ProbeStep(OwnProbe.ASK, helpers)
        if not found.reached:
            yield Cut()
    elif dial or pulse.shut:
        found = yield ProbeStep(OwnProbe.DIAL, helpers)
    else:
        # Whoever is in doubt far from here is nobody that all should dial.
        if (yield ProbeStep(OwnProbe.NOTHING, helpers)).proven:
            return
        found = yield ProbeStep(OwnProbe.DIAL)
    if not found.reached:
        yield Saw(Evidence.MISSED if found.proven else Evidence.UNREACHED)


def choose_helpers(
    connected: Mapping[PeerId, float],
    node: PeerId,
    last: PeerId | None,
    random: Chance,
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
