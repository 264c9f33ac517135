"""Dialect for other nodes: the node's own OpenAI face plus a hop header, over a link.

The other node has already checked the answer. With it comes the load of the worker, the newest report on that replica, which
callers do not see.
"""

import time
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from math import ceil

import orjson

from registry.records import Service
from router.answer import NOTHING, Answer, Route
from router.errors import (
    Looped,
    PeerError,
    WorkerAway,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerLoading,
    WorkerStale,
    WorkerUnable,
)
from router.http.answer_headers import facts_of
from router.http.errors import HttpError
from router.http.exchange import REFUSALS, Call, Exchange, SentCall, plain_json, read_plain
from router.http.heads import forwarded_head, header_lines
from router.http.refusals import (
    LOOP_DETECTED,
    MAX_REFUSAL_BYTES,
    busy,
    refusal,
    rejected,
    retry_after,
)
from router.http.reply import Reply
from router.http.service_call import is_answer, read_service
from router.http.verbatim import headers_of as verbatim_headers_of
from router.openai.large_json import SMALL_BYTES
from router.openai.sse import SILENT_BYTES, FirstDataDetector, Splitter
from router.openai.usage import TEXT, has_stream_options
from router.peers.headers import (
    CID,
    LOAD,
    MODEL,
    NODE,
    PATIENCE,
    PROJECT,
    READY,
    SERVICE_TIME,
    TARGET,
    USAGE,
    VERBATIM,
    WAIT,
)
from router.peers.links import Links
from router.peers.paths import Link
from router.requests import SERVICES, Kind, Request
from router.rpc.failures import cleaned
from router.select.candidates import Candidate
from router.services import calls
from router.state import readiness, remote_load, service_time
from router.translate import verbatim
from router.translate.verbatim import Verbatim, accepts
from router.worker_description import WorkerDescription
from router.workers import Worker

MAX_FAILURE_BYTES = 4 * MAX_REFUSAL_BYTES
"""The most bytes that are read of a failure: it contains the worker's own refusal twice, in JSON."""

_REPORTING = REFUSALS | {429, 500, 502, 503, 504, LOOP_DETECTED}
"""Statuses that report how a node's workers failed; all other statuses concern the two nodes themselves."""

_AT_ONCE = TEXT | {Kind.EMBEDDING}
_NO_PATIENCE, _MOST_PATIENCE = 0.001, 3_600.0
_WAITS, _HOLDS = header_lines({WAIT: "1"}), header_lines({WAIT: READY})
_USAGE_LINE = header_lines({USAGE: "1"})

_CODES = frozenset({*range(1001, 1020), 5000})


