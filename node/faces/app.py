"""How do the faces become the two applications: the public one, and the one for other nodes over the link listener?

The middleware here is one of the two places that catch everything: whatever a handler raises leaves as an answer of
ours, and what is no error of ours is logged without a word of the request.
"""

import logging
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from node import faces
from node.faces import REQUEST_ID, Context, Serving
from node.faces.errors import KNOWN, of_http, refusal
from node.faces.peers import Known, peer_check
from node.faces.serving import SERVER, request_id_of

log = logging.getLogger("modelvine.http")


def public_app(context: Context) -> web.Application:
    """Return the application for clients."""
    definitions = [route for face in _modules("routes") for route in face.routes(context)]
    return application(definitions, context.access.admit)


def link_app(context: Serving, known: Known) -> web.Application:
    """Return the application for nodes that are known; it must be served over TLS with client certificates."""
    definitions = [route for face in _modules("link_routes") for route in face.link_routes(context)]
    return application(definitions, peer_check(known))


def _modules(function: str) -> Iterator[ModuleType]:
    """Find the faces by what they define; importing decides nothing else."""
    for found in pkgutil.iter_modules(faces.__path__):
        module = import_module(f"{faces.__name__}.{found.name}")
        if function in vars(module):
            yield module


def application(
    definitions: list[web.RouteDef], admit: Callable[[web.Request], None]
) -> web.Application:
    """Return an application of these routes, for whom `admit` lets in."""
    app = web.Application(middlewares=[_outermost(admit)])
    app.on_response_prepare.append(_name_server)
    app.add_routes(definitions)
    return app


def _outermost(admit: Callable[[web.Request], None]) -> Middleware:
    @web.middleware
    async def answer_everything(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = request_id_of(request)
        request[REQUEST_ID] = request_id
        try:
            admit(request)
            response = await handler(request)
        except KNOWN as error:
            response = refusal(error).response()
        except web.HTTPException as error:
            response = refusal(of_http(error, request.path)).response()
        except ConnectionError:
            # The caller hung up while we wrote; aiohttp ends the connection quietly.
            raise
        except Exception as error:  # noqa: BLE001 (the outermost middleware: nothing may leave as a bare 500)
            _log_unforeseen(request, request_id, error)
            response = refusal(error).response()
        if not response.prepared:
            response.headers["x-request-id"] = request_id
        return response

    return answer_everything


def _log_unforeseen(request: web.Request, request_id: str, error: Exception) -> None:
    # The text of an exception may quote the request, and so somebody's prompt; where it arose says enough.
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "request %s, %s of %s, failed with %s:\n%s",
        request_id,
        request.method,
        request.match_info.route.resource,
        type(error).__qualname__,
        where,
    )


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = SERVER
