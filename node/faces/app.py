"""The two applications made of all faces: the public one, and the one for other nodes at the link listener.

The middleware here is one of the two places that catch every exception. Whatever a handler raises becomes an error response,
and an exception that is not the project's own is logged without any content of the request.
"""

import logging
import pkgutil
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from node import faces
from node.auth.access import is_open
from node.auth.principal import ANYBODY, PRINCIPAL, GrantLookup
from node.config.web import WEB_DEFAULTS
from node.faces import Context, Serving, UserRoute
from node.faces.errors import KNOWN, UnknownPath, WrongMethod, refusal
from node.faces.peer_access import KnownPeers, peer_check
from node.faces.request_ids import ID, id_of
from node.faces.request_reader import HELD, ROOM, SHARED, BodyMemory, release
from node.lane.calls import LANE, CallHandler, LaneCall, LaneCalls
from node.lane.request import HttpRequest, LaneRequest

log = logging.getLogger("modelvine.http")


_PLAIN = UserRoute()


def public_app(context: Context) -> web.Application:
    """Return the application for clients."""
    return application(
        public_routes(context),
        context.access.admit,
        leaving=context.registry.replica.is_draining,
        max_bodies_bytes=context.settings.web.max_bodies_bytes,
    )


def public_routes(context: Context) -> list[web.RouteDef]:
    """Return all routes for clients."""
    face_routes = [route for face in _modules("routes") for route in face.routes(context)]
    return [*model_routes(context), *face_routes]


def model_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes by which clients call models, in every protocol. Any process of this node answers them."""
    return [
        web.RouteDef(r.method, r.path, r.handler, {**r.kwargs, "asks": _user_route_of(face)})
        for face in _modules("asking_routes")
        for r in face.asking_routes(context)
    ]


def _user_route_of(face: ModuleType) -> UserRoute:
    declared = vars(face).get("in_own_form")
    return UserRoute(declared) if declared else _PLAIN


def link_app(
    context: Serving,
    known_peers: KnownPeers,
    grants: GrantLookup,
    own_routes: Iterable[web.RouteDef] = (),
) -> web.Application:
    """Return the application for known nodes; it must be served over TLS with client certificates.

    `own_routes` are further routes, specific to this process.
    """
    face_routes = (r for face in _modules("link_routes") for r in face.link_routes(context))
    definitions = [
        web.RouteDef(r.method, r.path, r.handler, {**r.kwargs, "asks": _PLAIN})
        for r in (*face_routes, *own_routes)
    ]
    required_grants = grants if context.settings.node.peers_need_grant else None
    return application(
        definitions,
        peer_check(known_peers, required_grants),
        max_bodies_bytes=context.settings.web.max_bodies_bytes,
    )


@cache
def _modules(function: str) -> tuple[ModuleType, ...]:
    """Return the face modules that define `function`."""
    names = (found.name for found in pkgutil.iter_modules(faces.__path__))
    modules = (import_module(f"{faces.__name__}.{name}") for name in names)
    return tuple(module for module in modules if function in vars(module))


def application(
    definitions: Iterable[web.RouteDef],
    admit: Callable[[HttpRequest], web.Response | None],
    *,
    leaving: Callable[[], bool] = lambda: False,
    max_bodies_bytes: int = WEB_DEFAULTS.max_bodies_bytes,
) -> web.Application:
    """Return an application of these routes for the requests that `admit` lets in; a response from `admit` is sent as it is.

    While `leaving` returns true, each answer closes its connection.
    """
    user_routes: dict[CallHandler, UserRoute] = {}
    own_forms: dict[str, UserRoute] = {}
    answered = _answering(admit, user_routes, own_forms)
    app = web.Application(middlewares=[cast("Middleware", web.middleware(answered))])
    app[ROOM] = BodyMemory(max_bodies_bytes)
    app.on_response_prepare.append(partial(_add_headers, leaving))
    calls: dict[str, LaneCall] = {}
    for route in definitions:
        kwargs = dict(route.kwargs)
        if (call := kwargs.pop("lane", None)) is not None:
            calls[route.path] = call
        if (asks := kwargs.pop("asks", None)) is not None:
            user_routes[cast("CallHandler", route.handler)] = asks
            # All paths are below the root.
            if asks.form is not _PLAIN.form and route.path != "/":
                own_forms[route.path.partition("/{")[0]] = asks
        web.RouteDef(route.method, route.path, route.handler, kwargs).register(app.router)
    app[LANE] = LaneCalls(calls, app, admit, answered, leaving)
    return app


def _answering(
    admit: Callable[[HttpRequest], web.Response | None],
    user_routes: Mapping[CallHandler, UserRoute],
    own_forms: Mapping[str, UserRoute],
) -> Callable[[HttpRequest, CallHandler], Awaitable[web.StreamResponse]]:
    """Return the function that answers every request: with the handler's response, or with an error response.

    `user_routes` are the handlers that users may call; the others are for viewers and operators of the node. `own_forms` are the
    paths of faces with their own form of errors, which errors at other methods and at paths below have too.
    """

    async def answered(request: HttpRequest, handler: CallHandler) -> web.StreamResponse:
        # The lane may have set the id already.
        if ID not in request:
            request[ID] = id_of(request.headers)
        try:
            response = _admit(request, admit, user_routes.get(handler))
            return await handler(request) if response is None else response
        except KNOWN as error:
            return _refuse(request, error, user_routes.get(handler), own_forms)
        except web.HTTPNotFound:
            return _refuse(request, _unknown(request), None, own_forms)
        except web.HTTPMethodNotAllowed as error:
            allowed = tuple(sorted(error.allowed_methods))
            return _refuse(request, WrongMethod(request.method, allowed), None, own_forms)
        except ConnectionError:
            # The caller hung up during a write; the connection ends without a log line.
            raise
        except Exception as error:  # noqa: BLE001 (the outermost middleware: nothing may leave as a bare 500)
            _log_unexpected(request, error)
            return _refuse(request, error, user_routes.get(handler), own_forms)
        finally:
            if HELD in request:
                release(request)

    return answered


def _refuse(
    request: HttpRequest,
    error: Exception,
    face: UserRoute | None,
    own_forms: Mapping[str, UserRoute],
) -> web.Response:
    """Return the response for an error, in the form of its face; without one, of the face whose path is above the request's."""
    if face is None:
        path = f"{request.path}/"
        faces_above = (above for start, above in own_forms.items() if path.startswith(f"{start}/"))
        face = next(faces_above, _PLAIN)
    return face.form(refusal(error), request[ID]).response()


