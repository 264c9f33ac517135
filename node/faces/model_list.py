"""Model list of `/v1/models`: the union of OpenAI's and seed 002's shape, from the live view.

One entry per model name, because that is what a client puts into `model`. Where several projects serve one name, the
entry's `project` and `owned_by` name the one with the most replicas, and `projects` names all of them; asked for as
`PROJECT/MODEL`, a model is shown as that project's alone. Its `url` is where this node is asked for it;
a worker's address is never shown.

Model list for clients of Anthropic's API: the common one, with what they need besides.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any

from node import web
from node.faces import Context
from node.faces.request_reader import json_answer
from node.faces.worker_view import abilities
from registry.catalog import Offer
from registry.members.liveness import Presence
from router.errors import UnknownModel
from router.select.fitness import meant_by

VERSION = "anthropic-version"
"""The header that all of Anthropic's clients send, and nobody else."""


def wanted(http: web.HttpRequest) -> bool:
    """Say whether a client of Anthropic's asks."""
    return VERSION in http.headers


def model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Show one model."""
    return {
        **entry,
        "type": "model",
        "display_name": entry["id"],
        # When it was registered: nobody says when it was made.
        "created_at": f"{datetime.fromtimestamp(entry['created'], UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
        "max_input_tokens": entry.get("context_length"),
    }


def models(listing: Mapping[str, Any]) -> dict[str, Any]:
    """Show all models, on one page."""
    data = [model(entry) for entry in listing["data"]]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {**listing, "data": data, "has_more": False, "first_id": first, "last_id": last}


LIVE = frozenset({Presence.ALIVE, Presence.UNREACHABLE, Presence.SUSPECT})


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    def offers(name: str) -> Iterable[Offer]:
        return _live(context, context.registry.catalog.offers.get(name, ()))

    return listing_routes(lambda: live_offers(context), offers)


def listing_routes(
    everybody: Callable[[], Mapping[str, Sequence[Offer]]],
    offers: Callable[[str], Iterable[Offer]],
) -> list[web.RouteDef]:
    """Return the routes that show models: all that are served, by name alone, and one by a name as callers write it."""
    # Records of older nodes do not say when a model was registered.
    since = int(time.time())

    async def listing(request: web.HttpRequest) -> web.Response:
        found = _listing(everybody(), _base(request), since)
        return json_answer(models(found) if wanted(request) else found)

    async def one(request: web.HttpRequest) -> web.Response:
        name = request.tail
        found = [*offers(name)]
        if not found:
            raise UnknownModel(name)
        entry = _entry(name, found, _base(request), since)
        shown = model(entry) if wanted(request) else entry
        return json_answer({"code": 0, "message": "success", **shown})

    return [
        route
        for prefix in ("/v1", "/v1/openai/v1")
        for route in (
            web.get(f"{prefix}/models", listing),
            # A model's name may itself hold slashes.
            web.get(f"{prefix}/models/*", one),
        )
    ]


def live_offers(context: Context) -> dict[str, list[Offer]]:
    """Return who serves what now, by model name alone."""
    found: dict[str, list[Offer]] = {}
    for node, signed in context.registry.catalog.held.items():
        if context.registry.presence(node) in LIVE:
            for service in signed.record.services:
                found.setdefault(service.model, []).append(Offer(node, service))
    return found


def _live(context: Context, offers: Iterable[Offer]) -> Iterable[Offer]:
    return (offer for offer in offers if context.registry.presence(offer.node) in LIVE)


def _base(request: web.HttpRequest) -> str:
    """Return where the caller asks this node, in its own words; a proxy before it may say that it asked over TLS."""
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{request.headers.get('host', 'localhost')}"


def _listing(everybody: Mapping[str, Sequence[Offer]], base: str, since: int) -> dict[str, Any]:
    entries = [_entry(name, offers, base, since) for name, offers in sorted(everybody.items())]
    projects = {project for entry in entries for project in entry["projects"]}
    return {
        "object": "list",
        "code": 0,
        "message": "success",
        # Seed 002 names one project above the list; where there are several, each entry names its own.
        "project": next(iter(projects)) if len(projects) == 1 else "",
        "data": entries,
    }


def _entry(name: str, offers: Sequence[Offer], base: str, since: int) -> dict[str, Any]:
    projects = Counter(offer.service.project for offer in offers)
    first = min(projects, key=lambda project: (-projects[project], project))
    of_first = min(o.service for o in offers if o.service.project == first)
    # The longest: who is asked for more than the others can read is chosen accordingly.
    context = max(offer.service.context for offer in offers)
    known = abilities(reduce(or_, (offer.service.abilities for offer in offers)))
    return {
        "id": name,
        "object": "model",
        "created": min(offer.service.created or since for offer in offers),
        "owned_by": first,
        "model": of_first.model,
        "url": f"{base}/v1/{meant_by(of_first.type)}",
        "type": int(of_first.type),
        "project": first,
        "projects": sorted(projects),
        "replicas": len(offers),
        "nodes": len({offer.node for offer in offers}),
        **({"context_length": context} if context else {}),
        # What some of them take, for requests find their way to those.
        **({"architecture": known} if known else {}),
    }