class Peer:
    """Client of other nodes."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def prepare(self, request: Request, candidate: Candidate) -> Call | None:
        """Return what to send for a small text or an embedding, if the way to its node is known."""
        if request.verbatim or request.kind not in _AT_ONCE:
            return None
        if len(request.body) > SMALL_BYTES:
            return None
        link = self._links.known_link(candidate.node)
        return None if link is None else self.call(link, request, candidate)

    def resume(
        self, request: Request, candidate: Candidate, reply: Reply
    ) -> AbstractAsyncContextManager[Answer]:
        """Enter with the reply to what `prepare` returned, which was sent already."""
        return self.answer(request, candidate, None if reply.refused else reply)

    def answer_if_complete(self, candidate: Candidate, reply: Reply) -> Answer | None:  # noqa: ARG002 (as workers' dialects)
        """Return a node's successful JSON answer if it has arrived in one piece."""
        headers = reply.headers
        facts = headers.facts or facts_of(headers)
        body = plain_json(reply, facts)
        if body is None or VERBATIM in headers:
            return None
        content_type, shown = facts.content_type, facts.shown
        answer = Answer(reply.status, content_type, body, NOTHING, Route.DIRECT, len(body), shown)
        if (load := headers.get(LOAD)) is not None:
            answer.load = remote_load.parse_load(load)
        if (learnt := headers.get(SERVICE_TIME)) is not None:
            answer.service_time = service_time.parse_service_time(learnt)
        return answer

    def answer(
        self, request: Request, candidate: Candidate, reply: Reply | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Forward the request; entering waits for the first byte and raises a `WorkerError` until then.

        `reply` is the reply to it if it was sent already.
        """
        return PeerCall(self, self._links, request, candidate, reply)

    def call(self, link: Link, request: Request, candidate: Candidate) -> Call:
        """Return what to send over a link; raise `WorkerUnable` if the caller's own message is needed but too long to add."""
        lines = self._links.introduction_lines + _replica_headers(candidate.service)
        if request.waits:
            lines += _HOLDS if request.holds else _WAITS
        elif request.patience >= _NO_PATIENCE:
            lines += f"{PATIENCE}: {min(request.patience, _MOST_PATIENCE):.3f}\r\n"
        if request.stream and _wants_usage(request):
            lines += _USAGE_LINE
        if request.target is not None:
            target, model = calls.format_target(request.target), candidate.service.model
            lines += header_lines({TARGET: target, MODEL: model})
        body, original = request.body, request.verbatim
        if original and accepts(original, candidate.service):
            if len(body) + len(original.body) <= self._links.settings.max_body_bytes:
                lines += header_lines({VERBATIM: verbatim.format_header(original)})
                body += original.body
            elif original.needs:
                raise WorkerUnable(
                    "the request is too long to be forwarded unchanged", param=original.needs
                )
        head = forwarded_head(request, link.start(request.kind), len(body), lines)
        return Call(link.pool, head, body)

    async def alive(self, worker: Worker) -> bool:  # noqa: ARG002
        """Return true: the registry's own probes find out whether nodes live."""
        return True

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        """Return 0: a peer's node reports how many requests its replica takes."""
        return 0

    async def describe(self, worker: Worker) -> WorkerDescription | None:  # noqa: ARG002
        """Return nothing: a peer's record describes its models."""
        return WorkerDescription()


class PeerCall:
    """A request to another node, entered once, with its answer."""

    __slots__ = ("_candidate", "_links", "_peer", "_reply", "_request", "_sent_call", "_visit")

    def __init__(
        self,
        peer: Peer,
        links: Links,
        request: Request,
        candidate: Candidate,
        reply: Reply | None,
    ) -> None:
        self._peer = peer
        self._links = links
        self._request = request
        self._candidate = candidate
        self._reply = reply
        self._visit = links.visit(candidate.node)
        self._sent_call: SentCall | None = None

    async def __aenter__(self) -> Answer:
        request, links = self._request, self._links
        link = await self._visit.__aenter__()
        try:
            call = self._peer.call(link, request, self._candidate)
            hides = _wants_usage(request)
            read = partial(_read, request=request, route=link.route, hides=hides)
            self._sent_call = SentCall(call, links.settings, link.deadlines, read, self._reply)
            return await self._sent_call.__aenter__()
        except (WorkerError, HttpError) as error:
            self._visit.record_failure(error)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._sent_call is not None:
            await self._sent_call.__aexit__(kind, error, trace)
        if error is not None:
            self._visit.record_failure(error)


def _wants_usage(request: Request) -> bool:
    """Return whether the other node is asked for the usage of a stream because the caller did not ask for it."""
    return request.stream and request.kind in TEXT and not has_stream_options(request.body)


@lru_cache(maxsize=1024)
def _replica_headers(service: Service) -> str:
    return header_lines({PROJECT: service.project, CID: service.cid})


async def _read(exchange: Exchange, request: Request, route: Route, *, hides: bool) -> Answer:
    # For a request to a service, a node that names itself in its answer passes on what its worker answered.
    passed_on = request.target and is_answer(exchange.status) and exchange.header(NODE)
    if not (200 <= exchange.status <= 299 or passed_on):
        raise await _refusal(exchange, request.kind)
    if request.target is not None:
        answer = await read_service(exchange, route)
    elif exchange.streamed:
        answer = await _stream(exchange, route)
    else:
        answer = await read_plain(exchange, route)
    answer.hides_usage = hides
    answer.load = remote_load.parse_load(exchange.header(LOAD))
    answer.service_time = service_time.parse_service_time(exchange.header(SERVICE_TIME))
    if protocol := _answer_protocol(exchange, request.verbatim):
        answer.verbatim = protocol
        answer.headers = {**answer.headers, **verbatim_headers_of(exchange)}
    return answer


def _answer_protocol(exchange: Exchange, original: Verbatim | None) -> str:
    """Return the protocol that an answer is written in; raise `WorkerFailed` if it is not the caller's."""
    protocol = exchange.header(VERBATIM)
    if protocol and (original is None or protocol != original.protocol):
        raise WorkerFailed("the other node answered in another protocol")
    return protocol


def create(links: Links) -> Peer:
    """Create the dialect."""
    return Peer(links)


async def _stream(exchange: Exchange, route: Route) -> Answer:
    """Return an answer that starts with the first event: a comment only says that the other node is waiting too."""
    opening, raw = FirstDataDetector(), bytearray()
    while chunk := await exchange.read_some():
        raw += chunk
        beginning = opening.feed(chunk)
        if beginning.startswith(b'{"error"'):
            raw += await exchange.read_up_to(MAX_FAILURE_BYTES)
            raise _error_in_stream(bytes(raw))
        if beginning:
            return exchange.answer(bytes(raw), route)
        if len(raw) > SILENT_BYTES:
            raise WorkerFailed(f"the stream had no event in {SILENT_BYTES:,} bytes")
    raise WorkerFailed("the stream ended before its first event")


def _error_in_stream(raw: bytes) -> WorkerFailed:
    events = Splitter(max_event_bytes=len(raw)).feed(raw)
    peer_error = next((_read_peer_error(event.data) for event in events if event.data), None)
    message = (
        cleaned(peer_error.message) if peer_error else "the other node has no worker that answers"
    )
    error = WorkerFailed(message)
    error.peer_error = peer_error
    return error


async def _refusal(exchange: Exchange, kind: Kind) -> WorkerError:
    if exchange.status not in _REPORTING:
        if exchange.status == 404 or (exchange.status == 501 and kind in SERVICES):
            return _missing_model_error(await exchange.read_up_to(MAX_REFUSAL_BYTES), kind)
        if exchange.status == 403:
            # This node was lost or away until a moment ago, or is not admitted. In each case the worker has seen nothing.
            return WorkerAway("the other node does not admit this one now", hopeful=True)
        return await refusal(exchange)
    body = await exchange.read_up_to(MAX_FAILURE_BYTES)
    peer_error = _read_peer_error(body, exchange) if exchange.ended else None
    error = _error_for_status(exchange, body[:MAX_REFUSAL_BYTES], peer_error)
    if not isinstance(error, WorkerLoading):
        error.peer_error = peer_error
    return error


def _error_for_status(exchange: Exchange, body: bytes, peer_error: PeerError | None) -> WorkerError:
    status = exchange.status
    message = (
        cleaned(peer_error.message)
        if peer_error
        else f"the other node answered with status {status}"
    )
    if status in REFUSALS:
        return _unsupported_error(peer_error) or rejected(status, body)
    if status == 503:
        return _not_ready_error(exchange, body, message)
    if status == 429:
        # The worker itself may ask for a pause; that the node's queue is full right now is no such request.
        pause = busy(exchange)
        return WorkerBusy(message, retry_after=pause.retry_after, named=b'"worker_busy"' in body)
    if status == 502 and b'"worker_died"' in body:
        return WorkerDied(message)
    return Looped(message) if status == LOOP_DETECTED else WorkerFailed(message)


def _not_ready_error(exchange: Exchange, body: bytes, message: str) -> WorkerError:
    if b'"worker_stale"' in body:
        return WorkerStale(message)
    loading = readiness.loading_error(body) if b'"model_loading"' in body else None
    # The node is well, but none of its workers answered or it drains: for a caller that is no bad gateway. That node knows
    # best whether a worker may be back in a moment.
    return loading or WorkerAway(message, hopeful=exchange.header(WAIT) == READY)


def _read_peer_error(body: bytes, exchange: Exchange | None = None) -> PeerError | None:
    """Read a failure as nodes report it; `None` if it has another shape. The caller bounds its length."""
    try:
        payload = orjson.loads(body)
        orjson.dumps(payload)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    match payload:
        case {"error": {"message": str(message), **error}, **rest}:
            # At the end of a stream, the error object contains what would otherwise be a header.
            after = exchange.header("retry-after") if exchange else str(error.pop("retry_after", 0))
            code = rest.get("code")
            return PeerError(
                message,
                {str(name): value for name, value in error.items() if _is_word(name, value)},
                status=exchange.status if exchange else 0,
                code=code if isinstance(code, int) and code in _CODES else 0,
                retry_after=ceil(retry_after(after, time.time()) or 0),
            )
    return None


def _is_word(name: object, value: object) -> bool:
    """Return whether a field of an error can be shown unchanged. A worker's own fields can."""
    if name == "type":
        return isinstance(value, str)
    return name not in ("code", "param") or value is None or isinstance(value, str | int)


def _missing_model_error(body: bytes, kind: Kind) -> WorkerError:
    if b'"model_not_found"' in body or b'"no_provider"' in body:
        return WorkerStale("the other node no longer serves this model")
    if kind in TEXT:
        return WorkerFailed("the node has no such path")
    # The node runs a version without this kind of request; it still serves the model's other kinds.
    return WorkerUnable(f"the node does not serve /v1/{kind}", param="model")


def _unsupported_error(peer_error: PeerError | None) -> WorkerUnable | None:
    """Return the error if the remote worker's protocol cannot express the request: another worker's may."""
    if peer_error is None or peer_error.error.get("code") != WorkerUnable.code:
        return None
    param = peer_error.error.get("param")
    return WorkerUnable(peer_error.message, param=param if isinstance(param, str) else "")
