"""`/api/v0`: the interface standard with which model projects register, list and run their models."""

from aiohttp import web

from node.faces import Context, Serving
from node.faces.v0 import network, projects, run


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for projects and operators; only a node's first process has them."""
    return [*network.routes(context), *projects.routes(context)]


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes that run models; any process of this node answers them."""
    return run.asking_routes(context)


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes."""
    return network.link_routes(context)
