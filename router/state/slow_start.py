"""Slow start of replicas that are new here, or just back. No I/O, time is an argument.

Power of few choices prefers an idle machine, so all nodes would flood it while its caches are cold and its speed is unknown.
It starts as TCP does: with one concurrent request, and one more for each answer, so a quick replica is warm after a few answers
and a slow one has not got many requests. Each node decides for itself, from when it first asked the replica.
"""

import math
from dataclasses import dataclass

from registry.records import PeerId, Service

ENOUGH = 16
"""Concurrent requests from which on a replica counts as warm, and is no longer limited."""

RISE = 8.0
"""Seconds after which one more is allowed without an answer, so that slow answers do not limit a replica for an hour."""

MAX_NODES = 4_096
"""Nodes whose replicas are remembered; the one seen first is evicted, and would be new again."""

MAX_REPLICAS = 256
"""Replicas of one node that are remembered."""


@dataclass(slots=True)
class _Newcomer:
    since: float
    answered: int = 0


class SlowStart:
    """The replicas that this node has asked: `newcomers` are those that are not warm yet.

    `losses` rises whenever replicas are forgotten: a replica that was asked since then need not be noted again.
    """

    def __init__(self) -> None:
        self._replicas: dict[PeerId, dict[Service, None]] = {}
        self.newcomers: dict[tuple[PeerId, Service], _Newcomer] = {}
        self.losses = 0

    def record_request(self, node: PeerId, service: Service, now: float) -> None:
        """Note that a request goes to a replica; with the first one it becomes a newcomer."""
        of_node = self._replicas.get(node)
        if of_node is None:
            if len(self._replicas) >= MAX_NODES:
                self.forget(next(iter(self._replicas)))
            of_node = self._replicas[node] = {}
        if service not in of_node:
            if len(of_node) >= MAX_REPLICAS:
                self.forget_replica(node, next(iter(of_node)))
            of_node[service] = None
            self.newcomers[node, service] = _Newcomer(now)

    def allowance(self, node: PeerId, service: Service, now: float) -> float:
        """Return how many concurrent requests of this node a replica may have."""
        if service not in self._replicas.get(node, ()):
            return 1
        # Without newcomers there is nothing more to look up.
        newcomer = self.newcomers.get((node, service)) if self.newcomers else None
        if newcomer is None:
            return math.inf
        allowed = 1 + newcomer.answered + (now - newcomer.since) // RISE
        if allowed < ENOUGH:
            return allowed
        del self.newcomers[node, service]
        return math.inf

    def record_answer(self, node: PeerId, service: Service) -> None:
        """Note that a replica gave a whole answer."""
        newcomer = self.newcomers.get((node, service))
        if newcomer is not None:
            newcomer.answered += 1
            if 1 + newcomer.answered >= ENOUGH:
                del self.newcomers[node, service]

    def forget_replica(self, node: PeerId, service: Service) -> None:
        """Forget a replica that failed repeatedly: it is new when it is back."""
        self.losses += 1
        self._replicas.get(node, {}).pop(service, None)
        self.newcomers.pop((node, service), None)

    def forget(self, node: PeerId) -> None:
        """Forget a node that is lost or has left: all its replicas are new when it is back."""
        self.losses += 1
        for service in self._replicas.pop(node, ()):
            self.newcomers.pop((node, service), None)
