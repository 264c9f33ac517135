"""Access list of peers: which may take part, and which may not. The deny list takes precedence."""

from collections.abc import Iterable
from dataclasses import dataclass

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

    def require_admitted(self, peer: PeerId) -> None:
        """Raise `LimitReached` unless a peer may take part."""
        if not self.admits(peer):
            raise LimitReached(f"{peer} is not admitted here")


def access_list_of(own_peer: PeerId, *, allow: Iterable[str], deny: Iterable[str]) -> AccessList:
    """Build the access list from settings."""
    return AccessList(own_peer, frozenset(allow), frozenset(deny))
