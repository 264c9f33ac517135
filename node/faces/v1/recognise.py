"""`/api/v1/recognise`: the protocol at an address of this machine, its models, and the evidence.

Nothing is registered. It requires the same rights as registering, and an address at which a worker may be registered.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from node.faces import Context, worker_view
from node.faces.errors import WrongParameter
from node.faces.request_reader import done, read_object, text_of
from node.faces.v0.registration import SCHEMES, read_worker, require_may_read
from router import dialects
from router.dialects import Recognition, recognise, recognition_order
from router.ssrf_guard import SsrfGuard
from router.worker_description import OfferedModel, WorkerDescription
from router.workers import Worker

_SCHEMES_OF = {"_http": ("http", "https"), "_grpc": ("grpc",)}


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def recognised(request: web.Request) -> web.Response:
        context.access.change(request)
        given = await read_object(request, idle=context.settings.router.idle_timeout)
        asked = candidates(given, context.links.guard)
        require_may_read(
            (worker for _, worker in asked), may_read=context.access.holds_token(request)
        )
        seen = await recognise(context.router.dialects, asked)
        found = _found(asked, seen)
        if found["found"] is None and at_work({worker.api for _, worker in asked}):
            found["busy"] = True
        return done(tries=[_try(name, recognition) for name, recognition in seen], **found)

    def at_work(apis: Container[str]) -> bool:
        """Return whether a worker there has requests of this node: many servers answer nothing else until those are done."""
        ours = (worker for worker in context.agent.workers if worker.api in apis)
        return any(context.loads.load_of(worker).in_flight for worker in ours)

    return [web.post("/api/v1/recognise", recognised)]


def candidates(given: Mapping[str, Any], guard: SsrfGuard) -> list[tuple[str, Worker]]:
    """Return the dialects to try, in order, each with the worker to probe; raise `Unparseable` or `WrongParameter`."""
    api, wanted = text_of(given, "api"), text_of(given, "dialect")
    scheme, separator, rest = api.partition("://")
    if separator and scheme not in ("http", "https", "grpc"):
        # The scheme determines the dialect.
        worker = _worker(given, api, wanted, guard)
        return [(worker.dialect, worker)]
    if wanted:
        wanted = _worker(given, f"http://{rest or api}", wanted, guard).dialect
    found: list[tuple[str, Worker]] = []
    for name in [wanted] if wanted else recognition_order(dialects.NAMES):
        if separator and scheme not in _schemes_of(name):
            continue
        address = _address(name, scheme if separator else "", rest or api)
        try:
            found.append((name, _worker(given, address, name, guard)))
        except WrongParameter as error:
            # A dialect that is not installed is skipped, unless it was named.
            if wanted or error.param != "dialect":
                raise
    if not found:
        raise WrongParameter("the api's scheme and the dialect do not go together", param="api")
    return found


def _worker(given: Mapping[str, Any], api: str, dialect: str, guard: SsrfGuard) -> Worker:
    row = {"model": "?", "api": api, "dialect": dialect, "headers": given.get("headers")}
    return read_worker("?", row, guard)


def _schemes_of(dialect: str) -> tuple[str, ...]:
    return next((schemes for end, schemes in _SCHEMES_OF.items() if dialect.endswith(end)), ())


def _address(dialect: str, scheme: str, rest: str) -> str:
    """Return the URL with which a worker of a dialect is registered."""
    if dialect.endswith("_grpc"):
        return f"{_named(dialect)}://{rest}"
    return f"{scheme or 'http'}://{rest}"


def _named(dialect: str) -> str:
    return next((scheme for scheme, (name, _) in SCHEMES.items() if name == dialect), "")


def _try(name: str, recognition: Recognition) -> dict[str, Any]:
    return {
        "dialect": name,
        "asked": recognition.asked,
        "came": recognition.came,
        "recognised": recognition.said is not None,
        **({"waits": True} if recognition.waits or recognition.silent else {}),
    }


def _found(
    asked: Iterable[tuple[str, Worker]], seen: Iterable[tuple[str, Recognition]]
) -> dict[str, Any]:
    workers = dict(asked)
    for name, recognition in seen:
        if recognition.said is not None:
            return {"found": _shown(name, workers[name], recognition.said)}
    return {"found": None}


def _shown(dialect: str, worker: Worker, said: WorkerDescription) -> dict[str, Any]:
    api = worker.api
    if dialect.endswith("_grpc"):
        api = urlsplit(api)._replace(scheme=_named(dialect)).geturl()
    return {
        "dialect": dialect,
        "api": api,
        **worker_view.worker_fields(said),
        "models": [{**worker_view.model_fields(model), **_place(model)} for model in said.models],
    }


def _place(model: OfferedModel) -> dict[str, str]:
    """Return the API and the project of a model, as far as its worker's list gives them."""
    said = {"api": model.api, "project": model.project}
    return {name: value for name, value in said.items() if value}
