"""Access list of peers: what may take part, and what may not; the deny-list has the last word."""

from collections.abc import Iterable
from dataclasses import dataclass

from registry.errors import LimitReached
from registry.records import PeerId


@dataclass(frozen=True, slots=True)
class AccessList:
    """The lists of one node; an empty `allow` lets everybody in, and the node itself is always in."""

    own: PeerId
    allow: frozenset[str]
    deny: frozenset[str]

    def admits(self, peer: PeerId) -> bool:
        """Say whether a peer may speak, ask and be spoken of."""
        if peer == self.own:
            return True
        return peer not in self.deny and (not self.allow or peer in self.allow)

    def require(self, peer: PeerId) -> None:
        """Raise `LimitReached` unless a peer may take part."""
        if not self.admits(peer):
            raise LimitReached(f"{peer} is not admitted here")


def guests(own: PeerId, *, allow: Iterable[str], deny: Iterable[str]) -> AccessList:
    """Make the lists from settings."""
    return AccessList(own, frozenset(allow), frozenset(deny))
