"""Health, readiness, metrics and status of a node.

For load balancers (`/healthz`, `/readyz`), for Prometheus (`/metrics`), and for people.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from node import __version__
from node.faces import Context, worker_view
from node.faces.request_reader import json_answer
from node.observe.metrics import CONTENT_TYPE, GaugeValues
from node.peers.bootstrap import contacts, shown, summary
from registry.members.liveness import Presence
from registry.records import Service, Standing
from router.worker_metrics import Figures, FigureValues

_PARTS = ("mesh", "store")
_METRICS = ("/metrics", "/debug/metrics/prometheus", "/api/v0/debug/metrics/prometheus")


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    figures = Figures(context.router.dialects, time.monotonic)

    async def healthz(_: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        ready = _parts(context)
        well = all(state == "ok" for state in ready.values())
        # A node with a broken mesh or store continues to serve with what it has, so it stays in rotation.
        return json_answer({"status": "ok" if well else "degraded", "parts": ready})

    async def metrics(_: web.Request) -> web.Response:
        workers = context.agent.workers
        worker_figures, _unused = await asyncio.gather(
            figures.query(workers), context.aggregate.refresh()
        )
        text = context.metrics.text(_sizes(context, worker_figures), context.aggregate.others())
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

    async def status(_: web.Request) -> web.Response:
        await context.aggregate.refresh()
        return json_answer(_status(context))

    return [
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        # The other paths are where clients of `/api/v0` look for metrics.
        *(web.get(path, metrics) for path in _METRICS),
        web.get("/api/v1/status", status),
    ]


def _parts(context: Context) -> Mapping[str, str]:
    """Return for each part `ok`, or a sentence on what is wrong."""
    parts = dict.fromkeys(("http", *_PARTS), "ok") | dict(context.registry.degraded_parts())
    if context.registry.own_record.standing is Standing.DRAINING:
        parts["http"] = (
            "draining: models of this machine take no new requests, from its own callers either"
        )
    if bootstrap_contacts := contacts(context.bootstrap.addresses, context.registry.mesh):
        # A node that is connected to others has joined, whatever the address.
        parts["bootstrap"] = (
            "ok" if context.registry.mesh.connections() else summary(bootstrap_contacts)
        )
    return parts


def _status(context: Context) -> dict[str, Any]:
    registry, settings = context.registry, context.settings.node
    presences = map(registry.presence, registry.catalog.held)
    return {
        "peer": context.peer,
        "name": registry.own_record.name,
        "version": __version__,
        "uptime": round(time.monotonic() - context.started, 3),
        "http": context.listening.url,
        "p2p": registry.mesh.addresses(),
        "link": context.listening.link,
        "standing": registry.own_record.standing,
        "ready": _parts(context),
        "models": len(context.agent.workers),
        "bootstrap": shown(contacts(context.bootstrap.addresses, registry.mesh)),
        "nodes_alive": sum(p is Presence.ALIVE for p in presences),
        "in_flight": context.aggregate.in_flight(),
        "processes": context.aggregate.processes,
        "load": worker_view.loads_of_node(context, context.peer),
        "workers": [
            {
                "project": worker.service.project,
                "model": worker.service.model,
                "cid": worker.service.cid,
                "health": context.router.health_of(worker),
            }
            for worker in context.agent.workers
        ],
        "digest": registry.catalog.digest,
        # A URL of a shared store may carry a password.
        "store": settings.store.partition(":")[0],
        "profile": settings.profile,
    }


_NOW = frozenset({"reservations", "circuits", "carried"})


def _sizes(context: Context, worker_figures: Mapping[Service, FigureValues]) -> GaugeValues:
    registry = context.registry
    held = registry.catalog.held
    degraded = registry.degraded_parts()
    presences = Counter(map(registry.presence, held))
    relay = registry.mesh.relay_counts()
    connections = registry.mesh.connections()
    now = time.monotonic()
    return GaugeValues(
        nodes={presence.value: presences[presence] for presence in Presence},
        services=sum(len(signed.record.services) for signed in held.values()),
        workers=len(context.agent.workers),
        worker_figures=worker_figures,
        up={part: part not in degraded for part in _PARTS},
        frames=registry.event_counts(),
        routed=context.aggregate.routed(),
        connections=len(connections),
        wires=sum(connection.wires for connection in connections),
        standing=registry.mesh.idle_stream_count(),
        loop_lag=context.aggregate.loop_lag(now),
        loop_busy=context.aggregate.loop_busy(now),
        tasks={"http": len(asyncio.all_tasks()), "mesh": registry.mesh.task_count()},
        threads=threading.active_count(),
        relaying={name: count for name, count in relay.items() if name in _NOW},
        relayed={name: count for name, count in relay.items() if name not in _NOW},
    )
