"""`/api/v1`: the interface for operators: the network, the worker at an address, the reasons of a routing decision."""

from aiohttp import web

from node.faces import Context, Serving
from node.faces.v1 import (
    examination,
    grants,
    keys,
    live,
    logs,
    network,
    receipts,
    recognise,
    replica,
    route,
    topology,
    usage,
)


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for operators; only a node's first process has them."""
    return [
        *examination.routes(context),
        *grants.routes(context),
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
    return [*examination.link_routes(context), *replica.link_routes(context)]


def own_link_routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for other nodes that only a node's first process answers."""
    return [*receipts.own_link_routes(context), *topology.own_link_routes(context)]
