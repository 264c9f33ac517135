"""Model list of `/v1/models`: the union of the shapes of OpenAI and of `/api/v0`, from the live view.

There is one entry per model name, because that is what a client puts into `model`. Where several projects serve one name, the
entry's `project` and `owned_by` name the one with the most replicas, and `projects` names all of them; requested as
`PROJECT/MODEL`, a model is shown as that project's alone. Its `url` is this node's URL for requests to the model; a worker's
address is never shown.

Clients of Anthropic's API get the same list with the additional fields they need.

A long list is sent while it is made, slice by slice, so that other requests do not wait for the whole of it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from heapq import merge
from itertools import islice
from operator import or_
from typing import Any, TypeVar

import orjson
from aiohttp import web

from node.auth.principal import ANYBODY, PRINCIPAL, Principal
from node.faces import Context, UserRoute
from node.faces.request_ids import ID
from node.faces.request_reader import StreamedResponse, json_answer
from node.faces.worker_view import abilities
from registry.catalog import Offer
from registry.members.liveness import Presence
from registry.records import Service
from router.errors import UnknownModel
from router.select.fitness import main_kind

VERSION = "anthropic-version"
"""The header that all of Anthropic's clients send, and no others."""


def is_anthropic_client(http: web.Request) -> bool:
    """Return whether the request comes from a client of Anthropic's API."""
    return VERSION in http.headers


def model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the list in the form for clients of Anthropic's API."""
    return {
        **entry,
        "type": "model",
        "display_name": entry["id"],
        # The time of registration: the time of the model's creation is unknown.
        "created_at": f"{datetime.fromtimestamp(entry['created'], UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
        "max_input_tokens": entry.get("context_length"),
    }


SLICE = 1_000
"""Models and replicas that are processed without yielding; a list of more models is sent in pieces."""

Item = TypeVar("Item")


LIVE = frozenset({Presence.ALIVE, Presence.UNREACHABLE, Presence.SUSPECT})


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    def offers(name: str) -> Iterable[Offer]:
        return _live(context, context.registry.catalog.offers.get(name, ()))

    return listing_routes(lambda: live_offers(context), offers)


def listing_routes(
    everybody: Callable[[], Iterable[Offer]],
    offers: Callable[[str], Iterable[Offer]],
) -> list[web.RouteDef]:
    """Return the routes that show models.

    `everybody` returns the offers of all models; `offers` returns those of one model, by its name as callers write it.
    """
    # Records of older nodes do not say when a model was registered.
    since = int(time.time())

    async def listing(request: web.Request) -> web.StreamResponse:
        offers_by_name: dict[str, list[Offer]] = {}
        async for some in _slices(iter(everybody())):
            for offer in some:
                if name := _name_for(request, offer.service):
                    offers_by_name.setdefault(name, []).append(offer)
        entries = _entries(
            offers_by_name, _base(request), since, as_anthropic=is_anthropic_client(request)
        )
        if len(offers_by_name) <= SLICE:
            data = [entry async for some in entries for entry in some]
            return json_answer(
                {
                    "data": data,
                    **_list_fields(offers_by_name, as_anthropic=is_anthropic_client(request)),
                }
            )
        return await _send(
            request,
            entries,
            _list_fields(offers_by_name, as_anthropic=is_anthropic_client(request)),
        )

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["tail"]
        shown_offers = [offer for offer in offers(name) if is_shown(request, offer.service)]
        if not shown_offers or not request.get(PRINCIPAL, ANYBODY).may_see(name):
            raise UnknownModel(name)
        entry = _entry(name, shown_offers, _base(request), since)
        shown = model(entry) if is_anthropic_client(request) else entry
        return json_answer({"code": 0, "message": "success", **shown})

    return [
        route
        for prefix in ("/v1", "/v1/openai/v1")
        for route in (
            web.get(f"{prefix}/models", listing, asks=UserRoute()),
            # A model's name may itself hold slashes.
            web.get(prefix + "/models/{tail:.+}", one, asks=UserRoute()),
        )
    ]


def is_shown(request: web.Request, service: Service) -> bool:
    """Return whether the caller's key allows a model; others are not shown."""
    principal: Principal = request.get(PRINCIPAL, ANYBODY)
    return principal.may_see(f"{service.project}/{service.model}")


