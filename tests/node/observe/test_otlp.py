"""Export to a collector by OTLP: where it is away, spans are dropped and counted, and measurements wait."""

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import replace

from node.config.settings import NodeSettings
from node.observe import genai, otlp
from node.observe.measurements import HistogramValue, Measurements, measurements_exporter_of
from node.observe.otlp import DROPPED, SENT, OtlpExporter
from node.observe.tracing import Span, SpanEvent, SpanKind
from tests.otlp_receiver import receiving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FACE = Span(
    "chat llama", SpanKind.SERVER, TRACE, "a" * 16, PARENT, 1_000, 2_000,
    {genai.REQUEST_MODEL: "llama", genai.STATUS: 200, genai.STREAM: True, genai.FIRST_CHUNK: 0.5},
    events=(SpanEvent(genai.FIRST_BYTE, 1_500),),
)  # fmt: skip
ATTRIBUTES = ((genai.OPERATION, "chat"), (genai.REQUEST_MODEL, "llama"))
TIMES = HistogramValue(genai.TIME_PER_OUTPUT, ATTRIBUTES, (0, 2, 1, *(0,) * 11), 0.09)
PROCESS = {genai.SERVICE: "modelvine", genai.INSTANCE: "here"}


async def test_a_span_arrives_as_it_was_made():
    counts = Counter()
    async with receiving() as collector:
        exporter = OtlpExporter(collector.url, PROCESS, counts)
        exporter.take([FACE, replace(FACE, id="b" * 16, parent="", failed=True)])
        await asyncio.to_thread(exporter.close)
    one, two = collector.spans
    assert (one.name, one.kind, one.trace, one.id, one.parent) == (
        "chat llama", "server", TRACE, "a" * 16, PARENT,
    )  # fmt: skip
    assert (one.began, one.ended, one.failed, one.events) == (
        1_000, 2_000, False, (genai.FIRST_BYTE,),
    )  # fmt: skip
    assert one.attributes == FACE.attributes
    assert (one.resource, one.schema) == (PROCESS, genai.SCHEMA)
    assert (two.parent, two.failed) == ("", True)
    assert counts == {SENT: 2}


async def test_environment_variables_of_opentelemetry_are_neither_sent_nor_obeyed(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "user=canary")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    async with receiving() as collector:
        exporter = OtlpExporter(collector.url, PROCESS, Counter())
        exporter.take([FACE, FACE])
        await asyncio.to_thread(exporter.close)
    assert len(collector.spans) == 2
    assert b"canary" not in b"".join(collector.raw)
    assert "authorization" not in collector.headers[0]


async def test_each_outage_of_a_collector_costs_its_spans_and_one_warning(caplog):
    counts = Counter()
    with caplog.at_level(logging.INFO):
        async with receiving() as collector:
            made = otlp.Collector(collector.url, counts)
            spans = [OtlpExporter(collector.url, PROCESS, Counter())._read(FACE)]
            for status in (503, 404, 200, 200):
                collector.status = status
                await asyncio.to_thread(made.export, spans)
        await asyncio.to_thread(made.export, spans)
    assert counts == {DROPPED: 3, SENT: 2}
    messages = [
        record.getMessage() for record in caplog.records if record.name == "modelvine.traces"
    ]
    assert len(messages) == 3
    assert messages[0].endswith("it answers with status 503")
    assert messages[1].endswith("accepts spans again")
    assert "URLError" in messages[2]


async def test_measurements_arrive_as_sums_since_the_start():
    measurements, times = Measurements(), iter((5.0, 6.0))
    measurements.add([TIMES, TIMES])
    async with receiving() as collector:
        settings = NodeSettings(traces=collector.url)
        exporter = measurements_exporter_of(settings, "here", measurements, lambda: next(times))
        await exporter.close()
    [got] = collector.histograms
    assert (got.name, got.unit, got.attributes) == (genai.TIME_PER_OUTPUT, "s", dict(ATTRIBUTES))
    assert (got.count, got.sum, got.counts[:3]) == (6, 0.18, (0, 4, 2))
    assert got.bounds == genai.INSTRUMENTS[genai.TIME_PER_OUTPUT].bounds
    assert len(got.counts) == len(got.bounds) + 1
    assert (got.began, got.at, got.cumulative) == (5_000_000_000, 6_000_000_000, True)
    assert (got.resource[genai.INSTANCE], got.schema) == ("here", genai.SCHEMA)


async def test_measurements_that_are_not_accepted_are_sent_with_the_next_ones(caplog):
    measurements = Measurements()
    with caplog.at_level(logging.INFO):
        async with receiving() as collector:
            url = collector.url.replace("traces", "metrics")
            exporter = otlp.OtlpMeasurements(url, PROCESS, measurements, lambda: 5.0)
            await exporter._send()
            assert collector.headers == []
            for status in (503, 503, 200):
                collector.status = status
                measurements.add([TIMES])
                await exporter._send()
        measurements.add([TIMES])
        await exporter._send()
        await exporter.close()
    assert [got.count for got in collector.histograms] == [9]
    messages = [
        record.getMessage() for record in caplog.records if record.name == "modelvine.traces"
    ]
    assert len(messages) == 3
    assert messages[0].startswith(
        "metrics are kept until the collector of node.traces accepts them"
    )
    assert messages[1].endswith("accepts metrics again")
    assert "URLError" in messages[2]


async def test_spans_beyond_those_that_may_wait_are_dropped_at_once_and_closing_is_bounded(caplog):
    counts = Counter()
    with socket.create_server(("127.0.0.1", 0)) as deaf, caplog.at_level(logging.WARNING):
        exporter = OtlpExporter(
            f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/traces", PROCESS, counts
        )
        for _ in range(3 * otlp.MAX_WAITING // 2):
            exporter.take([FACE])
        assert counts[DROPPED] >= otlp.MAX_WAITING // 2 - otlp.BATCH
        async with asyncio.timeout(3 * otlp.TIMEOUT):
            await asyncio.to_thread(exporter.close)
    assert counts[DROPPED] == 3 * otlp.MAX_WAITING // 2
    assert sum("wait for the collector" in record.getMessage() for record in caplog.records) == 1
