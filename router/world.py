"""World of a router: what it can see of its node and of other nodes, and what it reports of attempts.

Each attribute is an immutable snapshot as of the moment at which it is read: code that decides by it reads it once.
"""

from dataclasses import dataclass, field
from typing import Protocol

from registry.catalog import Catalog
from registry.members.liveness import Presence
from registry.records import PeerId
from router.outcome import Outcome
from router.workers import Workers


class World(Protocol):
    """A node as its router sees it."""

    @property
    def own(self) -> PeerId:
        """This node."""

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""

    @property
    def workers(self) -> Workers:
        """The workers of this machine, as they were registered."""

    @property
    def draining(self) -> bool:
        """Whether this node takes no new requests."""

    def presence_of(self, node: PeerId) -> Presence:
        """Return whether a node lives, and can be reached from here."""

    def absence_of(self, node: PeerId) -> float:
        """Return the seconds for which a node that is lost or has left has not been heard."""

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node did not answer when it was probed."""

    def request_probe(self, node: PeerId) -> None:
        """Have a node probed that a request waits for; the registry limits how often."""

    def observe(self, outcome: Outcome) -> None:
        """Take in how an attempt went."""


@dataclass
class LoneWorld:
    """World of a process that knows no other node."""

    own: PeerId
    workers: Workers = field(default_factory=Workers)
    catalog: Catalog = field(default_factory=Catalog)
    draining: bool = False

    def presence_of(self, node: PeerId) -> Presence:  # noqa: ARG002 (a World)
        """Return that any node is alive."""
        return Presence.ALIVE

    def absence_of(self, node: PeerId) -> float:  # noqa: ARG002
        """Return that no node is absent."""
        return 0.0

    def is_silent(self, node: PeerId) -> bool:  # noqa: ARG002
        """Return that no node is silent."""
        return False

    def request_probe(self, node: PeerId) -> None:
        """Probe no node."""

    def observe(self, outcome: Outcome) -> None:
        """Take nothing in."""
