"""What becomes of the ways to a node, and of what it said of its load, when it is lost and when it is back?"""

from collections.abc import Callable, Iterable

from registry.liveness import Presence
from registry.records import PeerId
from router.dispatch import Router
from router.links import Links

_AWAY = frozenset({Presence.LOST, Presence.UNREACHABLE})
_GONE = frozenset({Presence.LOST, Presence.LEFT})


def follow_ways(
    links: Links, presence: Callable[[PeerId], Presence], *, forgive: Callable[[PeerId], None]
) -> Callable[[Iterable[PeerId]], None]:
    """Return what takes in that nodes changed: waits for the lost end, and who is back is tried anew, by `forgive` too."""
    away: set[PeerId] = set()

    def changed(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            now = presence(node)
            if now in _AWAY:
                away.add(node)
            if now is Presence.LOST:
                links.give_up(node)
            elif now is Presence.ALIVE and node in away:
                away.remove(node)
                links.forgive(node)
                forgive(node)

    return changed


def follow_loads(
    router: Router, presence: Callable[[PeerId], Presence]
) -> Callable[[Iterable[PeerId]], None]:
    """Return what takes in that nodes changed: what those said that are gone is forgotten."""

    def changed(nodes: Iterable[PeerId]) -> None:
        for node in nodes:
            if presence(node) in _GONE:
                router.forget(node)

    return changed
