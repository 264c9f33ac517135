"""Call of a service over HTTP: method and path are passed on as they came, and its answer comes back with its own status."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache

import orjson
from yarl import URL

from registry.catalog import names_of
from router.answer import NOTHING, Answer, Route, complete_answer
from router.errors import BadRequest, WorkerFailed, WorkerRejected, WorkerUnable
from router.http.exchange import Call, Exchange, SentCall, read_plain
from router.http.heads import head_to, headers_to, request_head
from router.http.pool import request_start
from router.http.probe import ProbeResult, send_probe
from router.http.refusals import refusal
from router.peers.links import Links
from router.requests import SERVICES, Request, Target
from router.services import translation
from router.services.calls import CALLS, DESCRIPTION, PROBES, is_place
from router.services.translation import JSON, ServiceAnswer, ServiceAsk
from router.worker_description import OfferedModel
from router.workers import Worker

MAX_TRANSLATED_BYTES = 64 * 1024 * 1024
"""Maximum size of a worker's answer that is translated."""

NOT_FOUND = 404

SERVICES_NAME = "services"
"""Name under which the services of a worker are registered."""

_NO_PATH = frozenset({405, 501})
_ABOUT_US = frozenset({401, 403, 408, 425, 429})
"""Statuses that find fault with this node or the moment, not with the request."""

_NO_SPACE = 507
"""The service's own disk is full (RFC 4918 11.5), which its caller can do something about."""


_ENDS = sorted({"/v1", "/inference", *(call.path for call in CALLS)}, key=len, reverse=True)


@lru_cache(maxsize=1024)
def base_of(api: str) -> tuple[str, str]:
    """Return the base of a service's paths, and the query of its address, whether that is the base or one of the paths."""
    url = URL(api)
    base = url.raw_path.rstrip("/")
    end = next((end for end in _ENDS if base.endswith(end)), "")
    return f"{url.origin()}{base.removesuffix(end)}", url.raw_query_string


def url_of(api: str, path: str) -> URL:
    """Return the URL of a service's path; `path` is as it is sent, with its query."""
    base, query = base_of(api)
    more = f"{'&' if '?' in path else '?'}{query}" if query else ""
    return URL(f"{base}{path}{more}", encoded=True)


async def services_of(links: Links, worker: Worker) -> tuple[OfferedModel, ...]:
    """Return the services that a worker has beside its models, found by the probe of each kind.

    All have one name, and so one home: what one of them keeps, such as a file, another may use.
    """

    def ask(method: str, path: str) -> Awaitable[ProbeResult]:
        body = b"{}" if method == "POST" else b""
        return send_probe(links.workers, worker, url_of(worker.api, path), method=method, body=body)

    probes = PROBES[worker.dialect]
    # Some servers answer nothing else while they describe themselves for the first time.
    lists = [kind for kind, probe in probes.items() if probe != DESCRIPTION]
    results = dict(zip(lists, await asyncio.gather(*(ask(*probes[k]) for k in lists)), strict=True))
    for kind in probes.keys() - results.keys():
        results[kind] = await ask(*DESCRIPTION)
    return tuple(
        OfferedModel(SERVICES_NAME, type=SERVICES[kind]) for kind in probes if _has(results[kind])
    )


def describe_services(services: Sequence[OfferedModel]) -> str:
    """Return what services these are, for people."""
    return " and ".join(service.type.cli_name for service in services if service.type is not None)


def _has(result: ProbeResult) -> bool:
    match result.status, result.json:
        case 200, {"object": "list"} | {"paths": {"/score": {"post": dict()}}}:
            return True
        case 400 | 422, dict():
            return True
    return False


def is_answer(status: int) -> bool:
    """Return whether a status is the service's own answer for its caller, such as that something is unknown to it."""
    return (
        200 <= status <= 299
        or status == _NO_SPACE
        or (400 <= status <= 499 and status not in _ABOUT_US | _NO_PATH)
    )


