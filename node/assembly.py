"""Composition root of a node: builds every object once, and starts nothing."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from node.agent import Agent
from node.auth.access import Access, is_own_address
from node.auth.audit import AuditLog
from node.auth.books import ReceiptBook, UsageBook
from node.auth.key_ring import KeyRing
from node.auth.principal import KeyLookup
from node.auth.receipts import ReceiptLog
from node.auth.usage import UsageLog
from node.config.checks import displayed_settings
from node.config.settings import Settings
from node.faces import Listening
from node.observe.measurements import (
    MeasurementsExporter,
    measurements_exporter_of,
    measurements_of,
)
from node.observe.metrics import Metrics
from node.observe.tracing import Tracer, exporter_of, tracer_of
from node.peers.bootstrap import Bootstrap
from node.peers.followers import NodeEvents, follow_links, follow_loads, follow_revoked, log_changes
from node.peers.reach import host_of, own_ports
from node.world import NodeWorld
from registry.clock import Clock, RandomSource
from registry.mesh import Mesh
from registry.mesh.libp2p.mesh import LibP2PMesh
from registry.persistence import next_epoch
from registry.records import PeerId
from registry.service import Registry
from registry.signing import Identity
from registry.store import Counters, Store, open_store
from router import dialects, policies
from router.dispatch import Router
from router.peers.links import Links
from router.peers.pipes import MeshPeers
from router.peers.replica_question import ReplicaQuestions
from router.ssrf_guard import SsrfGuard, networks_of


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside of a node: clocks, randomness, its mesh and its store. A simulation passes its own."""

    now: Clock = time.monotonic
    wall: Clock = time.time
    """Returns Unix time."""
    chance: RandomSource = random.random
    mesh: "Callable[[NodeInputs], Mesh]" = lambda given: LibP2PMesh(
        given.identity, given.settings.mesh, swarm_key=given.swarm_key
    )
    store: "Callable[[NodeInputs], Store]" = lambda given: open_store(
        given.settings.node.store, data_dir=given.data_dir, node=given.identity.peer
    )


@dataclass(frozen=True, slots=True)
class NodeInputs:
    """What a node is given: settings, identity and secrets."""

    settings: Settings
    identity: Identity
    swarm_key: str | None
    data_dir: Path
    token: str = ""
    """The control token; empty for none."""
    grant: str = ""
    """The grant, sealed for this node, that it shows to other nodes; empty for none."""
    outside: Environment = field(default_factory=Environment)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """A node's parts, wired but not started."""

    registry: Registry
    agent: Agent
    keys: KeyRing
    usage: UsageLog
    audit: AuditLog
    receipts: ReceiptLog
    node_events: NodeEvents
    counters: Counters | None
    """Counters that the site shares, if its store has them."""
    bootstrap: Bootstrap
    links: Links
    peers: MeshPeers
    router: Router
    metrics: Metrics
    tracer: Tracer | None
    measured: MeasurementsExporter | None


async def assemble(inputs: NodeInputs, listening: Listening, closing: AsyncExitStack) -> NodeParts:
    """Build the parts and load the state of the last run; raise `StoreUnavailable`. `closing` closes them."""
    settings, outside = inputs.settings, inputs.outside
    store = outside.store(inputs)
    closing.push_async_callback(store.close)
    registry = await _registry(inputs, store)
    agent = Agent(registry, store, outside.wall)
    await agent.restore()
    keys = KeyRing(
        store,
        outside.wall,
        token=inputs.token,
        identity=inputs.identity,
        trusted=map(PeerId, settings.node.trusted_issuers),
    )
    await keys.restore()
    registry.on_change(follow_revoked(keys, registry))
    guard = _ssrf_guard(inputs, listening, registry)
    links, peers = _links(inputs, registry, guard, closing)
    metrics = Metrics(measurements_of(settings.node))
    router = Router(
        NodeWorld(registry, agent, metrics, links, outside.now),
        dialects.LazyDialects(links),
        policies.load(settings.router.policy),
        settings.router,
        outside.now,
        random=outside.chance,
        tasks=links.tasks,
        lingering=links.lingering,
        replica_asker=ReplicaQuestions(links, outside.now),
    )
    exchange_load(registry, router)
    bootstrap = Bootstrap(
        store, registry.persistence, registry.mesh, configured=settings.mesh.bootstrap
    )
    registry.persistence.add_source(bootstrap.changes)
    usage, audit, receipts = await _open_logs(inputs, store, closing)
    registry.persistence.add_source(audit.changes)
    node_events = NodeEvents(registry, outside.wall)
    registry.on_change(node_events.note_changed)
    return NodeParts(
        registry=registry,
        agent=agent,
        keys=keys,
        usage=usage,
        audit=audit,
        receipts=receipts,
        node_events=node_events,
        counters=store if isinstance(store, Counters) else None,
        bootstrap=bootstrap,
        links=links,
        peers=peers,
        router=router,
        metrics=metrics,
        tracer=_tracer(inputs, metrics, closing),
        measured=_measurements_exporter(inputs, metrics, closing),
    )


