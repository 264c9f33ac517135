"""Evidence about other nodes, from a helper to the first process: what requests have shown, but not every answer anew."""

from collections.abc import Callable

from node.processes.protocol import Said, Shown, Stale
from registry.members.liveness import Evidence
from registry.records import PeerId
from router.attempt import Outcome

PAUSE = 0.5
"""Seconds within which another answer of a node is no news."""

MAX_NODES = 10_000
"""Nodes whose last answer is remembered; beyond that all are forgotten, and told of once more."""


class Witness:
    """Tells what attempts showed; time is an argument of what it is given."""

    def __init__(self, own: PeerId, tell: Callable[[Said], None], now: Callable[[], float]) -> None:
        self._own = own
        self._tell = tell
        self._now = now
        self._answered: dict[PeerId, float] = {}

    def observe(self, outcome: Outcome) -> None:
        """Take in how an attempt went."""
        node, shown = outcome.candidate.node, outcome.shows
        if outcome.stale:
            self._tell(Stale(node))
        if node == self._own or shown is None:
            return
        if shown is Evidence.FAILED:
            self._answered.pop(node, None)
            self._tell(Shown(node, shown))
        else:
            self._alive(node)

    def _alive(self, node: PeerId) -> None:
        now = self._now()
        last = self._answered.get(node)
        if last is not None and now - last < PAUSE:
            return
        if len(self._answered) >= MAX_NODES:
            self._answered.clear()
        self._answered[node] = now
        self._tell(Shown(node, Evidence.ANSWERED))
