"""Validator of frames: checks what a neighbour forwards before this node believes it or passes it on.

The mesh calls it in its own thread, before gossip forwards a frame. So honest nodes never forward an invalid frame, and a
neighbour that does commits an offence. The publisher of a frame, which libp2p authenticates, must be its owner.
"""

from collections import Counter
from typing import Protocol

from registry import wire
from registry.catalog import Catalog
from registry.clock import Clock
from registry.errors import InvalidFrame, UnknownKind
from registry.intake.access_list import AccessList, KeptOut
from registry.intake.newcomers import AT_ONCE
from registry.intake.rate import FRAME_COST, RateLimit
from registry.mesh import MAX_FRAME_BYTES, Verdict
from registry.records import PeerId
from registry.settings import RegistrySettings

FORWARDED_PER_SECOND = 500.0
"""Tokens of one neighbour, through which the frames of many authors come. A frame costs one, and one per `FRAME_COST` bytes."""

FORWARDED_AT_ONCE = 2_000.0

MAX_FRAME_TOKENS = MAX_FRAME_BYTES / FRAME_COST
"""Tokens that the longest frame costs; the bucket holds as many, so that it passes at any rate."""


class KnownNodes(Protocol):
    """What the registry holds, read in the mesh's thread."""

    @property
    def access(self) -> AccessList:
        """The nodes that may take part here."""

    @property
    def catalog(self) -> Catalog:
        """The newest snapshot."""


class Validator:
    """Judges frames. Its methods, and with them `now`, are called in the mesh's thread."""

    def __init__(self, settings: RegistrySettings, known_nodes: KnownNodes, *, now: Clock) -> None:
        self.counters: Counter[str] = Counter()
        self.kept_out = KeptOut()
        self._known_nodes = known_nodes
        self._now = now
        self._neighbour_limit = RateLimit(rate=FORWARDED_PER_SECOND, burst=FORWARDED_AT_ONCE)
        # As much as the registry reads of an author. Short frames always pass: replayed old frames cannot silence their author.
        self._long_frame_limit = RateLimit(
            rate=settings.frames_per_second,
            burst=max(settings.frames_per_second * 10, MAX_FRAME_TOKENS),
        )
        self._stranger_limit = RateLimit(rate=settings.strangers_per_second, burst=AT_ONCE)

    def knows(self, node: PeerId) -> bool:
        """Return whether the registry holds a node."""
        return node in self._known_nodes.catalog.held

    def judge(self, via: PeerId, author: PeerId, frame: bytes) -> Verdict:
        """Return what to do with a frame that `via` forwarded and `author` published."""
        if (reason := self._reason_to_drop(via, author, frame)) is not None:
            self.counters[reason] += 1
            return Verdict.DROP
        try:
            message = wire.decode(frame) if wire.author_of(frame) == author else None
        except UnknownKind:
            self.counters["frames_unknown"] += 1
            return Verdict.DROP
        except InvalidFrame:
            message = None
        if message is None:
            self.counters["frames_bad"] += 1
            return Verdict.OFFENCE
        return Verdict.TAKE

    def _reason_to_drop(self, via: PeerId, author: PeerId, frame: bytes) -> str | None:
        access = self._known_nodes.access
        for peer in (via, author):
            if not access.admits(peer):
                self.kept_out.note(peer, access.objection(peer))
                return "kept_out"
        now = self._now()
        if not self._neighbour_limit.allows(via, now, cost=1 + len(frame) / FRAME_COST):
            return "frames_dropped"
        if not self.knows(author) and not self._stranger_limit.allows(via, now):
            return "strangers_refused"
        cost = len(frame) / FRAME_COST
        if cost > 1 and not self._long_frame_limit.allows(author, now, cost=cost):
            return "frames_dropped"
        return None
