"""Probe of a silent member: direct, then through intermediaries. A generator without I/O.

Whether this node reaches the member and whether intermediaries do are different questions: these may prove that a node lives
which this node does not reach. A connection on which two probes in a row went unanswered is cut, whatever intermediaries say: the
next one begins with fresh packets.

Also the schedule of probes over connected peers that are not suspected: the one that was silent longest comes next.
"""

from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.clock import RandomSource
from registry.members.liveness import Evidence, MemberHealth, Status
from registry.records import PeerId
from registry.settings import RegistrySettings

_SPARSE = 2.5  # the greatest factor on the time between probes, reached with ten connected peers
_QUIET = 1.5  # times `probe` for which a peer must have been silent
_NEVER = float("-inf")


class ProbeSchedule:
    """The connected peers, and when each is probed in turn."""

    def __init__(self, settings: RegistrySettings, jitter: RandomSource) -> None:
        self.connected: set[PeerId] = set()
        self._settings = settings
        self._jitter = jitter
        self._probed_at: dict[PeerId, float] = {}
        self._next_probe_at = _NEVER

    def add_peer(self, node: PeerId) -> None:
        """Note that a peer is connected."""
        self.connected.add(node)

    def remove_peer(self, node: PeerId) -> None:
        """Note that a peer is not connected any more."""
        self.connected.discard(node)
        self._probed_at.pop(node, None)

    def next_probe(
        self, members: Mapping[PeerId, MemberHealth], *busy: Container[PeerId]
    ) -> tuple[PeerId, float] | None:
        """Return the next peer to probe, and when; `None` when all connected peers are unknown or busy."""
        quiet = {
            node: max(members[node].heard, self._probed_at.get(node, _NEVER))
            for node in self.connected
            if node in members and not any(node in probed for probed in busy)
        }
        if not quiet:
            return None
        node = min(quiet, key=lambda n: (quiet[n], n))
        return node, max(self._next_probe_at, quiet[node] + _QUIET * self._settings.probe)

    def note_probed(self, node: PeerId, now: float) -> None:
        """Note that a peer is probed now, and set the time of the next probe."""
        self._probed_at[node] = now
        sparse = min(max(len(self.connected) / 4, 1.0), _SPARSE)
        self._next_probe_at = now + self._settings.probe * sparse * (0.9 + 0.2 * self._jitter())


INDIRECT_PROBES = 3
"""Other nodes that are asked to probe a silent one, as many as in memberlist."""

ROUND_TRIPS = 4
"""Round trips that an answer may take beyond `probe_timeout`: twice one for the stream and one for the question."""

DIALLING = 2.0
"""Times `probe_timeout` that a dial may take, beyond the `DIAL_TRIPS` round trips of its handshakes."""

DIAL_TRIPS = 6

_LONGEST_TRIP = 1.0


class OwnProbe(StrEnum):
    """What this node tries itself: a question over the open connection, or over one that is dialled for it."""

    NOTHING = "nothing"
    ASK = "ask"
    DIAL = "dial"


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Attempts to make concurrently. Each answer is evidence at once: `ANSWERED` to this node, `PROVEN` to an intermediary."""

    own: OwnProbe
    intermediaries: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class NoteEvidence:
    """Evidence to note."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Request to close the connection to the node."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a step: whether this node got an answer, and whether an intermediary got a proof."""

    reached: bool = False
    proven: bool = False


Round = Generator[ProbeStep | NoteEvidence | CloseConnection, Found, None]
"""Yields what to do next, and is sent the result of each `ProbeStep`; what is sent after the others is ignored."""


def probe_steps(
    health: MemberHealth, *, linked: bool, intermediaries: tuple[PeerId, ...], dial: bool
) -> Round:
    """Yield the steps of one round.

    With `dial`, a node that is not `linked` is dialled at once. Otherwise it is dialled only if its path is shut, or if no
    intermediary gets a proof.
    """
    if linked:
        if (yield ProbeStep(OwnProbe.ASK)).reached:
            return
        yield NoteEvidence(Evidence.MISSED)
        if health.contact is Status.LOST:
            return
        found = yield ProbeStep(OwnProbe.ASK, intermediaries)
        if not found.reached:
            yield CloseConnection()
    elif dial or health.shut:
        found = yield ProbeStep(OwnProbe.DIAL, intermediaries)
    else:
        # Not all nodes should dial a suspect that they are not connected to.
        if (yield ProbeStep(OwnProbe.NOTHING, intermediaries)).proven:
            return
        found = yield ProbeStep(OwnProbe.DIAL)
    if not found.reached:
        yield NoteEvidence(Evidence.MISSED if found.proven else Evidence.UNREACHED)


def choose_intermediaries(
    connected: Mapping[PeerId, float],
    node: PeerId,
    last: PeerId | None,
    random: RandomSource,
) -> tuple[PeerId, ...]:
    """Choose the intermediaries for a node: the one that got its last proof, as it is connected to the node, and random peers."""
    shuffled = sorted((peer for peer in connected if peer != node), key=lambda _: random())
    return tuple(sorted(shuffled, key=lambda peer: peer != last)[:INDIRECT_PROBES])


def answer_timeout(probe_timeout: float, round_trip: float) -> float:
    """Return how many seconds an answer may take; one through an intermediary may take twice as many."""
    return probe_timeout + ROUND_TRIPS * min(round_trip, _LONGEST_TRIP)


def dial_timeout(probe_timeout: float, connected: Mapping[PeerId, float]) -> float:
    """Return how many seconds a dial may take, with the round trip of the slowest connected peer."""
    slowest = min(max(connected.values(), default=0.0), _LONGEST_TRIP)
    return DIALLING * probe_timeout + DIAL_TRIPS * slowest
