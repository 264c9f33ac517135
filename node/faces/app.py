"""The two applications made of all faces: the public one, and the one for other nodes at the link listener.

The middleware here is one of the two places that catch everything: whatever a handler raises leaves as an answer of
ours, and what is no error of ours is logged without a word of the request.
"""

import logging
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from random import getrandbits
from types import ModuleType

from node import faces, web
from node.faces import Context, Serving
from node.faces.errors import KNOWN, UnsupportedExpectation, of_fault, refusal
from node.faces.peer_access import KnownPeers, peer_check
from registry.records import Standing

log = logging.getLogger("modelvine.http")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def public_app(context: Context) -> web.App:
    """Return the application for clients."""
    return application(
        public_routes(context),
        context.access.admit,
        leaving=lambda: context.registry.own.standing is not Standing.SERVING,
    )


def public_routes(context: Context) -> list[web.RouteDef]:
    """Return all that clients may ask."""
    own = [route for face in _modules("routes") for route in face.routes(context)]
    return [*model_routes(context), *own]


def model_routes(context: Serving) -> list[web.RouteDef]:
    """Return what clients may ask of models, in every protocol: any process of this node answers that."""
    return [route for face in _modules("asking_routes") for route in face.asking_routes(context)]


def link_app(context: Serving, known: KnownPeers) -> web.App:
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
    definitions: Iterable[web.RouteDef],
    admit: Callable[[web.HttpRequest], web.Response | None],
    *,
    leaving: Callable[[], bool] = lambda: False,
) -> web.App:
    """Return an application of these routes, for whom `admit` lets in; what `admit` returns is an answer of its own.

    While it is `leaving`, each answer ends its connection.
    """
    return _Application(web.Routes(definitions), admit, leaving)


class _Application:
    """Answers everything: with what a handler says, or with an error of ours."""

    def __init__(
        self,
        routes: web.Routes,
        admit: Callable[[web.HttpRequest], web.Response | None],
        leaving: Callable[[], bool],
    ) -> None:
        self._routes = routes
        self._admit = admit
        self._leaving = leaving

    async def answer(self, request: web.HttpRequest) -> web.Answer:
        request.id = _id_of(request.headers)
        if self._leaving():
            # Whoever goes on with this connection would find it closed: it shall look for another node now.
            request.keep_alive = False
        route: web.RouteDef | None = None
        try:
            response: web.Answer | None = self._admit(request)
            if response is None:
                route = self._routes.find(request)
                _check_expectation(request)
                response = await route.handler(request)
        except KNOWN as error:
            response = refusal(error).response()
        except web.Fault as fault:
            response = self.refuse(fault, request.headers)
        except ConnectionError:
            # The caller hung up while we wrote; the connection ends quietly.
            raise
        except Exception as error:  # noqa: BLE001 (the outermost middleware: nothing may leave as a bare 500)
            _log_unforeseen(request, route, error)
            response = refusal(error).response()
        if isinstance(response, web.Response):
            response.headers["x-request-id"] = request.id
        return response

    def refuse(self, fault: web.Fault, said: web.Headers) -> web.Response:
        log.debug("refused what is no request: %s", type(fault).__name__)
        response = refusal(of_fault(fault)).response()
        response.headers["x-request-id"] = _id_of(said)
        return response


def _id_of(headers: web.Headers) -> str:
    given = headers.get("x-request-id")
    if given is not None and _ID.fullmatch(given):
        return given
    # It guards nothing, so it need not cost a system call.
    return f"{getrandbits(128):032x}"


def _check_expectation(request: web.HttpRequest) -> None:
    if request.headers.get("expect", "100-continue").lower() != "100-continue":
        raise UnsupportedExpectation("this Expect header cannot be met")


def _log_unforeseen(request: web.HttpRequest, route: web.RouteDef | None, error: Exception) -> None:
    # The text of an exception may quote the request, and so somebody's prompt; where it arose says enough.
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "request %s, %s of %s, failed with %s:\n%s",
        request.id,
        request.method,
        route.path if route else "no route",
        type(error).__qualname__,
        where,
    )