def _tracer(inputs: NodeInputs, metrics: Metrics, closing: AsyncExitStack) -> Tracer | None:
    """Return the tracer of requests, `None` if tracing is off; raise `ValueError`."""
    settings, outside, peer = inputs.settings.node, inputs.outside, inputs.identity.peer
    exporter = exporter_of(settings, peer, metrics.spans)
    if exporter is not None:
        closing.push_async_callback(asyncio.to_thread, exporter.close)
    return tracer_of(
        exporter, settings, peer, now=outside.now, wall=outside.wall, random=outside.chance
    )


def _measurements_exporter(
    inputs: NodeInputs, metrics: Metrics, closing: AsyncExitStack
) -> MeasurementsExporter | None:
    """Return the exporter that sends measurements to a collector, `None` without a collector; raise `ValueError`."""
    settings, peer = inputs.settings.node, inputs.identity.peer
    exporter = measurements_exporter_of(settings, peer, metrics.measurements, inputs.outside.wall)
    if exporter is not None:
        closing.push_async_callback(exporter.close)
    return exporter


async def _open_logs(
    inputs: NodeInputs, store: Store, closing: AsyncExitStack
) -> tuple[UsageLog, AuditLog, ReceiptLog]:
    """Return the logs of usage, changes and receipts, with the state of the last run."""
    wall, days = inputs.outside.wall, inputs.settings.node.usage_days
    book, now = UsageBook(wall), inputs.outside.now
    usage = UsageLog(book, store, inputs.identity.peer, days=days, now=now)
    await usage.restore()
    closing.push_async_callback(usage.close)
    audit = AuditLog(store, inputs.identity.peer, wall)
    await audit.restore()
    await audit.note_settings(displayed_settings(inputs.settings), f"user {os.geteuid()}")
    receipts = ReceiptLog(ReceiptBook(wall), store, inputs.identity, wall, days=days)
    await receipts.restore()
    closing.push_async_callback(receipts.close)
    return usage, audit, receipts


async def _registry(inputs: NodeInputs, store: Store) -> Registry:
    outside = inputs.outside
    registry = Registry(
        inputs.identity,
        inputs.settings.registry,
        store=store,
        mesh=outside.mesh(inputs),
        epoch=await next_epoch(store, outside.wall()),
        now=outside.now,
        random=outside.chance,
    )
    await registry.restore()
    registry.on_change(log_changes(registry, outside.now))
    return registry


def _ssrf_guard(inputs: NodeInputs, listening: Listening, registry: Registry) -> SsrfGuard:
    # Read anew each time: the mesh may not have started yet, and may restart on other ports.
    def ports() -> frozenset[int]:
        mesh = (*inputs.settings.mesh.listen, *registry.mesh.addresses())
        return own_ports((listening.http, listening.link), mesh)

    return SsrfGuard(is_own_address, ports, networks_of(inputs.settings.router.worker_networks))


def _links(
    inputs: NodeInputs, registry: Registry, guard: SsrfGuard, closing: AsyncExitStack
) -> tuple[Links, MeshPeers]:
    timeout = inputs.settings.router.connect_timeout
    peers = MeshPeers(registry.mesh, registry, timeout=timeout, now=inputs.outside.now)
    closing.push_async_callback(peers.close)
    links = Links(
        identity=inputs.identity,
        peers=peers,
        settings=inputs.settings.router,
        guard=guard,
        grant=inputs.grant,
    )

    registry.on_change(follow_links(links, registry, forgive=peers.retry_addresses))
    closing.push_async_callback(links.close)
    return links, peers


def exchange_load(registry: Registry, router: Router) -> None:
    """Connect load reports: the registry announces what the router measures; the router hears other nodes until they leave."""
    registry.load_exchange.set_source(router.busy_loads)
    registry.load_exchange.on_load(router.record_loads)
    registry.on_change(follow_loads(router, registry.presence))


def make_access(inputs: NodeInputs, keys: KeyLookup, kind: type[Access] = Access) -> Access:
    """Return the check of what a request's caller may do."""
    return kind(
        token=inputs.token,
        # The names that a node announces to others are allowed as host names of requests.
        names=map(host_of, inputs.settings.mesh.announce),
        settings=inputs.settings.web,
        keys=keys,
        keyless=inputs.settings.node.open,
        wall=inputs.outside.wall,
    )
