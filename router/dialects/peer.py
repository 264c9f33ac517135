"""Another node: our own OpenAI face plus a hop header, over a link. What it answers has been looked at over there.

With its answer it says how busy the worker is: the newest word on that replica, which no caller sees.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from router import readiness, reports, verbatim
from router.candidates import Candidate
from router.connections import start_of
from router.described import Described
from router.dialects import Answer, Route
from router.errors import (
    WorkerAway,
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerStale,
    WorkerUnable,
)
from router.exchange import (
    MAX_REFUSAL_BYTES,
    Call,
    Exchange,
    Sending,
    busy,
    headers_of,
    read_plain,
    refusal,
)
from router.links import Links
from router.passing import headers_of as headers_in_words
from router.requests import Kind, Request
from router.sse import SILENT_BYTES, Opening
from router.usage import TEXT
from router.verbatim import Verbatim, takes
from router.workers import Worker

HOP_HEADER = "x-modelvine-hop"
PROJECT_HEADER = "x-modelvine-project"
CID_HEADER = "x-modelvine-cid"
WAIT_HEADER = "x-modelvine-wait"
"""Says that the asker knows nobody else to ask, so the request may queue; without it a full node refuses at once."""

READY = "ready"
"""The value of that header which says that the request may also wait for a worker to be ready: nobody else serves the model."""


class Peer:
    """Speaks to other nodes."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @asynccontextmanager
    async def answer(self, request: Request, candidate: Candidate) -> AsyncIterator[Answer]:
        """Send the request on and enter once the first byte is there; raise a `WorkerError` until then."""
        headers = headers_of(request)
        headers[HOP_HEADER] = self._links.identity.peer
        headers[PROJECT_HEADER] = candidate.service.project
        headers[CID_HEADER] = candidate.service.cid
        if request.waits:
            headers[WAIT_HEADER] = READY if request.holds else "1"
        body, said = request.body, request.verbatim
        if said and takes(said, candidate.service):
            if len(body) + len(said.body) <= self._links.settings.max_body_bytes:
                headers[verbatim.HEADER] = verbatim.written(said)
                body += said.body
            elif said.needs:
                raise WorkerUnable("the request is too long for its own words", param=said.needs)
        async with self._links.to(candidate.node) as link:
            start = start_of(link.base.with_path(f"/v1/{request.kind.value}"))
            call = Call(link.place, start, headers, body)

            async def read(exchange: Exchange) -> Answer:
                if not 200 <= exchange.status <= 299:
                    raise await _refusal(exchange, request.kind)
                if exchange.streamed:
                    answer = await _stream(exchange, link.route)
                else:
                    answer = await read_plain(exchange, link.route)
                answer.load = reports.read(exchange.header(reports.HEADER))
                if spoken := _words(exchange, said):
                    answer.verbatim = spoken
                    answer.headers = {**answer.headers, **headers_in_words(exchange)}
                return answer

            async with Sending(call, self._links.settings, link.deadlines, read) as answer:
                yield answer

    async def alive(self, worker: Worker) -> bool:  # noqa: ARG002
        """Whether nodes live, the registry's own probes find out."""
        return True

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        """How many requests a peer's replica takes, its node reports."""
        return 0

    async def describe(self, worker: Worker) -> Described | None:  # noqa: ARG002
        """What a peer's models are, its record says."""
        return Described()


def _words(exchange: Exchange, said: Verbatim | None) -> str:
    """Return the protocol in whose words an answer is; raise `WorkerFailed` where its caller has others."""
    spoken = exchange.header(verbatim.HEADER)
    if spoken and (said is None or spoken != said.protocol):
        raise WorkerFailed("the node that was asked answers in words of another protocol")
    return spoken


def create(links: Links) -> Peer:
    """Make the dialect."""
    return Peer(links)


async def _stream(exchange: Exchange, route: Route) -> Answer:
    """Make an answer that begins with the first event: a comment only says that its node waits as well."""
    opening, raw = Opening(), bytearray()
    while chunk := await exchange.some():
        raw += chunk
        said = opening.take(chunk)
        if said.startswith(b'{"error"'):
            raise WorkerFailed("the node that was asked found nobody who answers")
        if said:
            return exchange.answer(bytes(raw), route)
        if len(raw) > SILENT_BYTES:
            raise WorkerFailed(f"the stream said nothing in {SILENT_BYTES:,} bytes")
    raise WorkerFailed("the stream ended before its first event")


async def _refusal(exchange: Exchange, kind: Kind) -> WorkerError:
    if exchange.status == 400:
        body = (await exchange.at_most(MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES]
        return _unable(body) or WorkerRejected(400, body)
    if exchange.status == 404:
        return _not_there(await exchange.at_most(MAX_REFUSAL_BYTES), kind)
    if exchange.status == 503:
        body = await exchange.at_most(MAX_REFUSAL_BYTES)
        loading = readiness.said(body) if b'"model_loading"' in body else None
        # The node is well, but none of its workers answered or it drains: for a caller that is no bad gateway.
        return loading or WorkerAway("nobody who serves this model answers at its node now")
    if exchange.status == 429:
        # Its worker may ask to be left alone; that its queue is full just now is no such word.
        body = await exchange.at_most(MAX_REFUSAL_BYTES)
        said = busy(exchange)
        return WorkerBusy(str(said), retry_after=said.retry_after, named=b'"worker_busy"' in body)
    return await refusal(exchange)


def _not_there(body: bytes, kind: Kind) -> WorkerError:
    if b'"model_not_found"' in body:
        return WorkerStale("the node does not serve this model any more")
    if kind in TEXT:
        return WorkerFailed("the node has no such path")
    # It is of a version that knows no such requests; with others of the model it is well.
    return WorkerUnable(f"the node does not serve /v1/{kind}", param="model")


def _unable(body: bytes) -> WorkerUnable | None:
    """Read that the protocol of the worker over there has no word for what is asked: another's may."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    match said:
        case {"error": {"code": WorkerUnable.code, "message": str(message), **rest}}:
            param = rest.get("param")
            return WorkerUnable(message, param=param if isinstance(param, str) else "")
    return None
