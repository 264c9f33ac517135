"""Access list of peers: which may take part, and which may not. The deny list takes precedence."""

from collections.abc import Iterable
from dataclasses import dataclass

from registry.bounded import put_newest
from registry.errors import LimitReached
from registry.records import PeerId


@dataclass(frozen=True, slots=True)
class AccessList:
    """The lists of one node. An empty `allow` admits every peer, and the node itself is always admitted."""

    own: PeerId
    allow: frozenset[str]
    deny: frozenset[str]

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer may send frames, ask questions and have its record held."""
        if peer == self.own:
            return True
        return peer not in self.deny and (not self.allow or peer in self.allow)

    def objection(self, peer: PeerId) -> str:
        """Return why a peer is not admitted, as the end of a sentence; empty if it is admitted."""
        if self.admits(peer):
            return ""
        return "in registry.deny" if peer in self.deny else "not in registry.allow"

    def require_admitted(self, peer: PeerId) -> None:
        """Raise `LimitReached` unless a peer may take part."""
        if not self.admits(peer):
            raise LimitReached(f"{peer} is not admitted here")


MAX_NAMED = 5
"""Peers that one line of the log names."""


class KeptOut:
    """The peers that were kept out lately, each with the reason, for the log: the last few."""

    def __init__(self) -> None:
        self._reasons: dict[PeerId, str] = {}

    def note(self, peer: PeerId, why: str) -> None:
        """Remember a peer."""
        put_newest(self._reasons, peer, why, limit=MAX_NAMED)

    def take(self) -> dict[PeerId, str]:
        """Return them, and forget them."""
        reasons, self._reasons = self._reasons, {}
        return reasons


def access_list_of(own_peer: PeerId, *, allow: Iterable[str], deny: Iterable[str]) -> AccessList:
    """Build the access list from settings."""
    return AccessList(own_peer, frozenset(allow), frozenset(deny))