def _name_for(request: web.Request, service: Service) -> str:
    """Return the name by which the caller may use a model, empty for none: its own, unless the key is for a project's only."""
    principal: Principal = request.get(PRINCIPAL, ANYBODY)
    full = f"{service.project}/{service.model}"
    if not principal.may_see(full):
        return ""
    return service.model if principal.may_see(service.model) else full


def live_offers(context: Context) -> Iterator[Offer]:
    """Yield all offers of live nodes."""
    for node, signed in context.registry.catalog.held.items():
        if context.registry.presence(node) in LIVE:
            for service in signed.record.services:
                yield Offer(node, service)


async def _slices(items: Iterator[Item]) -> AsyncIterator[list[Item]]:
    """Yield items in slices, and give other tasks a turn after each."""
    while some := [*islice(items, SLICE)]:
        yield some
        await asyncio.sleep(0)


async def _entries(
    offers_by_name: Mapping[str, Sequence[Offer]], base: str, since: int, *, as_anthropic: bool
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the entries of models, sorted by name, in slices."""
    # Sorted in parts: sorting all at once would take as long as a hundred requests.
    parts = [sorted(some) async for some in _slices(iter(offers_by_name))]
    async for names in _slices(merge(*parts)):
        some = [_entry(name, offers_by_name[name], base, since) for name in names]
        yield [model(entry) for entry in some] if as_anthropic else some


def _list_fields(
    offers_by_name: Mapping[str, Sequence[Offer]], *, as_anthropic: bool
) -> dict[str, Any]:
    """Return the fields of a list besides its models."""
    projects = {offer.service.project for offers in offers_by_name.values() for offer in offers}
    around: dict[str, Any] = {
        "object": "list",
        "code": 0,
        "message": "success",
        # Seed 002 names one project for the whole list; where there are several, each entry names its own.
        "project": next(iter(projects)) if len(projects) == 1 else "",
    }
    if as_anthropic:
        first, last = min(offers_by_name, default=None), max(offers_by_name, default=None)
        around |= {"has_more": False, "first_id": first, "last_id": last}
    return around


async def _send(
    request: web.Request, entries: AsyncIterator[list[dict[str, Any]]], around: dict[str, Any]
) -> web.StreamResponse:
    """Send a list in pieces, as fast as its client reads them."""
    headers = {"content-type": "application/json", "x-request-id": request[ID]}
    response = StreamedResponse(headers=headers)
    await response.prepare(request)
    before = b'{"data":['
    async for some in entries:
        await response.write(before + orjson.dumps(some)[1:-1])
        before = b","
    await response.write_eof(b"]," + orjson.dumps(around)[1:])
    return response


def _live(context: Context, offers: Iterable[Offer]) -> Iterable[Offer]:
    return (offer for offer in offers if context.registry.presence(offer.node) in LIVE)


def _base(request: web.Request) -> str:
    """Return this node's base URL as the caller used it; a proxy in front may report that the caller used TLS."""
    forwarded = request.headers.get("x-forwarded-proto") == "https"
    scheme = "https" if forwarded or request.secure else "http"
    return f"{scheme}://{request.headers.get('host', 'localhost')}"


def _entry(name: str, offers: Sequence[Offer], base: str, since: int) -> dict[str, Any]:
    projects = Counter(offer.service.project for offer in offers)
    first = min(projects, key=lambda project: (-projects[project], project))
    of_first = min(o.service for o in offers if o.service.project == first)
    # The longest: routing sends a request that is too long for some replicas to the others.
    context = max(offer.service.context for offer in offers)
    ability_names = abilities(reduce(or_, (offer.service.abilities for offer in offers)))
    return {
        "id": name,
        "object": "model",
        "created": min(offer.service.created or since for offer in offers),
        "owned_by": first,
        "model": of_first.model,
        "url": f"{base}/v1/{main_kind(of_first.type)}",
        "type": int(of_first.type),
        "project": first,
        "projects": sorted(projects),
        "replicas": len(offers),
        "nodes": len({offer.node for offer in offers}),
        **({"context_length": context} if context else {}),
        # Abilities of any replica: requests are routed to those that have them.
        **({"architecture": ability_names} if ability_names else {}),
    }
