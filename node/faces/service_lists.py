"""Lists over several services: their lists one after the other, so that a page continues where the last one ended.

A service that is away, silent or returns no list contributes nothing; a cursor with an id of that service gets an error.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from node.auth.principal import ANYBODY
from node.faces import Serving
from node.faces.model_call import model_answer
from node.faces.request_reader import json_answer
from registry.records import PeerId, Service
from router.errors import BadRequest, RouterError, WorkerFailed, WorkerTimeout
from router.requests import Kind, Pin, Request
from router.select.nobody import absent_service_error
from router.services.calls import OPENAI, ServiceCall
from router.services.ids import ServiceHome, add_homes, home_of, is_kept_by

USUAL, MOST = 20, 100
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
    left, data, more = _limit(limit), list[Any](), False
    begin = _place_of(homes, places)
    failed: RouterError | None = None
    answered, patience = False, PAGE_SECONDS
    for number, place in enumerate(places[begin:], begin):
        cursor = {"after": after} if number == begin and after else {}
        if left <= 0:
            more = True
            break
        try:
            async with asyncio.timeout(patience):
                request = request_of(place, {"limit": str(left), **cursor})
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
        left -= len(page["data"])
        if page.get("has_more"):
            more = True
            break
    if failed is not None and not answered:
        raise failed
    first, last = (data[0].get("id"), data[-1].get("id")) if data else (None, None)
    shown = {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}
    return json_answer(shown)


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


def _limit(said: str) -> int:
    if not said:
        return USUAL
    if not (said.isascii() and said.isdigit()) or not 1 <= int(said[:6]) <= 10_000:
        raise BadRequest("limit is a number from 1", param="limit")
    return min(int(said[:6]), MOST)