def _unknown(request: HttpRequest) -> UnknownPath:
    """Return the error for a path without an endpoint; if a missing or repeated `/v1` or slash is why, name the right one."""
    meant = "/v1/" + "/".join(part for part in request.path.split("/") if part not in ("", "v1"))
    is_known = any(resource.canonical == meant for resource in request.app.router.resources())
    more = f"; use {meant}" if is_known else ""
    return UnknownPath(f"no endpoint has the path {request.path[:200]!r}{more}")


def _admit(
    request: HttpRequest,
    admit: Callable[[HttpRequest], web.Response | None],
    asks: UserRoute | None,
) -> web.Response | None:
    """Return the response of `admit`, if any; raise what `admit` raises, and `RoleNotAllowed` as `_authorize` does."""
    if isinstance(request, LaneRequest):
        if request.begun:
            # It was admitted. Its key may have ended since, but only its handler closes its account.
            return None
        # The lane takes only calls of models.
        asks = _PLAIN
    response = admit(request)
    if response is None:
        _authorize(request, asks)
    return response


def _authorize(request: HttpRequest, asks: UserRoute | None) -> None:
    """Raise `RoleNotAllowed` where the role of the caller's key does not allow the route: calls of models, or anything else."""
    principal = request.get(PRINCIPAL, ANYBODY)
    if asks is not None:
        if not asks.elsewhere:
            principal.check_models()
    elif not is_open(request.path):
        principal.check_view()


async def _add_headers(
    leaving: Callable[[], bool], request: web.Request, response: web.StreamResponse
) -> None:
    """Set the headers that every answer has."""
    response.headers.setdefault("x-request-id", request[ID])
    response.headers.update(request.get(SHARED, {}))
    if not isinstance(response, web.Response) and response.content_length is None:
        # nginx would buffer several pages of it before sending any.
        response.headers["x-accel-buffering"] = "no"
    if leaving():
        # A client that reused this connection would find it closed: this makes it look for another node now.
        response.force_close()
        response.headers["connection"] = "close"


def _log_unexpected(request: HttpRequest, error: Exception) -> None:
    # The text of an exception may quote the request, and so a user's prompt; the traceback's places say enough.
    traceback_text = "".join(traceback.format_tb(error.__traceback__))
    if isinstance(request, LaneRequest):
        route = request.path
    else:
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "no route"
    log.error(
        "request %s, %s of %s, failed with %s:\n%s",
        request[ID],
        request.method,
        route,
        type(error).__qualname__,
        traceback_text,
    )
