"""`/api/v1`: this node's view of the network, and draining and undraining the node."""

import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from node.faces import Context, worker_view
from node.faces.request_reader import done, json_answer
from node.faces.worker_view import abilities
from node.peers.bootstrap import contacts, shown
from registry.catalog import Signed
from registry.members.liveness import REASONS, Evidence, Presence
from registry.mesh import PeerConnection
from registry.records import PeerId, Service, Standing

_LIVE = frozenset({Presence.ALIVE, Presence.UNREACHABLE, Presence.SUSPECT, Presence.DRAINING})

_LEFT = "it announced that it leaves"


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def catalog(request: web.Request) -> web.Response:
        return json_answer(_catalog(context, digest_only=request.query.get("digest") == "1"))

    async def nodes(_: web.Request) -> web.Response:
        return json_answer({"nodes": node_rows(context), **strays(context)})

    return [
        web.get("/api/v1/catalog", catalog),
        web.get("/api/v1/nodes", nodes),
        *_standing(context),
    ]


def _standing(context: Context) -> list[web.RouteDef]:
    async def drain(request: web.Request) -> web.Response:
        context.access.check_change(request)
        await context.registry.set_standing(Standing.DRAINING)
        await context.audited(request, "drain")
        return done(standing=context.registry.own_record.standing)

    async def undrain(request: web.Request) -> web.Response:
        context.access.check_change(request)
        await context.registry.set_standing(Standing.SERVING)
        await context.audited(request, "undrain")
        return done(standing=context.registry.own_record.standing)

    return [web.post("/api/v1/drain", drain), web.post("/api/v1/undrain", undrain)]


def _catalog(context: Context, *, digest_only: bool) -> dict[str, Any]:
    """Return every live record; `records` counts all that are held, because the digest covers all of them."""
    catalog = context.registry.catalog
    brief = {"digest": catalog.digest, "records": len(catalog.held)}
    if digest_only:
        return brief
    live = (
        (node, signed)
        for node, signed in sorted(catalog.held.items())
        if context.registry.presence(node) in _LIVE
    )
    return brief | {"nodes": [_record(context, node, signed) for node, signed in live]}


def _record(context: Context, node: PeerId, signed: Signed) -> dict[str, Any]:
    record = signed.record
    return {
        "node": node,
        "name": record.name,
        "state": context.registry.presence(node),
        "standing": record.standing,
        "age": _silence(context, node),
        "version": list(record.version),
        "agent": record.agent,
        "services": [
            {
                "project": s.project,
                "model": s.model,
                "type": int(s.type),
                "cid": s.cid,
                "context": s.context or None,
                **abilities(s.abilities),
                **_health(context, node, s),
            }
            for s in record.services
        ],
        "self": node == context.peer,
    }


def _health(context: Context, node: PeerId, service: Service) -> dict[str, str]:
    """Return the health of a worker of this machine; that of other nodes' workers is not known here."""
    worker = context.agent.workers.by_key.get(service.key) if node == context.peer else None
    return {"health": context.router.health_of(worker)} if worker else {}


def _silence(context: Context, node: PeerId) -> float:
    """Return the seconds since a node's last sign of life; this node is never silent."""
    health = context.registry.health_of(node)
    if health is None:
        return 0.0
    # A node that was not heard since this node's start is counted as silent since then.
    heard_at = max(health.heard, context.started)
    return round(max(0.0, time.monotonic() - heard_at), 3)


def _reason(context: Context, node: PeerId) -> dict[str, Any]:
    """Return for how many seconds a node has had its present state here, and the evidence for that state."""
    health = context.registry.health_of(node)
    if health is None:
        return {"since": round(time.monotonic() - context.started, 3), "why": "this node itself"}
    if context.registry.presence(node) is Presence.LEFT:
        # It is expected not to answer, and not suspect: the last thing it announced was that it leaves.
        return {"since": _silence(context, node), "evidence": Evidence.WORD, "why": _LEFT}
    since = round(max(0.0, time.monotonic() - health.since), 3)
    return {"since": since, "evidence": health.why, "why": REASONS[health.why]}


def node_rows(context: Context) -> list[dict[str, Any]]:
    """Return every known node, sorted by id."""
    connections = {c.peer: c for c in context.registry.mesh.connections()}
    return [
        {
            "node": node,
            "name": signed.record.name,
            "state": context.registry.presence(node),
            "standing": signed.record.standing,
            **_reason(context, node),
            "last_heard": _silence(context, node),
            "round_trip": connections[node].round_trip if node in connections else 0.0,
            "connection": _connection(context, node, connections),
            "origin": connections[node].origin if node in connections else "",
            "addresses": list(signed.record.reach.mesh),
            "links": list(signed.record.reach.links),
            "models": len(signed.record.services),
            "load": worker_view.loads_of_node(context, node),
            "agent": signed.record.agent,
            "self": node == context.peer,
        }
        for node, signed in sorted(context.registry.catalog.held.items())
    ]


def strays(context: Context) -> dict[str, Any]:
    """Return the state of the bootstrap addresses, and the number of incoming connections whose handshake failed."""
    stray_contacts = contacts(context.bootstrap.addresses, context.registry.mesh)
    failed = context.registry.event_counts()["handshakes_failed"]
    return {"bootstrap": shown(stray_contacts), "handshakes_failed": failed}


def _connection(
    context: Context, node: PeerId, connections: Mapping[PeerId, PeerConnection]
) -> str:
    if node == context.peer:
        return "self"
    if node not in connections:
        return "none"
    return "relayed" if connections[node].relayed else "direct"
