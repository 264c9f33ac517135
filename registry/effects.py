"""Effects: the values in which the pure core tells `registry.service` what to do.

Also the events that the registry counts, by name; `/metrics` shows all of them, those that have not happened yet at 0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from registry.catalog import Signed
from registry.records import Load, PeerId, Service, Version

EVENTS: Mapping[str, str] = {
    "frames_in": "frames read",
    "frames_out": "frames published",
    "frames_bad": "frames that were malformed, forged, or not gossiped by their owner",
    "frames_dropped": "frames beyond the limit of one neighbour",
    "frames_lost_in_queue": "frames that arrived faster than the registry read them",
    "frames_unknown": "frames of a newer version or an unknown kind",
    "strangers_refused": "frames of unknown nodes beyond the limit of one neighbour",
    "refused": "records beyond the registry's size, or beyond the limit of a neighbour or an author",
    "loads_in": "load reports accepted",
    "loads_out": "load reports published",
    "loads_dropped": "load reports that were stale, too frequent, or from a node without a record",
    "syncs": "comparisons completed",
    "syncs_failed": "comparisons that failed",
    "probes": "probes",
    "probes_failed": "probes after which no node reached the target",
    "offences": "offences of peers: malformed, forged or foreign data",
    "barred": "peers disconnected for five minutes, for too many offences",
    "kept_out": "frames, records and questions of nodes that are not admitted",
    "questions_refused": "questions of a peer that asks too often, and challenges beyond the limit of concurrent ones",
    "streams_refused": "questions and pipes beyond the limit of concurrent ones, and questions that are too long",
    "connections_refused": "incoming connections beyond the limit",
    "handshakes_failed": "incoming connections whose handshake failed: another swarm key, or no node",
}
"""Every event with what it counts."""


def sum_counts(*counts: Mapping[str, int]) -> Mapping[str, int]:
    """Add up counts. An event that has not happened counts as 0, with which later values can be compared."""
    total = Counter(dict.fromkeys(EVENTS, 0))
    for some in counts:
        # Copied first, since the mesh keeps counting in its own thread.
        total.update(dict(some))
    return total


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this record to the store."""

    signed: Signed


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove this node's record from the store: another node took its place."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this frame to the mesh."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch a newer record that a node claims to have."""

    node: PeerId
    version: Version


@dataclass(frozen=True, slots=True)
class Changed:
    """The record or presence of these nodes changed."""

    nodes: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class Contested:
    """Another machine uses this node's key; an operator must act."""

    version: Version


@dataclass(frozen=True, slots=True)
class Remember:
    """Store the number of this node's newest heartbeat, so that an older one proves nothing after our restart."""

    node: PeerId
    version: Version
    beat: int


@dataclass(frozen=True, slots=True)
class RecordsRefused:
    """Records were refused because a limit is reached; `why` is the reason for the last of them."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class RecordsKeptOut:
    """A peer offered records of nodes that the access list does not admit."""

    nodes: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Probe this node: perform the steps of `Membership.probe_round`, then call `Membership.end_probe`."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Loaded:
    """A node reported the load of some of its replicas; `loads` is empty when the note was dropped."""

    node: PeerId
    loads: Mapping[Service, Load]


Effect = (
    Persist
    | Forget
    | Publish
    | Fetch
    | Changed
    | Contested
    | Remember
    | Probe
    | Loaded
    | RecordsRefused
    | RecordsKeptOut
)


class Performer(Protocol):
    """Shell that performs effects."""

    async def perform(self, effects: Sequence[Effect]) -> None:
        """Perform what the core has decided, in that order."""
