"""Live view of a node: the caller's rights, current and recent requests, the last hour, and an event with the news each second.

`/api/v1/events` is a stream of server-sent events. Each event is made once for all readers; a reader has no queue, and is cut off
if it is too slow. Names of keys are shown only to callers that may change the node, the content of requests to no one.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from node import __version__
from node.auth.errors import AuthError, RoleNotAllowed
from node.auth.principal import ANYBODY, PRINCIPAL
from node.auth.usage_history import BUCKET
from node.faces import Context, UserRoute
from node.faces.access_log import Account
from node.faces.errors import NotAllowed, TooManyConnections, UnknownRequest
from node.faces.request_reader import StreamedResponse, count_in_query, done
from node.faces.v1.network import node_rows, strays
from node.faces.v1.route import reason
from node.observe.recent import MAX_REMEMBERED, FailedAttempt, RecentRequests
from router.select.candidates import Candidate, Excluded

PERIOD = 1.0
"""Seconds between two events."""

NODES_EVERY = 5
"""Events after which the nodes are shown again even without news of them: their loads change all the time."""

MAX_READERS = 32
"""The most concurrent streams; each is a connection and some kilobytes a second."""

MAX_SHOWN = 200
"""The most requests of each sort in one event; a client that sees that some are missing requests the list."""

SLOW_SECONDS = 10.0
"""Seconds that a reader may take for one event."""

MAX_CONSIDERED = 12
"""The most candidates that are shown of one request."""

_DOUBTS = ("unreachable", "ejected", "suspect", "held_back", "tight")

MAX_MODEL = 100
"""The most characters of a model's name that are shown: a request may name any model, served or not."""


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    feed = Feed(context)

    async def me(request: web.Request) -> web.Response:
        return done(**_me(context, request))

    async def requests(request: web.Request) -> web.Response:
        number = count_in_query(request, default=MAX_REMEMBERED, at_most=MAX_REMEMBERED)
        return done(**_requests(context, number, keys=_may_change(context, request)))

    async def cancel(request: web.Request) -> web.Response:
        context.access.check_change(request)
        id_ = request.match_info["id"]
        cut = _cut(context, id_)
        await context.audited(request, "cancel request", id_)
        return done(cut=cut)

    async def history(request: web.Request) -> web.Response:
        return done(**_history(context, request.query.get("model", "")))

    async def node_events(_: web.Request) -> web.Response:
        recent_events = context.node_events
        return done(
            count=recent_events.count,
            events=[asdict(event) for event in reversed(recent_events.events)],
        )

    async def events(request: web.Request) -> web.StreamResponse:
        return await feed.serve(request)

    return [
        web.get("/api/v1/me", me, asks=UserRoute(elsewhere=True)),
        web.get("/api/v1/requests", requests),
        web.post("/api/v1/requests/{id}/cancel", cancel),
        web.get("/api/v1/history", history),
        web.get("/api/v1/node-events", node_events),
        web.get("/api/v1/events", events),
    ]


class Feed:
    """Source of the event stream, whose events are made once a second for all readers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._readers = 0
        self._tick = -1
        self._events: dict[bool, bytes] = {}
        self._requests = self._node_events = 0
        """The counts of ended requests and of node events that earlier events have shown."""
        self._changes, self._nodes_at = -1, -NODES_EVERY

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send one reader an event a second for as long as it may view the node; raise `TooManyConnections`."""
        if self._readers >= MAX_READERS:
            raise TooManyConnections(f"{MAX_READERS} consoles are open already; close one")
        keys = _may_change(self._context, request)
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        response = StreamedResponse(headers=headers)
        self._readers += 1
        try:
            await response.prepare(request)
            while self._context.access.may_view(request):
                async with asyncio.timeout(SLOW_SECONDS):
                    await response.write(self.event(time.monotonic(), keys=keys))
                await asyncio.sleep(PERIOD - time.monotonic() % PERIOD)
            await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._readers -= 1
        return response

    def event(self, now: float, *, keys: bool) -> bytes:
        """Return the event of this second, with or without the names of keys."""
        tick = int(now / PERIOD)
        if tick != self._tick:
            self._tick = tick
            self._events = self._made(tick)
        return self._events[keys]

    def _made(self, tick: int) -> dict[bool, bytes]:
        context, recent = self._context, self._context.metrics.recent
        message: dict[str, Any] = {"at": time.time(), "count": recent.count}
        node_events = context.node_events
        if self._changes != node_events.changes or tick >= self._nodes_at + NODES_EVERY:
            self._changes, self._nodes_at = node_events.changes, tick
            message |= {"nodes": node_rows(context), **strays(context)}
        if new := min(node_events.count - self._node_events, MAX_SHOWN):
            message["events"] = [asdict(account) for account in list(node_events.events)[-new:]]
            self._node_events = node_events.count
        ended = recent.since(self._requests)[-MAX_SHOWN:]
        self._requests = recent.count
        under_way = list(recent.under_way)[:MAX_SHOWN]
        failed = failed_by_request(recent)
        return {
            keys: _event(
                {
                    **message,
                    "under_way": [
                        request_row(context, account, failed, keys=keys) for account in under_way
                    ],
                    "ended": [
                        request_row(context, account, failed, keys=keys) for account in ended
                    ],
                }
            )
            for keys in (False, True)
        }


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _may_change(context: Context, request: web.Request) -> bool:
    try:
        context.access.check_change(request)
    except (NotAllowed, RoleNotAllowed):
        return False
    return True


