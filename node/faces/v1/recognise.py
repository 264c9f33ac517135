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
        context.access.check_change(request)
        fields = await read_object(request, idle=context.settings.router.idle_timeout)
        workers = candidates(fields, context.links.guard)
        require_may_read(
            (worker for _, worker in workers), may_read=context.access.holds_token(request)
        )
        recognitions = await recognise(context.router.dialects, workers)
        result = _found(workers, recognitions)
        if result["found"] is None and at_work({worker.api for _, worker in workers}):
            result["busy"] = True
        return done(tries=[_try(name, recognition) for name, recognition in recognitions], **result)

    def at_work(apis: Container[str]) -> bool:
        """Return whether a worker there has requests of this node: many servers answer nothing else until those are done."""
        own_workers = (worker for worker in context.agent.workers if worker.api in apis)
        return any(context.loads.load_of(worker).in_flight for worker in own_workers)

    return [web.post("/api/v1/recognise", recognised)]


def candidates(fields: Mapping[str, Any], guard: SsrfGuard) -> list[tuple[str, Worker]]:
    """Return the dialects to try, in order, each with the worker to probe; raise `Unparseable` or `WrongParameter`."""
    api, dialect = text_of(fields, "api"), text_of(fields, "dialect")
    scheme, separator, rest = api.partition("://")
    if separator and scheme not in ("http", "https", "grpc"):
        # The scheme determines the dialect.
        worker = _worker(fields, api, dialect, guard)
        return [(worker.dialect, worker)]
    if dialect:
        dialect = _worker(fields, f"http://{rest or api}", dialect, guard).dialect
    workers: list[tuple[str, Worker]] = []
    for name in [dialect] if dialect else recognition_order(dialects.NAMES):
        if separator and scheme not in _schemes_of(name):
            continue
        address = _address(name, scheme if separator else "", rest or api)
        try:
            workers.append((name, _worker(fields, address, name, guard)))
        except WrongParameter as error:
            # A dialect that is not installed is skipped, unless it was named.
            if dialect or error.param != "dialect":
                raise
    if not workers:
        raise WrongParameter("the api's scheme and the dialect do not go together", param="api")
    return workers


def _worker(fields: Mapping[str, Any], api: str, dialect: str, guard: SsrfGuard) -> Worker:
    row = {"model": "?", "api": api, "dialect": dialect, "headers": fields.get("headers")}
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
    named_workers: Iterable[tuple[str, Worker]], recognitions: Iterable[tuple[str, Recognition]]
) -> dict[str, Any]:
    workers = dict(named_workers)
    for name, recognition in recognitions:
        if recognition.said is not None:
            return {"found": _shown(name, workers[name], recognition.said)}
    return {"found": None}


def _shown(dialect: str, worker: Worker, description: WorkerDescription) -> dict[str, Any]:
    api = worker.api
    if dialect.endswith("_grpc"):
        api = urlsplit(api)._replace(scheme=_named(dialect)).geturl()
    return {
        "dialect": dialect,
        "api": api,
        **worker_view.worker_fields(description),
        "models": [
            {**worker_view.model_fields(model), **_place(model)} for model in description.models
        ],
    }


def _place(model: OfferedModel) -> dict[str, str]:
    """Return the API and the project of a model, as far as its worker's list gives them."""
    fields = {"api": model.api, "project": model.project}
    return {name: value for name, value in fields.items() if value}
