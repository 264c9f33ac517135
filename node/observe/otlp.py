"""Export of spans and measurements to a collector: OTLP over HTTP, from threads. Only this module knows OpenTelemetry's SDK.

The SDK's own exporter adds headers and certificates that it finds in the environment (`OTEL_EXPORTER_…`), even if they are meant
for another program. So this module makes the requests itself, and uses no proxy from the environment.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import cast
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from node.observe import genai, tracing
from node.observe.measurements import HistogramValue, Measurements
from registry.clock import Clock

log = logging.getLogger("modelvine.traces")

MAX_WAITING = 8_192
"""Spans that may wait for the collector: those of some two thousand requests. Further ones are dropped."""

BATCH = 512
"""Spans of one message."""

EVERY = 1.0
"""Seconds between two messages."""

MEASUREMENTS_EVERY = 10.0
"""Seconds between two messages of measurements."""

TIMEOUT = 5.0
"""Seconds that a collector may take; the end of a process waits for it as long at most, once or twice."""

SENT, DROPPED = "sent", "dropped"

_KINDS = {
    tracing.SpanKind.SERVER: SpanKind.SERVER,
    tracing.SpanKind.CLIENT: SpanKind.CLIENT,
    tracing.SpanKind.INTERNAL: SpanKind.INTERNAL,
}
_SCOPE = InstrumentationScope("modelvine", schema_url=genai.SCHEMA)


class CollectorEndpoint:
    """Collector's endpoint for one sort of data. A collector that fails is logged once, and again when it is back."""

    def __init__(self, url: str, sort: str, otherwise: str) -> None:
        """`sort` names the data, and `otherwise` tells what happens to it while the collector fails."""
        self._url = url
        self._sort = sort
        self._otherwise = otherwise
        self._opener = OpenerDirector()
        self._opener.add_handler(HTTPHandler())
        self._opener.add_handler(HTTPSHandler())
        self.away = False

    def post(self, body: bytes) -> bool:
        """Send a message once, and return whether it was accepted. Blocks."""
        headers = {"Content-Type": "application/x-protobuf"}
        try:
            request = Request(self._url, body, headers)  # noqa: S310 (http or https, as the settings are checked)
            with self._opener.open(request, timeout=TIMEOUT) as response:
                problem = f"it answers with status {response.status}"
                well = bool(200 <= response.status <= 299)
        except (OSError, HTTPException) as error:
            problem, well = f"{type(error).__name__}: {error}", False
        if not well and not self.away:
            log.warning(
                "%s %s until the collector of node.traces accepts them: %s",
                self._sort, self._otherwise, problem,
            )  # fmt: skip
        elif well and self.away:
            log.info("the collector of node.traces accepts %s again", self._sort)
        self.away = not well
        return well


class Collector(SpanExporter):
    """The collector, as called by the SDK's thread."""

    def __init__(self, endpoint: str, counts: Counter[str]) -> None:
        self._endpoint = CollectorEndpoint(endpoint, "spans", "are dropped")
        self._counts = counts
        self.taken = 0
        """Spans that have left the queue."""
        self.closing = False
        """Whether the process ends; then spans are dropped once the collector has failed."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans once: a failing collector must not delay newer spans."""
        self.taken += len(spans)
        if self.closing and self._endpoint.away:
            self._counts[DROPPED] += len(spans)
            return SpanExportResult.FAILURE
        well = self._endpoint.post(encode_spans(spans).SerializeToString())
        self._counts[SENT if well else DROPPED] += len(spans)
        return SpanExportResult.SUCCESS if well else SpanExportResult.FAILURE