def call_service(
    links: Links, request: Request, worker: Worker | None
) -> AbstractAsyncContextManager[Answer]:
    """Send a request to a service of this machine and enter once its first byte is there; raise a `WorkerError` until then."""
    target = request.target
    if worker is None or target is None:
        raise WorkerFailed("this dialect supports only workers on this machine")
    if target.protocol != worker.dialect and not is_place(target):
        return _translated(links, request, target, worker)
    body, url = _addressed(request.body, target, worker), url_of(worker.api, target.path)
    head = head_to(worker, request, request_start(url, target.method), len(body))

    async def read(exchange: Exchange) -> Answer:
        if exchange.status in _NO_PATH:
            raise WorkerUnable(f"the service has no {target.method} {target.path}", param="path")
        if not is_answer(exchange.status):
            raise await refusal(exchange)
        return await read_service(exchange, Route.LOCAL)

    call = Call(links.workers.pool_for(url), head, body)
    return SentCall(call, links.settings, links.deadlines, read)


@asynccontextmanager
async def _translated(
    links: Links, request: Request, target: Target, worker: Worker
) -> AsyncIterator[Answer]:
    """Make as many requests in the worker's own protocol as needed; if one fails, its answer goes to the caller."""
    steps = translation.begin(target, _addressed(request.body, target, worker))
    answer: bytes | None = None
    while True:
        try:
            # The first value sent is `None`, as a generator requires.
            ask = steps.send(answer)
        except StopIteration as over:
            final: ServiceAnswer = over.value
            yield complete_answer(final.body, final.content_type)
            return
        except BadRequest as error:
            payload = {"error": {"message": str(error), "param": error.param}}
            raise WorkerRejected(error.status, orjson.dumps(payload)) from error
        reply = await _send_ask(links, request, ask, worker)
        if reply.status == NOT_FOUND and ask.optional:
            answer = None
            continue
        if not 200 <= reply.status <= 299:
            yield reply
            return
        answer = reply.first


async def _send_ask(links: Links, request: Request, ask: ServiceAsk, worker: Worker) -> Answer:
    url = url_of(worker.api, ask.path)
    headers = {**headers_to(worker, request), "Content-Type": ask.content_type, "accept": JSON}

    async def read(exchange: Exchange) -> Answer:
        missing = exchange.status in _NO_PATH
        if missing and not ask.optional:
            raise WorkerUnable(f"the service has no {ask.method} {ask.path}", param="path")
        if not missing and not is_answer(exchange.status):
            raise await refusal(exchange)
        body = await exchange.read_all(MAX_TRANSLATED_BYTES)
        status = NOT_FOUND if missing else exchange.status
        return complete_answer(body, exchange.content_type, status=status)

    head = request_head(request_start(url, ask.method), headers, len(ask.body))
    call = Call(links.workers.pool_for(url), head, ask.body)
    async with SentCall(call, links.settings, links.deadlines, read) as answer:
        return answer


async def read_service(exchange: Exchange, route: Route) -> Answer:
    """Make an answer of whatever comes, even an empty body: a service may have done what it was told without a word."""
    if exchange.length == 0 or exchange.ended:
        return _empty(exchange, route)
    if exchange.length is not None:
        return await read_plain(exchange, route)
    first = await exchange.read_some()
    return exchange.answer(first, route) if first else _empty(exchange, route)


def _empty(exchange: Exchange, route: Route) -> Answer:
    return Answer(exchange.status, exchange.content_type, b"", NOTHING, route, 0)


def _addressed(body: bytes, target: Target, worker: Worker) -> bytes:
    """Return the body, with the service named as its worker names it."""
    if not (target.named_by and worker.model and body):
        return body
    fields = orjson.loads(body)
    if fields.get(target.named_by) not in names_of(worker.service):
        return body
    return orjson.dumps({**fields, target.named_by: worker.model})
