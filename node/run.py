"""Life of a process: how a node starts, serves and ends."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from node import __version__, memory
from node.assembly import NodeInputs, NodeParts, assemble, make_access
from node.auth.quota_sync import OwnCounters, QuotaSync
from node.auth.quotas import Quotas, limits_of_addresses
from node.compiled import SLOWER, is_compiled
from node.config.addresses import HostPort, host_port
from node.config.settings import Settings
from node.exposure import exposure_warning, surfaces
from node.faces import Context, Listening, grpc
from node.faces.app import link_app, public_app
from node.faces.v1 import own_link_routes
from node.faces.v1.topology import Topology
from node.inspection import Inspection
from node.listeners import (
    TRUSTED_PER_NODE,
    Listener,
    bind,
    fit_connections,
    listening_address,
    raise_limit,
    serve,
    trust_known_nodes,
)
from node.observe import logs
from node.observe.aggregate import Aggregate
from node.observe.host import Host, host_name
from node.observe.measurements import MeasurementsExporter
from node.observe.samples import LoopLag, QueueSamples, Refusals
from node.peers import bootstrap
from node.peers.followers import announce_revocations
from node.peers.reach import host_of, invitation, local_address, reach_of
from node.runtime import Signals, supervise
from node.secrets.identity import control_token
from node.tls import Certificate, configured_certificate
from registry.errors import RegistryError, StoreUnavailable
from registry.records import Reach, Standing
from registry.service import Registry
from registry.signing import Identity
from router.peers.pipes import serve_pipe
from router.peers.tls import certificate_of, server_context

log = logging.getLogger("modelvine.node")

_REACH_CHECK = 0.5
_DRAIN_POLL = 0.05
_REST_POLLS = 5
"""Polls without a request in flight after which a drain is over."""

_FAREWELL = 0.5
"""Seconds for which a node still serves after it has told other nodes to go elsewhere."""


def run(
    settings: Settings,
    identity: Identity,
    swarm_key: str | None,
    data_dir: Path,
    *,
    grant: str = "",
    ready: Callable[[str], None],
) -> int:
    """Run a node until it is told to stop; return the exit code. `ready` is called with the ready line once it serves.

    `grant` is the grant that it shows to nodes that require one.
    """
    settings = fit_connections(settings, raise_limit())
    inputs = NodeInputs(settings, identity, swarm_key, data_dir, control_token(data_dir), grant)
    try:
        uvloop.run(_run_node(inputs, ready))
    except (RegistryError, OSError, ValueError) as error:
        advice = ""
        if isinstance(error, StoreUnavailable):
            advice = "; check that the store works, or set another with node.store (--store)"
        log.error("cannot start: %s%s", error, advice)  # noqa: TRY400  (a sentence for the operator, not a traceback)
        return 1
    log.info("stopped")
    return 0


async def _run_node(inputs: NodeInputs, ready: Callable[[str], None]) -> None:
    signals = Signals()
    settings = inputs.settings
    async with AsyncExitStack() as closing:
        faces, links = _bind(settings, closing)
        certificate = configured_certificate(settings)
        listening = Listening(
            http=str(listening_address(faces[0])),
            link=str(listening_address(links[0])),
            secured=certificate is not None,
        )
        parts = await assemble(inputs, listening, closing)
        registry = parts.registry
        context = _context(inputs, parts, listening)
        link = await _open_link(context, inputs.identity, links[0], closing)
        reach = await _enter_mesh(inputs, parts, listening_address(links[0]), closing)
        counts = parts.metrics.connections
        public = await serve(
            public_app(context), faces[0], closing, settings.web, counts, certificate=certificate
        )
        leaving = asyncio.Event()
        rpcs = await grpc.open_faces(context, closing, leaving)
        sync = QuotaSync(context.quotas, parts.counters or OwnCounters(time.monotonic))
        helpers = None
        if len(faces) > 1:
            # Imported only where it is used: one megabyte.
            from node.processes.first import helpers_of  # noqa: PLC0415

            posts = zip(faces[1:], links[1:], strict=True)
            helpers = helpers_of(inputs, parts, context, posts, (public, link), sync)
        async with asyncio.TaskGroup() as group:
            background = _background(context, parts.measured, reach, certificate)
            if helpers or parts.counters:
                background["quotas"] = sync.run
            tasks = [group.create_task(supervise(name, run)) for name, run in background.items()]
            if helpers:
                tasks.append(group.create_task(supervise("helpers", helpers.run)))
                await helpers.ready()
            memory.configure_collector()
            rpc_addresses = "".join(f" {name}={address}" for name, address in rpcs.items())
            ready(f"ready http={listening.url} p2p={registry.mesh.addresses()[0]}{rpc_addresses}")
            _log_surfaces(settings, replace(listening, rpcs=rpcs), registry.mesh.addresses())
            if not parts.bootstrap.addresses and len(registry.catalog.held) == 1:
                private = bool(settings.node.swarm_key)
                addresses, listen = registry.mesh.addresses(), settings.mesh.listen
                log.info("%s", invitation(addresses, listen=listen, private=private))
            await signals.first.wait()
            await _announce_drain(context, signals.second, settings.node.drain_timeout)
            # A proxy in front would open connections for ever, and requests in flight at the end of the drain would be cut off.
            leaving.set()
            await public.stop_accepting()
            if helpers:
                helpers.stop_accepting()
            await _drain(context, signals.second, settings.node.drain_timeout)
            if helpers:
                await asyncio.gather(helpers.stop(), public.close())
            for task in tasks:
                task.cancel()


async def _enter_mesh(
    inputs: NodeInputs, parts: NodeParts, link: HostPort, closing: AsyncExitStack
) -> Callable[[], Reach]:
    """Start the registry and publish this node; return what tells where other nodes reach it."""
    registry = parts.registry
    # Restored before any address is dialled: a configured one may have been removed.
    await parts.bootstrap.restore()
    local = local_address(link)
    await registry.start(partial(serve_pipe, host=local.host, port=local.port))
    closing.push_async_callback(registry.stop)
    reach = partial(_reach, registry, certificate_of(inputs.identity), link)
    await registry.publish_first_record(
        services=parts.agent.workers.services(),
        reach=reach(),
        agent=f"modelvine/{__version__}",
        name=inputs.settings.node.name or host_name(),
    )
    closing.push_async_callback(registry.set_standing, Standing.LEFT)
    return reach


def _bind(
    settings: Settings, closing: AsyncExitStack
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the sockets of the HTTP face, and those for other nodes, one of each per process."""
    count = settings.node.workers
    http = bind(host_port(settings.node.http), "node.http (--http)", count=count)
    faces = [*map(closing.enter_context, http)]
    setting = "node.link (--link)" if settings.node.link else "mesh.listen (--listen)"
    link = bind(_link_address(settings), setting, count=count)
    return faces, [*map(closing.enter_context, link)]


