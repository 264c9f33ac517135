"""`/api/v0/ai`: registration of model projects and models, and lists of which nodes serve them."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from node.faces import Context
from node.faces.errors import UnknownNode, WrongParameter
from node.faces.model_list import live_offers
from node.faces.openai import find_node
from node.faces.request_reader import count_in_query, done, read_object, text_of
from node.faces.v0.registration import (
    cid_of,
    model_of,
    project_of,
    read_project,
    read_worker,
    require_may_read,
    type_of,
)
from node.faces.worker_view import learned_rows, warnings_of
from node.inspection import process_of
from registry.catalog import Offer
from registry.members.liveness import Presence
from registry.records import PeerId, Service
from router.dialects import explain_silence
from router.workers import Worker

# The interface's numbers for the reachability of a node.
_CONNECTED, _CAN_CONNECT, _CANNOT_CONNECT, _RELAYED = 1, 2, 3, 4
_MAX_PEERS = 100


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    return [*_registering(context), *_asking(context)]


def _registering(context: Context) -> list[web.RouteDef]:
    agent, idle = context.agent, context.settings.router.idle_timeout
    guard, audited = context.links.guard, context.audited

    async def register_project(request: web.Request) -> web.Response:
        context.access.check_change(request)
        project, workers = read_project(await read_object(request, idle=idle), guard)
        require_may_read(workers, may_read=context.access.holds_token(request))
        descriptions, silent = await context.inspection.query_and_probe(workers)
        await agent.register_project(project, workers, descriptions)
        await audited(request, "register project", project)
        return done(
            **learned_rows(workers, descriptions), **warnings_of(await _reasons(context, silent))
        )

    async def unregister_project(request: web.Request) -> web.Response:
        context.access.check_change(request)
        project = project_of(await read_object(request, idle=idle))
        existed = await agent.unregister_project(project)
        await audited(request, "unregister project", project)
        return done("ok" if existed else "not existed")

    async def register_model(request: web.Request) -> web.Response:
        context.access.check_change(request)
        fields = await read_object(request, idle=idle)
        worker = read_worker(project_of(fields), fields, guard)
        require_may_read([worker], may_read=context.access.holds_token(request))
        descriptions, silent = await context.inspection.query_and_probe([worker])
        await agent.register_model(worker, descriptions)
        await audited(request, "register model", f"{worker.service.project}/{worker.service.model}")
        return done(
            **learned_rows([worker], descriptions), **warnings_of(await _reasons(context, silent))
        )

    async def unregister_model(request: web.Request) -> web.Response:
        context.access.check_change(request)
        fields = await read_object(request, idle=idle)
        names = project_of(fields), model_of(fields), cid_of(fields)
        existed = await agent.unregister_model(*names, type_of(fields))
        await audited(request, "unregister model", "/".join(names[:2]))
        return done("ok" if existed else "not existed")

    return [
        web.post("/api/v0/ai/project/register", register_project),
        web.post("/api/v0/ai/project/unregister", unregister_project),
        web.post("/api/v0/ai/model/register", register_model),
        web.post("/api/v0/ai/model/unregister", unregister_model),
    ]


async def _reasons(context: Context, silent: Sequence[Worker]) -> dict[Worker, str]:
    """Return why these workers do not answer; each process is asked once more."""
    spoken = context.router.dialects
    processes = {process_of(w): w for w in silent}
    explained = await asyncio.gather(*(explain_silence(spoken, w) for w in processes.values()))
    reasons = dict(zip(processes, explained, strict=True))
    return {w: reasons[process_of(w)] for w in silent}


def _asking(context: Context) -> list[web.RouteDef]:
    async def projects_of_peer(request: web.Request) -> web.Response:
        fields = await read_object(request, idle=context.settings.router.idle_timeout)
        node = find_node(context, text_of(fields, "node_id"))
        return done(data=_projects_of(context, node, local=context.access.is_own_user(request)))

    async def projects(request: web.Request) -> web.Response:
        number = count_in_query(request, default=100)
        return done(data=sorted({o.service.project for o in live_offers(context)})[:number])

    async def models(request: web.Request) -> web.Response:
        number = count_in_query(request, default=100)
        project = _asked(request, "project")
        names = {o.service.model for o in live_offers(context) if o.service.project == project}
        return done(data=sorted(names)[:number])

    async def peers(request: web.Request) -> web.Response:
        number = count_in_query(request, default=20, at_most=_MAX_PEERS)
        project, model = _asked(request, "project"), _asked(request, "model")
        peer_ids = (
            _peer(context, offer)
            for offer in sorted(live_offers(context), key=lambda o: (o.node, o.service))
            if (offer.service.project, offer.service.model) == (project, model)
        )
        return done(data=[entry for _, entry in zip(range(number), peer_ids, strict=False)])

    return [
        web.post("/api/v0/ai/project/peer", projects_of_peer),
        web.get("/api/v0/ai/projects/list", projects),
        web.get("/api/v0/ai/projects/models", models),
        web.get("/api/v0/ai/projects/peers", peers),
    ]


def _asked(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise WrongParameter(f"{name} can not be empty", param=name)
    return value


def _projects_of(context: Context, node: PeerId, *, local: bool) -> dict[str, list[dict[str, Any]]]:
    held = context.registry.catalog.held.get(node)
    if held is None:
        raise UnknownNode(f"this node's registry does not contain {node}")
    projects: dict[str, list[dict[str, Any]]] = {}
    for service in held.record.services:
        entry = _model(context, node, service, local=local)
        projects.setdefault(service.project, []).append(entry)
    return projects


def _model(context: Context, node: PeerId, service: Service, *, local: bool) -> dict[str, Any]:
    worker = _own_worker(context, node, service)
    row = {
        "Model": service.model,
        # A worker's address is shown only to callers on its own machine.
        "API": worker.api if worker and local else "",
        "Type": int(service.type),
        "CID": service.cid,
        "Idle": _idle(context, node, service),
    }
    # The Go programs capitalise the names; their documentation has them in lower case.
    return row | {name.lower(): value for name, value in row.items()}


def _own_worker(context: Context, node: PeerId, service: Service) -> Worker | None:
    return context.agent.workers.by_key.get(service.key) if node == context.peer else None


def _idle(context: Context, node: PeerId, service: Service) -> int:
    """Return the number of requests at a replica, as far as this node knows, waiting ones included: 0 means free."""
    if worker := _own_worker(context, node, service):
        return context.loads.load_of(worker).waiting
    report = context.router.reports.newest(node, service, time.monotonic())
    return context.router.in_flight[node, service] + round(
        report.requests_of_others if report else 0
    )


def _peer(context: Context, offer: Offer) -> dict[str, Any]:
    connectivity, latency = _connectivity(context, offer.node)
    idle = _idle(context, offer.node, offer.service)
    return {
        "node_id": offer.node,
        "connectivity": connectivity,
        "latency": latency,
        "Idle": idle,
        "idle": idle,
        "cid": offer.service.cid,
    }


def _connectivity(context: Context, node: PeerId) -> tuple[int, int]:
    """Return the interface's number for a node's reachability, and its round trip in microseconds, 0 where unknown."""
    if node == context.peer:
        return _CONNECTED, 0
    for connection in context.registry.mesh.connections():
        if connection.peer == node:
            number = _RELAYED if connection.relayed else _CONNECTED
            return number, round(connection.round_trip * 1_000_000)
    doubted = context.registry.presence(node) in (Presence.SUSPECT, Presence.UNREACHABLE)
    return (_CANNOT_CONNECT if doubted else _CAN_CONNECT), 0
