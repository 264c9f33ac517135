"""Receiver of OTLP over HTTP that decodes with OpenTelemetry's own messages, and keeps the spans and histograms."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

KINDS = {1: "internal", 2: "server", 3: "client"}
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class GotSpan:
    """One span, with its process's attributes in `resource`; ids are hexadecimal, times nanoseconds."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, object]
    events: tuple[str, ...]
    resource: dict[str, object]
    schema: str


@dataclass(frozen=True, slots=True)
class GotHistogram:
    """One data point of a histogram, with its process's attributes in `resource`; times are nanoseconds."""

    name: str
    unit: str
    attributes: dict[str, object]
    began: int
    at: int
    count: int
    sum: float
    counts: tuple[int, ...]
    bounds: tuple[float, ...]
    cumulative: bool
    resource: dict[str, object]
    schema: str


@dataclass
class Receiver:
    """What was received. `status` is the status of each answer."""

    url: str = ""
    status: int = 200
    spans: list[GotSpan] = field(default_factory=list)
    histograms: list[GotHistogram] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def take_spans(self, request: web.Request) -> web.Response:
        body = await self._taken(request)
        if self.status == 200:
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        return self._answer(ExportTraceServiceResponse().SerializeToString())

    async def take_metrics(self, request: web.Request) -> web.Response:
        body = await self._taken(request)
        if self.status == 200:
            self.histograms += _histograms(ExportMetricsServiceRequest.FromString(body))
        return self._answer(ExportMetricsServiceResponse().SerializeToString())

    async def _taken(self, request: web.Request) -> bytes:
        body = await request.read()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status == 200:
            self.raw.append(body)
        return body

    def _answer(self, body: bytes) -> web.Response:
        return web.Response(status=self.status, body=body, content_type=PROTOBUF)

    def of(self, trace: str) -> list[GotSpan]:
        """Return the spans of one trace in the order in which they began."""
        return sorted((s for s in self.spans if s.trace == trace), key=lambda s: s.began)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver at a free port of loopback."""
    receiver = Receiver()
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/traces", receiver.take_spans),
            web.post("/v1/metrics", receiver.take_metrics),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/v1/traces"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def _spans(request: ExportTraceServiceRequest) -> list[GotSpan]:
    return [
        GotSpan(
            span.name,
            KINDS[span.kind],
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code == 2,
            _values(span.attributes),
            tuple(event.name for event in span.events),
            _values(of_process.resource.attributes),
            of_scope.schema_url,
        )
        for of_process in request.resource_spans
        for of_scope in of_process.scope_spans
        for span in of_scope.spans
    ]


def _histograms(request: ExportMetricsServiceRequest) -> list[GotHistogram]:
    return [
        GotHistogram(
            metric.name,
            metric.unit,
            _values(point.attributes),
            point.start_time_unix_nano,
            point.time_unix_nano,
            point.count,
            point.sum,
            tuple(point.bucket_counts),
            tuple(point.explicit_bounds),
            metric.histogram.aggregation_temporality == 2,
            _values(of_process.resource.attributes),
            of_scope.schema_url,
        )
        for of_process in request.resource_metrics
        for of_scope in of_process.scope_metrics
        for metric in of_scope.metrics
        for point in metric.histogram.data_points
    ]


def _values(attributes) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
