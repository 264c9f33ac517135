"""Tracing: the choice of traced requests, and a request's spans, which are made at its end from its account and its trace.

While a request runs, only the ids that are passed on are made. A span holds names, numbers and classes of errors: never the
content of a request or answer, a key, its user's name, or a caller's address.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from yarl import URL

from node import __version__
from node.config.addresses import host_port
from node.config.settings import NodeSettings
from node.observe import genai
from registry.clock import Clock, RandomSource
from registry.records import PeerId
from registry.values import replace_fields
from router.peers.headers import PARENT
from router.requests import PassedHeaders, Request
from router.trace import SAMPLED, AttemptTrace, Trace, parent_of

if TYPE_CHECKING:
    from node.faces.access_log import Account

Value = str | int | float | bool

MAX_NAME = 256
"""Characters that are kept of a model's name, which a caller may choose freely."""

_FAILED = 500
_REFUSED = 400
_NANOSECONDS = 1_000_000_000
_UNSAMPLED, _RECORDED = "00", "01"
_HIDDEN = re.compile(r"[^\x20-\x7e\xa1-\U0010ffff]")


class SpanKind(Enum):
    """Kind of a span: an answer that is given, one that is asked for, or something within this process."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Event within a span; `at` is Unix time in nanoseconds."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Span:
    """One exported span. `began` and `ended` are Unix time in nanoseconds; a `failed` span has the status ERROR."""

    name: str
    kind: SpanKind
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: Mapping[str, Value]
    failed: bool = False
    events: Sequence[SpanEvent] = ()


class RandomIds:
    """Generator of ids of traces and spans, random as W3C's Trace Context requires."""

    def trace(self) -> str:
        """Return the id of a new trace, 32 hexadecimal digits."""
        return secrets.token_hex(16)

    def span(self) -> str:
        """Return the id of a new span, 16 hexadecimal digits."""
        return secrets.token_hex(8)


class SpanExporter(Protocol):
    """Destination of spans."""

    def take(self, spans: Iterable[Span]) -> None:
        """Take the spans of an ended request, or drop them; never wait."""

    def close(self) -> None:
        """Send the spans taken so far; may block for some seconds."""


@dataclass(frozen=True, slots=True)
class Tracer:
    """Tracer of requests: it decides which are traced, and exports the spans of each at its end.

    `share` is the share of traced requests among those whose caller made no decision. `server` is host and port of this
    node's face.
    """

    exporter: SpanExporter
    node: PeerId
    server: tuple[str, int]
    share: float
    now: Clock
    wall: Clock
    chance: RandomSource
    ids: RandomIds = field(default_factory=RandomIds)

    def begin(self, request: Request, account: "Account") -> Request:
        """Return the request that goes on: if it is traced, with a trace, which its account gets too.

        If this node decides not to trace it, the request carries that decision to the next hop.
        """
        parent_header = request.passed.get(PARENT)
        if parent_header is not None:
            _, trace, parent, flags = parent_header.split("-")[:4]
            if not int(flags, 16) & SAMPLED:
                return request
        else:
            trace, parent, flags = self.ids.trace(), "", _RECORDED
            if self.chance() >= self.share:
                unsampled = parent_of(trace, self.ids.span(), _UNSAMPLED)
                return replace_fields(
                    request, passed=PassedHeaders({**request.passed, PARENT: unsampled})
                )
        account.trace = Trace(
            trace,
            self.ids.span(),
            flags,
            self.now(),
            self.ids,
            parent=parent,
            streams=request.stream,
        )
        return replace_fields(request, trace=account.trace)

    def ended(self, account: "Account", trace: Trace) -> None:
        """Export the spans of a request whose account is concluded."""
        offset = self.wall() - self.now()
        self.exporter.take(spans_of(account, trace, self, offset))


def exporter_of(settings: NodeSettings, node: PeerId, counts: Counter[str]) -> SpanExporter | None:
    """Return the exporter of spans to the collector of `node.traces`, or `None` without one; raise `ValueError`.

    `counts` counts the spans that were `sent` and `dropped`.
    """
    if not settings.traces:
        return None
    exporter = library().OtlpExporter(settings.traces, resource_of(node), counts)
    return cast("SpanExporter", exporter)