class OtlpExporter:
    """A `tracing.SpanExporter` to a collector. `counts` counts the spans that were `sent` and `dropped`."""

    def __init__(
        self, endpoint: str, resource: Mapping[str, tracing.Value], counts: Counter[str]
    ) -> None:
        # The library would log each failure; failures are counted, and logged once, here.
        library = logging.getLogger("opentelemetry")
        library.addHandler(logging.NullHandler())
        library.propagate = False
        self._counts = counts
        self._resource = Resource(dict(resource), genai.SCHEMA)
        self._collector = Collector(endpoint, counts)
        self._given_count = 0
        self._full = False
        self._queue = BatchSpanProcessor(
            self._collector,
            max_queue_size=MAX_WAITING,
            schedule_delay_millis=EVERY * 1_000,
            max_export_batch_size=BATCH,
            export_timeout_millis=TIMEOUT * 1_000,
            meter_provider=NoOpMeterProvider(),
        )

    def take(self, spans: Iterable[tracing.Span]) -> None:
        """Queue spans for sending; drop them if the queue is full."""
        batch = [*spans]
        if self._given_count - self._collector.taken + len(batch) > MAX_WAITING:
            self._counts[DROPPED] += len(batch)
            if not self._full:
                log.warning("spans are dropped: %s wait for the collector", f"{MAX_WAITING:,}")
            self._full = True
            return
        self._full = False
        self._given_count += len(batch)
        for span in batch:
            self._queue.on_end(self._read(span))

    def close(self) -> None:
        """Send the waiting spans, and end the thread. Blocks for as long as the collector takes."""
        self._collector.closing = True
        self._queue.shutdown()  # type: ignore[no-untyped-call]

    def _read(self, span: tracing.Span) -> ReadableSpan:
        trace, flags = int(span.trace, 16), TraceFlags(TraceFlags.SAMPLED)
        remote = span.kind is tracing.SpanKind.SERVER
        parent = SpanContext(trace, int(span.parent, 16), is_remote=remote) if span.parent else None
        return ReadableSpan(
            span.name,
            context=SpanContext(trace, int(span.id, 16), is_remote=False, trace_flags=flags),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, timestamp=event.at) for event in span.events],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=_SCOPE,
        )


class OtlpMeasurements:
    """A `measurements.MeasurementsExporter` to a collector. It sends sums since the start, so a lost message loses nothing."""

    def __init__(
        self,
        url: str,
        resource: Mapping[str, tracing.Value],
        measurements: Measurements,
        wall: Clock,
    ) -> None:
        self._endpoint = CollectorEndpoint(url, "metrics", "are kept")
        self._resource = Resource(dict(resource), genai.SCHEMA)
        self._measurements = measurements
        self._wall = wall
        self._began = self._now()

    async def run(self) -> None:
        """Send the measurements every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(MEASUREMENTS_EVERY)
            await self._send()

    async def close(self) -> None:
        """Send the measurements once more, unless the collector fails."""
        if not self._endpoint.away:
            await self._send()

    async def _send(self) -> None:
        if rows := self._measurements.rows():
            await asyncio.to_thread(self._post, rows, self._now())

    def _post(self, rows: Iterable[HistogramValue], now: int) -> None:
        points: dict[str, list[HistogramDataPoint]] = defaultdict(list)
        for row in rows:
            points[row.instrument].append(self._point(row, now))
        metrics = [_metric(name, of_it) for name, of_it in points.items()]
        scope = ScopeMetrics(_SCOPE, metrics, genai.SCHEMA)
        data = MetricsData([ResourceMetrics(self._resource, [scope], genai.SCHEMA)])
        self._endpoint.post(encode_metrics(data).SerializeToString())

    def _point(self, row: HistogramValue, now: int) -> HistogramDataPoint:
        # Minimum and maximum are optional in the protocol, and meaningless over all time since the start.
        none = cast("float", None)
        return HistogramDataPoint(
            attributes=dict(row.attributes),
            start_time_unix_nano=self._began,
            time_unix_nano=now,
            count=sum(row.counts),
            sum=row.total,
            bucket_counts=row.counts,
            explicit_bounds=genai.INSTRUMENTS[row.instrument].bounds,
            min=none,
            max=none,
        )

    def _now(self) -> int:
        return int(self._wall() * 1_000_000_000)


def _metric(name: str, points: Sequence[HistogramDataPoint]) -> Metric:
    instrument = genai.INSTRUMENTS[name]
    histogram = Histogram(points, AggregationTemporality.CUMULATIVE)
    return Metric(name, instrument.text, instrument.unit, histogram)
