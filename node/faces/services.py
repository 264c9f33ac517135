"""Services other than models: batches, fine-tuning, rewards, synthetic data, vectors, memory and agents.

Each call goes to a service of its type, by its method and path. An id in an answer ends with its home, so any node can be asked
for the object by that id.

A list over several services has their lists one after the other, so that a page continues where the last one ended. A service
that is away, silent or returns no list contributes nothing; a cursor with an id of that service gets an error.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from node.auth.principal import ANYBODY
from node.faces import Serving
from node.faces.encoder import JSON, AnswerForm
from node.faces.errors import UnknownPath, UnsupportedMediaType, UrlTooLong
from node.faces.model_call import model_answer
from node.faces.model_list import is_shown
from node.faces.openai import PREFIXES, background_of, caller_of, passed_headers, pin_of, session_of
from node.faces.request_ids import ID
from node.faces.request_reader import TAKEN_FOR_JSON, json_answer, read_body
from node.faces.respond import answer
from registry.catalog import names_of
from registry.records import PeerId, Service, service_type_name
from router.attempt import Routed
from router.errors import BadRequest, RouterError, WorkerFailed, WorkerTimeout
from router.large_bodies import in_thread_if_large
from router.openai import multipart
from router.openai.body import parse_json_object
from router.openai.media_type import media_of
from router.peers.headers import HOP, MODEL, READY, TARGET, WAIT
from router.requests import SERVICES, Kind, Pin, Request, Target
from router.select.nobody import absent_service_error
from router.services import calls
from router.services.calls import CALLS, MAX_PATH_CHARACTERS, OPENAI, ServiceCall
from router.services.ids import FIELDS, HomeRemover, ServiceHome, add_homes, home_of, is_kept_by

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
"""Entries of a page by default, and at most."""

MAX_SERVICES = 64
"""The most services in one list."""

PAGE_SECONDS = 10.0
"""Seconds that the first silent service may hold up a list, and the next ones half as long each: 20 s for all of them."""

Place = tuple[Kind, PeerId, Service]
"""One service: the kind of its requests, its node, and its record there."""


def pin_to(node: PeerId, service: Service, *, here: bool = False) -> Pin:
    """Return the pin of a request to a service; without `here`, any node with a replica of the same `cid` may answer."""
    return Pin(cid=service.cid, node=node if here or not service.cid else None)


RequestMaker = Callable[[Place, Mapping[str, str]], Request]
"""Returns the request to one service for a page, given the parameters of its query."""


def is_list(call: ServiceCall, method: str) -> bool:
    """Return whether a call lists all objects that a service keeps."""
    return call.protocol == OPENAI and method == "GET" and "*" not in call.path


def in_order(offered: Sequence[Place]) -> list[Place]:
    """Return services in the order of their lists, at most `MAX_SERVICES`, each once.

    One service may be offered under several types and, where it has a `cid`, by several nodes.
    """
    found = {
        ("" if s.cid else node, s.project, s.model, s.cid): (kind, node, s)
        for kind, node, s in reversed(offered)
    }
    return [found[key] for key in sorted(found)][:MAX_SERVICES]


async def listed(
    context: Serving,
    places: Sequence[Place],
    limit: str,
    after: str,
    homes: Collection[ServiceHome],
    request_of: RequestMaker,
) -> web.Response:
    """Return one page over all services; raise a `RouterError` where no service answers."""
    remaining, data, more = _limit(limit), list[Any](), False
    begin = _place_of(homes, places)
    failed: RouterError | None = None
    answered, patience = False, PAGE_SECONDS
    for number, place in enumerate(places[begin:], begin):
        cursor = {"after": after} if number == begin and after else {}
        if remaining <= 0:
            more = True
            break
        try:
            async with asyncio.timeout(patience):
                request = request_of(place, {"limit": str(remaining), **cursor})
                page = await _page(context, request, place)
        except TimeoutError:
            failed = failed or WorkerTimeout("list", patience)
            patience /= 2
            continue
        except RouterError as error:
            failed = failed or error
            continue
        answered = True
        data += page["data"]
        remaining -= len(page["data"])
        if page.get("has_more"):
            more = True
            break
    if failed is not None and not answered:
        raise failed
    first, last = (data[0].get("id"), data[-1].get("id")) if data else (None, None)
    page_fields = {
        "object": "list",
        "data": data,
        "first_id": first,
        "last_id": last,
        "has_more": more,
    }
    return json_answer(page_fields)


def _place_of(homes: Collection[ServiceHome], places: Sequence[Place]) -> int:
    for number, (_, node, service) in enumerate(places):
        if all(is_kept_by(home, node, service) for home in homes):
            return number
    raise absent_service_error()


async def _page(context: Serving, request: Request, place: Place) -> dict[str, Any]:
    _, node, service = place
    # The caller's rights were checked when the services were selected.
    async with model_answer(context, ANYBODY, request) as answer:
        body = await answer.body()
        if answer.routed.answer.status != 200:
            raise WorkerFailed(f"a service answered with status {answer.routed.answer.status}")
    try:
        said = orjson.loads(add_homes(body, home_of(node, service)))
    except orjson.JSONDecodeError:
        said = None
    match said:
        case {"data": [*rows]} if all(isinstance(row, dict) for row in rows):
            return {"data": rows, "has_more": said.get("has_more") is True}
    raise WorkerFailed("a service returned an invalid list")


def _limit(text: str) -> int:
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:6]) <= 10_000:
        raise BadRequest("limit is a number from 1", param="limit")
    return min(int(text[:6]), MAX_LIMIT)


_BENEATH = tuple(prefix.removesuffix("/v1") for prefix in PREFIXES)
_LONGEST_QUERY = 100


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for clients."""
    routes: list[web.RouteDef] = []
    for beneath in _BENEATH:
        handler = _asking(context, beneath)
        routes += [web.route(method, path, handler) for method, path in _asked_of(beneath)]
    return routes


