"""World of a node's router: its registry, its workers, and the metrics that count the outcomes of attempts."""

import math
import time
from typing import Protocol

from node.agent import Agent
from node.observe.metrics import Metrics
from registry.catalog import Catalog
from registry.clock import Clock
from registry.members.liveness import Evidence, Presence
from registry.records import PeerId
from registry.service import Registry
from router.outcome import Outcome
from router.workers import Workers

LATELY = 2.0
"""Seconds after its last bytes for which a node is not silent: on a full link, answers to probes wait behind those bytes."""


class LinkActivity(Protocol):
    """The links to other nodes."""

    def has_heard(self, peer: PeerId, within: float) -> bool:
        """Return whether bytes came over a connection to a peer within the last seconds."""


class NodeWorld:
    """The `World` of a node."""

    def __init__(
        self,
        registry: Registry,
        agent: Agent,
        metrics: Metrics,
        links: LinkActivity,
        now: Clock = time.monotonic,
    ) -> None:
        self._registry = registry
        self._links = links
        self._agent = agent
        self._metrics = metrics
        self._now = now
        # What each request reads is read from the core of the registry, which is machine code in wheels.
        self._replica = registry.replica

    @property
    def own(self) -> PeerId:
        """This node."""
        return self._registry.peer

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""
        return self._replica.catalog

    @property
    def workers(self) -> Workers:
        """The workers of this machine."""
        return self._agent.workers

    @property
    def draining(self) -> bool:
        """Whether this node's own record says that it takes no new requests."""
        return self._replica.is_draining()

    def presence_of(self, node: PeerId) -> Presence:
        """Return whether a node is alive, and reachable from this node."""
        return self._replica.presence(node)

    def absence_of(self, node: PeerId) -> float:
        """Return for how many seconds a node has not been heard; infinite for an unknown node."""
        health = self._replica.member_health().get(node)
        return math.inf if health is None else health.seconds_silent(self._now())

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left this node's probe unanswered, and has not answered since, nor sent anything lately."""
        return self._registry.is_silent(node) and not self._links.has_heard(node, LATELY)

    def request_probe(self, node: PeerId) -> None:
        """Have the registry probe a node."""
        self._registry.request_probe(node)

    def observe(self, outcome: Outcome) -> None:
        """Pass the outcome of an attempt to the metrics and the registry."""
        self._metrics.attempt(outcome)
        candidate = outcome.candidate
        # The outcome at a worker of this node tells the registry nothing.
        if candidate.worker is not None:
            return
        node, evidence = candidate.node, outcome.evidence
        # A busy node gives the same evidence a thousand times a second.
        is_known = evidence is Evidence.ANSWERED and self._replica.is_healthy(node, self._now())
        if evidence is not None and not is_known:
            self._registry.observe(node, evidence)
        # The node's newest record has not arrived yet, or was lost.
        if outcome.error is not None and outcome.is_stale:
            self._registry.refresh_record(node)
