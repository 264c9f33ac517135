"""Mapping of a request to what a worker of the OpenAI protocol gets."""

from functools import lru_cache

from yarl import URL

from router.canonical.retrieval import Rerank
from router.dialects.openai_http import ranking
from router.dialects.openai_http.endpoints import endpoint, understood
from router.http.exchange import Call
from router.http.heads import forwarded_head
from router.http.pool import Origin, Places, origin_of, start_of
from router.openai.body import for_worker, with_model
from router.openai.large_json import SMALL_BYTES
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.workers import Worker

# Completions are missing: one may have to be asked for as a chat.
_AT_ONCE = frozenset({Kind.CHAT, Kind.EMBEDDING})

Made = tuple[bytes, Rerank | None]
"""A body for a worker, and the texts to be ranked, if any."""


Goal = tuple[Origin, bytes]
"""Where requests go, and the start of each request's head."""


@lru_cache(maxsize=4096)
def goes_to(api: str, kind: Kind) -> Goal:
    """Return where requests of a kind go for a worker registered with this URL."""
    return goal_at(endpoint(api, kind))


def goal_at(url: URL) -> Goal:
    """Return the goal for a URL."""
    return origin_of(url), start_of(url)


def made_for(worker: Worker, request: Request) -> Made:
    """Return the body of a request for a worker."""
    body = understood(request)
    if not request.plain:
        body = for_worker(body, request.content_type)
    wanted = ranking.asked(request) if request.kind is Kind.RERANK else None
    if wanted is not None:
        body = ranking.body_of(body, wanted)
    if worker.own_model != request.model:
        body = with_model(body, request.content_type, worker.own_model)
    return body, wanted


def prepared(places: Places, request: Request, candidate: Candidate) -> Call | None:
    """Return what to send for a small unstreamed chat or an embedding; `None` for any other request."""
    worker, body = candidate.worker, request.body
    if request.stream or request.verbatim or request.kind not in _AT_ONCE:
        return None
    if worker is None or worker.headers or len(body) > SMALL_BYTES:
        return None
    if not request.plain or worker.own_model != request.model:
        body, _ = made_for(worker, request)
    origin, start = goes_to(worker.api, request.kind)
    head = forwarded_head(request, start, len(body))
    return Call(places.at(origin), head, body)