def _asked_of(beneath: str) -> set[tuple[str, str]]:
    """Return the methods and paths of all calls; several calls may share a pair."""
    return {
        (method, beneath + call.path.partition("*")[0] + ("{tail:.+}" if "*" in call.path else ""))
        for call in CALLS
        if call.protocol == OPENAI or not beneath
        for method in call.methods
    }


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes: the same calls, answered by this node's own services."""
    return [web.post(f"/v1/{kind.value}", _serving(context, kind)) for kind in SERVICES]


class _Asked(NamedTuple):
    """A call of a service, with the homes removed from its ids."""

    call: ServiceCall
    target: Target
    body: bytes
    fields: Mapping[str, object]
    homes: frozenset[ServiceHome]


def _asking(context: Serving, beneath: str) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        method = "GET" if http.method == "HEAD" else http.method
        match = calls.find(method, http.rel_url.raw_path.removeprefix(beneath))
        # For an unknown path the kind is arbitrary: `ask` raises at once.
        kind = match[0].kinds[0] if match else Kind.BATCH
        if match and is_list(match[0], method) and HOP not in http.headers:
            parsed = _without_homes(match, method, http.query_string, b"", {})
            places = _places(context, http, parsed)
            if len(places) > 1:
                return await _list(context, http, parsed, places)

        async def ask() -> AnswerForm:
            if match is None:
                raise UnknownPath(f"no endpoint has the path {http.rel_url.raw_path[:200]!r}")
            parsed = _without_homes(match, method, http.query_string, *await _body(context, http))
            kind, model, pin = _service(context, http, parsed)
            request = _request(
                context, http, kind, parsed.target, parsed.body, model=model, pin=pin
            )
            return AnswerForm(request, homed=_with_homes if parsed.call.begins else _as_it_is)

        return await answer(context, http, kind, ask)

    return handle


def _places(context: Serving, http: web.Request, parsed: _Asked) -> list[Place]:
    """Return the services whose lists a caller asks for, in order."""
    pin = pin_of(context, http.headers)
    kinds = calls.kinds_of(parsed.call, parsed.fields.get("purpose"))
    return in_order(
        [
            (kind, node, service)
            for kind in kinds
            for node, service in context.router.services(kind)
            if pin.node in (None, node)
            and pin.project in ("", service.project)
            and pin.cid in (None, service.cid)
            and is_shown(http, service)
        ]
    )


async def _list(
    context: Serving, http: web.Request, parsed: _Asked, places: list[Place]
) -> web.Response:
    path, _, query = parsed.target.path.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    limit, after = parameters.pop("limit", ""), parameters.pop("after", "")

    def request_of(place: Place, page: Mapping[str, str]) -> Request:
        kind, node, service = place
        target = calls.target_of(parsed.call, "GET", f"{path}?{urlencode({**parameters, **page})}")
        name = f"{service.project}/{service.model}"
        pin = pin_to(node, service)
        return _request(context, http, kind, target, b"", model=name, pin=pin)

    return await listed(context, places, limit, after, parsed.homes, request_of)


