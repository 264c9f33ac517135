"""Effects: the values in which the pure core tells `registry.service` what to do."""

from collections.abc import Mapping
from dataclasses import dataclass

from registry.catalog import Signed
from registry.records import Load, PeerId, Service, Version


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
    """A node has a newer word than we hold; ask for it."""

    node: PeerId


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
class Refused:
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
    Persist | Forget | Publish | Fetch | Changed | Contested | Remember | Probe | Loaded | Refused
)
