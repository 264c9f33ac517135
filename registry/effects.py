"""Effects: the values in which the pure core tells `registry.service` what to do.

Events that the registry counts: each event by name; `/metrics` shows all of them, also those that have not happened yet.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

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
    "kept_out": "frames and questions of peers that are not admitted",
    "questions_refused": "questions of a peer that asks too often, and challenges beyond the limit of concurrent ones",
    "streams_refused": "questions and pipes beyond the limit of concurrent ones, and questions that are too long",
    "connections_refused": "incoming connections beyond the limit",
    "handshakes_failed": "incoming connections whose handshake failed: another swarm key, or no node",
}
"""Every event with what it counts."""


def counted(*counts: Mapping[str, int]) -> Mapping[str, int]:
    """Add counts up; what has not happened was counted 0 times, which is something to compare with later."""
    total = Counter(dict.fromkeys(EVENTS, 0))
    for some in counts:
        # Copied at once, since the mesh counts on in its own thread.
        total.update(dict(some))
    return total


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this word to the store."""

    signed: Signed


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove this node's word from the store: it made room for another."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this frame to the mesh."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """A node claims a newer word than we hold; ask for it."""

    node: PeerId
    version: Version


@dataclass(frozen=True, slots=True)
class Changed:
    """What we know of these nodes is not what it was."""

    nodes: frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class Contested:
    """Another machine speaks with our key; an operator must look."""

    version: Version


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep the newest heartbeat's number of this node, so that an older one proves nothing after our restart."""

    node: PeerId
    version: Version
    beat: int


@dataclass(frozen=True, slots=True)
class WordsRefused:
    """Words were not taken in, because a bound is reached; `why` is that of the first."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether this node lives and whether we reach it: go through `Membership.round`, and tell its end."""

    node: PeerId


@dataclass(frozen=True, slots=True)
class Loaded:
    """A node said how busy some of its replicas are; nothing is in `loads` when the note was dropped."""

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
    | WordsRefused
)
