"""`/api/v0`: the interface of seed 002, with which model projects register, ask and run their models."""

from aiohttp import web

from node.faces import Context, Serving
from node.faces.v0 import host, peers, projects, run


def routes(context: Context) -> list[web.RouteDef]:
    """Return what projects and operators may ask of this process."""
    return [*host.routes(context), *peers.routes(context), *projects.routes(context)]


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return what may be asked of models, of any process of this node."""
    return run.asking_routes(context)


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return what other nodes may ask."""
    return host.link_routes(context)
