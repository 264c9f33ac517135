"""`/api/v1/route`: the candidates of a request in order, and the reasons against the other replicas. Nothing is sent.

A body is the request itself. It is read as on `/v1`, routed, and discarded: it is neither logged nor kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from node.faces import Context, worker_view
from node.faces.errors import WrongParameter
from node.faces.openai import checked_pin, read_request, session_of
from node.faces.request_ids import ID
from node.faces.request_reader import json_answer
from registry.mesh import PeerConnection
from registry.records import PeerId
from router.answer import Route
from router.choice import RoutingExplanation
from router.errors import UnknownModel
from router.requests import MODEL_KINDS, Kind, Request
from router.select.candidates import Candidate, Excluded

_Connections = Mapping[PeerId, PeerConnection]


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def of_a_name(http: web.Request) -> web.Response:
        return json_answer(_explanation(context, _named(context, http)))

    async def of_a_request(http: web.Request) -> web.Response:
        request = await read_request(context, http, _kind(http), own_only=False)
        return json_answer(_explanation(context, request))

    return [web.get("/api/v1/route", of_a_name), web.post("/api/v1/route", of_a_request)]


def _kind(http: web.Request) -> Kind:
    kind_name = http.query.get("kind", Kind.CHAT.value)
    try:
        return Kind(kind_name)
    except ValueError as error:
        known_names = ", ".join(kind.value for kind in MODEL_KINDS)
        raise WrongParameter(f"kind must be one of: {known_names}", param="kind") from error


def _named(context: Context, http: web.Request) -> Request:
    model = http.query.get("model", "")
    if not model:
        raise WrongParameter("model can not be empty", param="model")
    project, node = http.query.get("project", ""), http.query.get("node", "")
    pin = checked_pin(context, project, http.query.get("cid"), node)
    session = session_of(http)
    return Request(
        http[ID], _kind(http), model, b"{}", "application/json", pin=pin, session=session
    )


def _first_served(context: Context, request: Request) -> tuple[Request, RoutingExplanation]:
    """Return the request by the first of its names with a candidate, else by the first known one; raise `UnknownModel`."""
    names = (request.model, *request.fallbacks)
    requests = [
        replace(request, model=name, fallbacks=names[position + 1 :])
        for position, name in enumerate(names)
    ]
    explanations = [(one, context.router.explain(one)) for one in requests]
    answerable = [pair for pair in explanations if pair[1].ordered] or [
        p for p in explanations if p[1].excluded
    ]
    if not answerable:
        raise UnknownModel(request.model)
    return answerable[0]


def _explanation(context: Context, original: Request) -> dict[str, Any]:
    request, explained = _first_served(context, original)
    connections = {c.peer: c for c in context.registry.mesh.connections()}
    return {
        "model": request.model,
        # The names that are tried in turn if no candidate answers for this one.
        "fallbacks": list(request.fallbacks),
        "policy": context.settings.router.policy,
        "candidates": [
            {
                **_candidate(context, candidate, connections),
                **_weighed(context, request, explained.ordered, position),
            }
            for position, candidate in enumerate(explained.ordered)
        ],
        "excluded": [
            {
                **_candidate(context, exclusion.candidate, connections),
                "reason": reason(exclusion),
                "retry_in": round(exclusion.seconds, 3),
            }
            for exclusion in explained.excluded
        ],
    }


def _weighed(
    context: Context, request: Request, ordered: Sequence[Candidate], position: int
) -> dict[str, Any]:
    candidate = ordered[position]
    reason, figures = context.router.explain_candidate(request, candidate, ordered)
    return {
        # The estimated number of requests at the candidate now; `figures` are the policy's own.
        "score": round(candidate.expected_requests, 2),
        "figures": {name: round(figure, 3) for name, figure in figures.items()},
        "chosen": position == 0,
        "why": _why(context, candidate, position, reason),
    }


def reason(exclusion: Excluded) -> str:
    """Return why a replica may not answer, with the figures behind it."""
    detail = f"{exclusion.seconds:.1f} s more" if exclusion.seconds else exclusion.detail
    return f"{exclusion.reason}: {detail}" if detail else exclusion.reason


def _candidate(context: Context, candidate: Candidate, connections: _Connections) -> dict[str, Any]:
    route = Route.DIRECT
    if candidate.node == context.peer:
        route = Route.LOCAL
    elif candidate.node in connections and connections[candidate.node].relayed:
        route = Route.RELAY
    service = candidate.service
    condition = context.router.condition(candidate)
    held = context.registry.catalog.held.get(candidate.node)
    return {
        "node": candidate.node,
        "name": held.record.name if held else "",
        "project": service.project,
        "model": service.model,
        "cid": service.cid,
        "type": int(service.type),
        "context": service.context or None,
        "route": route,
        "in_flight": candidate.in_flight,
        "load": worker_view.load_of_candidate(context, candidate),
        "circuit": {
            "state": condition.circuit,
            "failures": condition.failures,
            "retry_in": round(condition.retry_in, 3),
        },
    }


def _why(context: Context, candidate: Candidate, position: int, reason: str) -> str:
    if position >= context.settings.router.attempts:
        return "after the last attempt"
    if last := _why_last(context, candidate):
        return last
    return f"tried if {position} before it fails; {reason}" if position else reason


def _why_last(context: Context, candidate: Candidate) -> str:
    """Return why a candidate comes after others under any policy, `""` where it does not."""
    if candidate.unreachable:
        return "its node is unreachable from here, so it comes last"
    if candidate.suspect:
        return "its node is suspect, so it comes after all others"
    if context.router.is_stopped(candidate):
        return "it has stopped answering, and is probed from time to time"
    if candidate.ejected:
        condition = context.router.condition(candidate)
        return f"its last {condition.failures} requests failed; it is retried in {condition.retry_in:.1f} s"
    return _why_later(context, candidate)


def _why_later(context: Context, candidate: Candidate) -> str:
    """Return why a healthy candidate comes after others, `""` where it does not."""
    if candidate.tight:
        tokens = f"{candidate.service.context:,} tokens"
        return f"the request may exceed its context of {tokens}, so it comes after others"
    if candidate.held_back:
        allowed = context.router.allowance(candidate)
        has = f"{candidate.in_flight} of our requests, of {allowed:.0f}"
        return f"it is new here and has {has} that it may have until it answers more"
    return ""
