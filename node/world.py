"""World of a node's router: its registry, its workers, and the metrics that count the outcomes of attempts."""

import math
import time
from dataclasses import dataclass

from node.agent import Agent
from node.observe.metrics import Metrics
from registry.catalog import Catalog
from registry.clock import Clock
from registry.members.liveness import Presence
from registry.records import PeerId
from registry.service import Registry
from router.outcome import Outcome
from router.workers import Workers


@dataclass(frozen=True, slots=True)
class NodeWorld:
    """The `World` of a node."""

    registry: Registry
    agent: Agent
    metrics: Metrics
    now: Clock = time.monotonic

    @property
    def own(self) -> PeerId:
        """This node."""
        return self.registry.peer

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""
        return self.registry.replica.catalog

    @property
    def workers(self) -> Workers:
        """The workers of this machine."""
        return self.agent.workers

    @property
    def draining(self) -> bool:
        """Whether this node's own record says that it takes no new requests."""
        return self.registry.replica.is_draining()

    def presence_of(self, node: PeerId) -> Presence:
        """Return whether a node is alive, and reachable from this node."""
        return self.registry.presence(node)

    def absence_of(self, node: PeerId) -> float:
        """Return for how many seconds a node has not been heard; infinite for an unknown node."""
        pulse = self.registry.pulse(node)
        return math.inf if pulse is None else pulse.silence(self.now())

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left this node's probe unanswered, and has not answered since."""
        return self.registry.silent(node)

    def look_at(self, node: PeerId) -> None:
        """Have the registry probe a node."""
        self.registry.look(node)

    def observe(self, outcome: Outcome) -> None:
        """Pass the outcome of an attempt to the metrics and the registry."""
        self.metrics.attempt(outcome)
        candidate = outcome.candidate
        # The outcome at a worker of this node tells the registry nothing.
        if candidate.worker is not None:
            return
        shown = outcome.shows
        if shown is not None:
            self.registry.observe(candidate.node, shown)
        # The node's newest record has not arrived yet, or was lost.
        if outcome.error is not None and outcome.stale:
            self.registry.refresh(candidate.node)