def library() -> ModuleType:
    """Return the module that sends to collectors; raise `ValueError` if its dependencies are not installed."""
    try:
        return import_module("node.observe.otlp")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("opentelemetry", "google"):
            raise
        raise ValueError(
            'node.traces needs an extra: make extras, or pip install "modelvine[otel]"'
        ) from error


def resource_of(node: PeerId) -> Mapping[str, Value]:
    """Return the attributes of this process, by which a collector distinguishes nodes."""
    return {
        genai.SERVICE: "modelvine",
        genai.SERVICE_VERSION: __version__,
        genai.INSTANCE: node,
    }


def tracer_of(
    exporter: SpanExporter | None,
    settings: NodeSettings,
    node: PeerId,
    *,
    now: Clock,
    wall: Clock,
    random: RandomSource,
) -> Tracer | None:
    """Return the tracer that uses an exporter, or `None` without one."""
    if exporter is None:
        return None
    face = host_port(settings.http)
    server = face.host, face.port
    return Tracer(exporter, node, server, settings.trace_share, now, wall, random)


class AnsweringNode(Protocol):
    """Node that answered a request."""

    @property
    def node(self) -> PeerId:
        """Id of this node."""

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of its face."""


def spans_of(account: "Account", trace: Trace, node: AnsweringNode, offset: float) -> list[Span]:
    """Return the spans of one ended request; `offset` is the seconds to add to its clock for Unix time."""
    spans = _SpansOf(account, trace, node, offset)
    attempts = chain.from_iterable(map(spans.attempt, filter(_was_sent, trace.attempts)))
    return [spans.face(), spans.choice(), *attempts]


def _was_sent(attempt: AttemptTrace) -> bool:
    return attempt.began > 0


@dataclass(frozen=True, slots=True)
class _SpansOf:
    account: "Account"
    trace: Trace
    place: AnsweringNode
    offset: float

    def face(self) -> Span:
        """Return the span of the answer that this node gave."""
        account, trace = self.account, self.trace
        host, port = self.place.server
        attributes = {
            **self._asked(account.model),
            genai.STREAM: trace.streams,
            genai.REQUEST_ID: account.id,
            genai.NODE: self.place.node,
            genai.SERVER: host,
            genai.PORT: port,
            genai.STATUS: account.status,
            genai.ATTEMPTS: account.attempts,
        }
        answered = [attempt for attempt in trace.attempts if attempt.route]
        if answered:
            attributes[genai.ROUTE] = account.route
            attributes[genai.RESPONSE_MODEL] = answered[-1].candidate.service.model
        if account.first_byte_seconds and trace.streams:
            attributes[genai.FIRST_CHUNK] = account.first_byte_seconds
        if account.used is not None and answered:
            attributes[genai.INPUT_TOKENS] = account.used.prompt
            attributes[genai.OUTPUT_TOKENS] = account.used.completion
            if account.used.cached:
                attributes[genai.CACHED_TOKENS] = account.used.cached
        if account.status >= _REFUSED:
            attributes[genai.ERROR] = account.error or str(account.status)
        began = account.began
        first = [SpanEvent(genai.FIRST_BYTE, self._at(began + account.first_byte_seconds))]
        return self._span(
            f"{genai.operation_of(account.kind)} {shown_model(account.model)}",
            SpanKind.SERVER,
            (trace.span, trace.parent),
            (began, began + account.seconds),
            attributes,
            failed=account.status >= _FAILED,
            events=first if account.first_byte_seconds else (),
        )

    def choice(self) -> Span:
        """Return the span of the choice: from the read request to the first attempt, including a wait for a slot."""
        account, trace = self.account, self.trace
        chosen = next(filter(_was_sent, trace.attempts), None)
        attributes: dict[str, Value] = {genai.CANDIDATES: 0}
        ended = account.began + account.seconds
        if chosen is not None:
            ended = chosen.began
            attributes = {genai.CANDIDATES: chosen.others + 1, genai.NODE: chosen.candidate.node}
            if chosen.expected >= 0:
                attributes[genai.EXPECTED] = chosen.expected
        elif account.error:
            attributes[genai.ERROR] = account.error
        return self._span(
            f"choose {shown_model(account.model)}",
            SpanKind.INTERNAL,
            (trace.ids.span(), trace.span),
            (trace.asked, ended),
            attributes,
            failed=chosen is None and account.status >= _FAILED,
        )

    def attempt(self, attempt: AttemptTrace) -> list[Span]:
        """Return the span of one attempt and, within it, that of the call to this machine's worker."""
        candidate = attempt.candidate
        failed = bool(attempt.error)
        outcome = "failed" if failed else "answered" if attempt.route else "cancelled"
        error: dict[str, Value] = {genai.ERROR: attempt.error} if failed else {}
        attributes: dict[str, Value] = {
            genai.ATTEMPT: attempt.number,
            genai.OUTCOME: outcome,
            genai.NODE: candidate.node,
            **error,
        }
        if attempt.route:
            attributes[genai.ROUTE] = attempt.route
        if attempt.expected >= 0:
            attributes[genai.EXPECTED] = attempt.expected
        span = self._span(
            f"attempt {shown_model(candidate.service.model)}",
            SpanKind.INTERNAL if candidate.worker else SpanKind.CLIENT,
            (attempt.id, self.trace.span),
            (attempt.began, attempt.ended),
            attributes,
            failed=failed,
        )
        return [span, self._call(attempt, error)] if candidate.worker else [span]

    def _call(self, attempt: AttemptTrace, error: Mapping[str, Value]) -> Span:
        candidate = attempt.candidate
        attributes = {
            **self._asked(self.account.model),
            genai.DIALECT: candidate.dialect,
            **error,
        }
        # Only host and port of a worker's address, as in the log: its path and query may hold a key.
        url = URL(candidate.address)
        if url.host:
            attributes |= {genai.SERVER: url.host, genai.PORT: url.port or 0}
        if attempt.route:
            attributes[genai.RESPONSE_MODEL] = candidate.service.model
            attributes[genai.STATUS] = attempt.status
            if self.trace.streams:
                attributes[genai.FIRST_CHUNK] = attempt.first_byte - attempt.began
            if (used := attempt.usage) is not None and (used.completion or not used.estimated):
                attributes[genai.INPUT_TOKENS] = used.prompt
                attributes[genai.OUTPUT_TOKENS] = used.completion
        operation = genai.operation_of(self.account.kind)
        return self._span(
            f"{operation} {shown_model(candidate.service.model)}",
            SpanKind.CLIENT,
            (attempt.call, attempt.id),
            (attempt.began, attempt.ended),
            attributes,
            failed=bool(error),
        )

    def _asked(self, model: str) -> dict[str, Value]:
        return {
            genai.OPERATION: genai.operation_of(self.account.kind),
            genai.PROVIDER: genai.OWN_PROVIDER,
            genai.REQUEST_MODEL: shown_model(model),
        }

    def _span(
        self,
        name: str,
        kind: SpanKind,
        ids: tuple[str, str],
        times: tuple[float, float],
        attributes: Mapping[str, Value],
        *,
        failed: bool,
        events: Sequence[SpanEvent] = (),
    ) -> Span:
        began, ended = map(self._at, times)
        span, parent = ids
        return Span(
            name=name,
            kind=kind,
            trace=self.trace.id,
            id=span,
            parent=parent,
            began=began,
            # A span without an end ends with its request.
            ended=ended if ended >= began else self._at(self.account.began + self.account.seconds),
            attributes=attributes,
            failed=failed,
            events=events,
        )

    def _at(self, time: float) -> int:
        return int((time + self.offset) * _NANOSECONDS)


def shown_model(model: str) -> str:
    """Return a model's name as it is exported: cut to `MAX_NAME`, with `?` for control and invisible characters."""
    return _HIDDEN.sub("?", model[:MAX_NAME])
