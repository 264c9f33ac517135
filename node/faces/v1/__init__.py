"""`/api/v1`: the interface for operators: the network, the worker at an address, the reasons of a routing decision."""

from aiohttp import web
from aiohttp.typedefs import Handler

from node.faces import Context, Serving
from node.faces.request_reader import json_answer, read_object
from node.faces.v1 import (
    examination,
    keys,
    live,
    logs,
    network,
    receipts,
    recognise,
    route,
    topology,
    usage,
)
from router.errors import UnknownModel
from router.peers.replica_question import PATH, encode_answer, parse_question
from router.state.prefix_index import ReplicaAnswer


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for operators; only a node's first process has them."""
    return [
        *examination.routes(context),
        *keys.grant_routes(context),
        *keys.routes(context),
        *live.routes(context),
        *logs.routes(context),
        *network.routes(context),
        *receipts.routes(context),
        *recognise.routes(context),
        *route.routes(context),
        *topology.routes(context),
        *usage.routes(context),
    ]


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes."""
    return [*examination.link_routes(context), web.post(PATH, _replica(context))]


def own_link_routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for other nodes that only a node's first process answers."""
    return [*receipts.own_link_routes(context), *topology.own_link_routes(context)]


def _replica(context: Serving) -> Handler:
    """Return the handler that tells another node the load of a replica here, and how much of a conversation it has read."""
    router, idle = context.router, context.settings.router.idle_timeout

    async def replica(http: web.Request) -> web.StreamResponse:
        question = parse_question(await read_object(http, idle=idle))
        worker = router.worker_of(question.project, question.model, question.cid, question.kind)
        if worker is None:
            raise UnknownModel(question.model)
        time = router.service_time(worker, question.kind)
        return json_answer(
            encode_answer(
                ReplicaAnswer(
                    router.prefix_read_by(worker, question.prefixes),
                    context.loads.load_of(worker),
                    time,
                )
            )
        )

    return replica
