"""`/api/v1`: what operators see and do: the network, the worker at an address, and why a request goes where it goes."""

from aiohttp import web

from node.faces import Context, Serving
from node.faces.v1 import (
    audit,
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
    """Return what operators may ask of this process."""
    return [
        *audit.routes(context),
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
    """Return what other nodes may ask."""
    return [*examination.link_routes(context), *replica.link_routes(context)]


def own_link_routes(context: Context) -> list[web.RouteDef]:
    """Return what other nodes may ask of a node's first process only."""
    return [*receipts.own_link_routes(context), *topology.own_link_routes(context)]