def _serving(context: Serving, kind: Kind) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            target = calls.parse_target(http.headers.get(TARGET, ""), kind)
            body, _ = await _body(context, http)
            model, pin = http.headers.get(MODEL, ""), pin_of(context, http.headers)
            request = _request(context, http, kind, target, body, model=model, pin=pin)
            return AnswerForm(request, homed=_as_it_is)

        return await answer(context, http, kind, ask, asker=http.headers.get(HOP, ""))

    return handle


async def _body(context: Serving, http: web.Request) -> tuple[bytes, dict[str, object]]:
    """Return a body and its fields; raise what `read_body` raises, `BadRequest` or `UnsupportedMediaType`."""
    settings, rate = context.settings.router, context.settings.web.min_body_rate
    body = await read_body(
        http, limit=settings.max_body_bytes, idle=settings.idle_timeout, rate=rate
    )
    if not body:
        return body, {}
    content_type = http.headers.get("content-type") or JSON
    kind = media_of(content_type).kind
    if kind == multipart.CONTENT_TYPE:
        return body, dict(multipart.fields(body, multipart.parts(body, content_type)))
    if kind not in TAKEN_FOR_JSON:
        raise UnsupportedMediaType(f"send {JSON} or {multipart.CONTENT_TYPE}, not {kind[:100]!r}")
    return body, dict(await in_thread_if_large(body, partial(parse_json_object, body)))


def _without_homes(
    match: tuple[ServiceCall, list[str]],
    method: str,
    query: str,
    body: bytes,
    fields: dict[str, object],
) -> _Asked:
    """Remove the homes from the ids in path, query and body; raise `BadRequest` or `UrlTooLong`."""
    (call, ids), stripper = match, HomeRemover()
    path = calls.path_of(call, [stripper.strip_id(id_) for id_ in ids])
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_LONGEST_QUERY)
    except ValueError as error:
        raise BadRequest("the query has too many parameters") from error
    if pairs:
        pairs_kept = [(name, stripper.strip_id(v) if name in FIELDS else v) for name, v in pairs]
        path += f"?{urlencode(pairs_kept)}"
    if len(path) > MAX_PATH_CHARACTERS:
        raise UrlTooLong("the path of this request is too long")
    if changed := stripper.strip_fields(fields):
        body = orjson.dumps({**fields, **changed})
    target = calls.target_of(call, method, path)
    return _Asked(call, target, body, {**dict(pairs), **fields}, stripper.homes)


def _service(context: Serving, http: web.Request, parsed: _Asked) -> tuple[Kind, str, Pin]:
    """Return the service to ask, by kind, name and pin.

    Raise `NobodyServes` where a home's service is not known, and `BadRequest` where the ids have homes at different services.
    """
    kinds = calls.kinds_of(parsed.call, parsed.fields.get("purpose"))
    offered = [(kind, *offer) for kind in kinds for offer in context.router.services(kind)]
    if parsed.homes:
        return _at_home(parsed, offered)
    kind = next((kind for kind, *_ in offered), kinds[0])
    model_name = parsed.fields.get(parsed.call.named_by)
    if isinstance(model_name, str) and any(
        model_name in names_of(service) for _, _, service in offered
    ):
        return kind, model_name, pin_of(context, http.headers)
    return kind, service_type_name(SERVICES[kind]), pin_of(context, http.headers)


def _at_home(parsed: _Asked, offered: list[Place]) -> tuple[Kind, str, Pin]:
    for kind, node, service in offered:
        if all(is_kept_by(home, node, service) for home in parsed.homes):
            here = parsed.call.at_home and parsed.homes == {home_of(node, service)}
            if here or not parsed.call.at_home:
                return kind, f"{service.project}/{service.model}", pin_to(node, service, here=here)
    if len(parsed.homes) > 1:
        raise BadRequest("the request names objects of two different services")
    raise absent_service_error()


def _request(
    context: Serving,
    http: web.Request,
    kind: Kind,
    target: Target,
    body: bytes,
    *,
    model: str,
    pin: Pin,
) -> Request:
    background = background_of(http)
    return Request(
        id=http[ID],
        kind=kind,
        model=model,
        body=body,
        content_type=http.headers.get("content-type") or JSON,
        pin=pin,
        own_only=HOP in http.headers,
        session=session_of(http),
        caller=caller_of(http),
        waits=HOP not in http.headers or WAIT in http.headers,
        background=background,
        holds=HOP not in http.headers or http.headers.get(WAIT) == READY,
        target=target,
        passed=passed_headers(http, context.peer, background=background),
    )


def _with_homes(routed: Routed, body: bytes) -> bytes:
    return add_homes(body, home_of(routed.candidate.node, routed.candidate.service))


def _as_it_is(_: Routed, body: bytes) -> bytes:
    return body