def _me(context: Context, request: web.Request) -> dict[str, Any]:
    """Return the caller's identity and rights, so that a page shows only what the caller may use."""
    principal = request.get(PRINCIPAL, ANYBODY)
    may = {"ask": principal.check_models, "look": principal.check_view}
    allowed = {name: _passes(check) for name, check in may.items()}
    return {
        "name": principal.name,
        "role": principal.key.role if principal.key else "",
        "may": {**allowed, "change": _may_change(context, request)},
        "node": context.peer,
        "node_name": context.registry.own_record.name,
        "version": __version__,
    }


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except AuthError:
        return False
    return True


def _requests(context: Context, number: int, *, keys: bool) -> dict[str, Any]:
    recent = context.metrics.recent
    ended = recent.since(recent.count - number)
    failed = failed_by_request(recent)
    return {
        "count": recent.count,
        # Each process keeps its own requests, and these are the first one's.
        "processes": context.aggregate.processes,
        "under_way": [
            request_row(context, account, failed, keys=keys) for account in recent.under_way
        ][:MAX_REMEMBERED],
        "ended": [request_row(context, account, failed, keys=keys) for account in reversed(ended)],
    }


def _cut(context: Context, id_: str) -> int:
    """Abort the connections of a request's callers, as if they had hung up, and return their number; raise `UnknownRequest`.

    A request from another node belongs to that node's caller, and is cancelled there.
    """
    accounts = [
        account.http.transport
        for account in context.metrics.recent.under_way
        if account.id == id_ and account.http is not None and not account.asker
    ]
    transports = [transport for transport in accounts if transport is not None]
    if not transports:
        raise UnknownRequest("no such HTTP request is in flight in this process")
    for transport in transports:
        transport.abort()
    return len(transports)


def failed_by_request(recent: RecentRequests) -> Mapping[str, list[FailedAttempt]]:
    """Return the failed attempts, by the ids of their requests."""
    failures: dict[str, list[FailedAttempt]] = {}
    for attempt in recent.failed:
        failures.setdefault(attempt.request, []).append(attempt)
    return failures


def request_row(
    context: Context,
    account: Account,
    failed: Mapping[str, Iterable[FailedAttempt]],
    *,
    keys: bool,
) -> dict[str, Any]:
    """Return the row of one request; `at` is Unix time, durations are in seconds."""
    running = account.seconds < 0
    age = context.now() - account.began
    used = account.used
    return {
        "id": account.id,
        "at": round(time.time() - age, 3),
        "kind": account.kind,
        "model": account.model[:MAX_MODEL],
        "node": account.node,
        "route": account.route,
        "attempts": account.attempts,
        **_chosen(account),
        "excluded": [
            _left_out(failure) for failure in context.router.exclusions.excluded_for(account.id)
        ],
        "status": 0 if running else account.status,
        "first": round(account.first_byte_seconds, 4) or None,
        "seconds": round(age if running else account.seconds, 4),
        "taken": account.request_bytes,
        "sent": account.answer_bytes,
        "tokens": None
        if used is None
        else {
            "prompt": used.prompt,
            "completion": used.completion,
            "cached": used.cached or 0,
            "estimated": used.estimated,
        },
        "for_node": bool(account.asker),
        "failure": account.failure.strip(),
        "failed": [asdict(failure) for failure in failed.get(account.id, ())],
        **({"key": account.key} if keys else {}),
    }


def _chosen(account: Account) -> dict[str, Any]:
    """Return the replica that answers, and all candidates as they were when it was chosen, in the order of trying."""
    if (candidate := account.candidate) is None:
        return {"project": "", "cid": "", "expected": None, "considered": []}
    considered = [_looked(one) for one in (candidate, *account.others[: MAX_CONSIDERED - 1])]
    service, expected = candidate.service, considered[0]["expected"]
    return {
        "project": service.project,
        "cid": service.cid,
        "expected": expected,
        "considered": considered,
    }


def _looked(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate as it was estimated: requests there, slots, kilobytes of the request in its cache, doubts."""
    return {
        "node": candidate.node,
        "project": candidate.service.project,
        "cid": candidate.service.cid,
        "expected": round(candidate.expected_requests, 2),
        "slots": candidate.slots,
        "cached": round(candidate.cached_kilobytes, 1),
        "doubts": [doubt for doubt in _DOUBTS if getattr(candidate, doubt)],
    }


def _left_out(exclusion: Excluded) -> dict[str, Any]:
    """Return a replica that routing excluded; `retry_in` are the seconds for which it was excluded at that time."""
    service = exclusion.candidate.service
    return {
        "node": exclusion.candidate.node,
        "project": service.project,
        "model": service.model[:MAX_MODEL],
        "cid": service.cid,
        "reason": reason(exclusion),
        "retry_in": round(exclusion.seconds, 3),
    }


def _history(context: Context, model: str) -> dict[str, Any]:
    """Return the last hour: of all models in sums, or of one model with its buckets too."""
    history = context.usage_log.history
    rows = []
    for name, node in history.pairs():
        if model not in ("", name):
            continue
        row = {"model": name, "node": node, **asdict(history.total(name, node))}
        if model:
            row["buckets"] = [asdict(bucket) for bucket in history.buckets(name, node)]
        rows.append(row)
    return {"bucket": BUCKET, "until": time.time(), "history": rows}