def _background(
    context: Context,
    measured: MeasurementsExporter | None,
    reach: Callable[[], Reach],
    certificate: Certificate | None,
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the background tasks, by name."""
    registry = context.registry
    certificate_tasks = {"certificate": certificate.follow} if certificate else {}
    measurement_tasks = {"measurements": measured.run} if measured else {}
    return {
        **certificate_tasks,
        **measurement_tasks,
        "registry": registry.run,
        "addresses": partial(_announce_address_changes, registry, reach),
        "keys": context.keys.follow,
        "revocations": partial(announce_revocations, context.keys, registry),
        "usage": context.usage_log.run,
        "queues": _queues(context).run,
        "receipts": context.receipt_log.run,
        "inspection": context.inspection.run,
        "contacts": partial(bootstrap.watch, context.bootstrap, registry.mesh, time.monotonic),
        "workers": context.inspection.watch,
        "loop lag": partial(context.loop_lag.watch, time.monotonic),
        "memory": memory.release_forever,
        "refusals": partial(
            Refusals().watch,
            lambda: {**registry.event_counts(), **context.aggregate.connections().events},
            registry.take_kept_out,
            time.monotonic,
        ),
    }


def _log_surfaces(settings: Settings, listening: Listening, mesh: Sequence[str]) -> None:
    if not is_compiled():
        log.info("%s", SLOWER)
    all_surfaces = surfaces(settings, listening, mesh)
    for surface in all_surfaces:
        log.info("surface: %s", surface)
    if warning := exposure_warning(all_surfaces):
        log.warning("%s", warning)


def _link_address(settings: Settings) -> HostPort:
    if settings.node.link:
        return host_port(settings.node.link)
    return HostPort(host_of(settings.mesh.listen[0]), 0)


def _reach(registry: Registry, certificate: bytes, link: HostPort) -> Reach:
    return reach_of(registry.mesh.addresses(), link=link, certificate=certificate)


def _queues(context: Context) -> QueueSamples:
    """Return the sampler of queues for the history of the last hour."""
    return QueueSamples(
        context.usage_log.history,
        context.metrics.recent,
        own_peer=context.peer,
        busy=context.aggregate,
        reports=context.router.reports,
        now=time.monotonic,
    )


def _context(inputs: NodeInputs, parts: NodeParts, listening: Listening) -> Context:
    loop_lag = LoopLag()
    aggregate = Aggregate(parts.router, parts.metrics, loop_lag, logs.recent())
    return Context(
        peer=inputs.identity.peer,
        settings=inputs.settings,
        registry=parts.registry,
        router=parts.router,
        agent=parts.agent,
        keys=parts.keys,
        inspection=Inspection(parts.agent, parts.router, time.monotonic),
        access=make_access(inputs, parts.keys),
        quotas=Quotas(
            inputs.outside.now, inputs.outside.wall, limits_of_addresses(inputs.settings.web)
        ),
        usage=parts.usage.book,
        usage_log=parts.usage,
        audit=parts.audit,
        receipts=parts.receipts.book,
        receipt_log=parts.receipts,
        node_events=parts.node_events,
        metrics=parts.metrics,
        tracer=parts.tracer,
        loop_lag=loop_lag,
        aggregate=aggregate,
        loads=aggregate,
        links=parts.links,
        topology=Topology(parts.registry, parts.links),
        bootstrap=parts.bootstrap,
        host=Host(),
        listening=listening,
        swarm_key=inputs.swarm_key or "",
        started=time.monotonic(),
    )


async def _open_link(
    context: Context, identity: Identity, link: socket.socket, closing: AsyncExitStack
) -> Listener:
    tls = server_context(identity)
    registry = context.registry
    limit = TRUSTED_PER_NODE * context.settings.registry.max_nodes
    registry.on_change(trust_known_nodes(tls, registry, at_most=limit))
    settings, counts = context.settings.web, context.metrics.connections
    return await serve(
        link_app(context, registry.replica, context.keys, own_link_routes(context)),
        link,
        closing,
        settings,
        counts,
        tls=tls,
    )


async def _announce_address_changes(registry: Registry, reach: Callable[[], Reach]) -> None:
    """Announce changes of the node's own addresses, as after a change of network or a restart of the mesh."""
    announced = registry.own_record.reach
    while True:
        await asyncio.sleep(_REACH_CHECK)
        if registry.mesh.is_running() and (now := reach()) != announced:
            announced = now
            await registry.change_addresses(now)


async def _announce_drain(context: Context, hurry: asyncio.Event, patience: float) -> None:
    """Tell other nodes to go elsewhere, and serve for a moment more, for at most `patience` seconds."""
    log.info("draining: %d requests in flight", context.aggregate.in_flight())
    await context.registry.set_standing(Standing.DRAINING)
    # Requests that were already sent still arrive, and keep-alive connections are told to close with their next answer.
    with suppress(TimeoutError):
        await asyncio.wait_for(hurry.wait(), min(_FAREWELL, patience))


async def _drain(context: Context, hurry: asyncio.Event, patience: float) -> None:
    """Let requests in flight finish, for at most `patience` seconds."""
    aggregate = context.aggregate
    polls_left = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            # Polled: the counter is on the path of every request, and an event there would cost every request.
            while not hurry.is_set() and ((busy := await aggregate.at_work()) or polls_left):
                # Callers may send one more request over a connection whose answer began before the drain.
                polls_left = _REST_POLLS if busy else polls_left - 1
                await asyncio.sleep(_DRAIN_POLL)
    if unfinished := aggregate.in_flight():
        log.warning("stopping with %d requests unfinished", unfinished)
