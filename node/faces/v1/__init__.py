"""`/api/v1`: what operators see and do: the network, the worker at an address, and why a request goes where it goes."""

from node import web
from node.faces import Context
from node.faces.v1 import network, recognise, route


def routes(context: Context) -> list[web.RouteDef]:
    """Return what operators may ask of this process."""
    return [*network.routes(context), *recognise.routes(context), *route.routes(context)]
