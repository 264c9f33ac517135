"""Metrics of a node: counters that cost a request nothing, shown as Prometheus series on demand."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from node.connection_limits import EVENTS, ConnectionCounts
from node.observe import genai
from node.observe.counters import SECONDS, Counts, HistogramCounts, LabelledCount, Spent, sum_of
from node.observe.measurements import Measurements
from node.observe.recent import RecentRequests
from node.observe.request_sums import RequestSums
from registry.records import Service
from router.requests import Kind
from router.worker_metrics import FigureValues

if TYPE_CHECKING:
    from node.faces.access_log import Account
    from router.outcome import Outcome

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MANY = 256
"""Ended requests that are held at most until they are counted; counting them in a batch takes half the time."""


@dataclass(frozen=True, slots=True)
class GaugeValues:
    """Snapshot of the figures that are kept elsewhere, read when the metrics are requested."""

    nodes: Mapping[str, int]
    """Nodes by presence."""
    services: int
    """Replicas of models that the whole catalog offers."""
    workers: int
    """Workers of this machine."""
    worker_figures: Mapping[Service, FigureValues]
    """Figures that those workers report."""
    up: Mapping[str, bool]
    """Whether a part works: store, mesh."""
    frames: Mapping[str, int]
    """The registry's counters since the start."""
    routed: Mapping[str, int]
    """The router's counters since the start."""
    connections: int
    """Peers connected to the mesh."""
    wires: int
    """Connections to those peers."""
    standing: int
    """Idle streams that peers keep for their next question."""
    loop_lag: float
    """Maximum lag of the event loop, in seconds."""
    loop_busy: float
    """Maximum CPU time of the event loop between two samples, in seconds."""
    tasks: Mapping[str, int]
    """Tasks by event loop: http, mesh."""
    threads: int
    """Python threads."""
    relaying: Mapping[str, int]
    """Current use of this node as a relay by other nodes."""
    relayed: Mapping[str, int]
    """Events of this node as a relay since the mesh came up."""


class Metrics:
    """This node's counters: plain numbers that become series only when they are requested.

    Requests are noted one by one. They are counted when the counters are read or many have ended: see `_count`.
    The library's own counters take a lock and a look-up each; ten of them cost a request more than its routing does.
    """

    def __init__(self, measurements: Measurements | None = None) -> None:
        """`measurements` are for an OpenTelemetry collector, where there is one."""
        self.measurements = measurements
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._succeeded: dict[str, int] = {}
        """Attempts that were answered, which nearly all are, by dialect."""
        self._failed: Counter[tuple[str, str]] = Counter()
        self._sums = RequestSums()
        self._counted = 0
        self.first_bytes: dict[Kind, list[float]] = defaultdict(list)
        """Seconds to the first bytes of answers not yet counted: of requests in flight and of up to `MANY` more."""
        self.spans: Counter[str] = Counter()
        """Spans of requests that were `sent` to a collector, or `dropped`."""
        self.connections = ConnectionCounts()
        """Connections, counted by the servers."""
        self.recent = RecentRequests(time.time)
        """Requests in flight, and the last that ended."""

    def ended(self, account: "Account") -> None:
        """Note a request that has ended."""
        recent = self.recent
        recent.under_way.pop(account, None)
        recent.ended.append(account)
        recent.count += 1
        if recent.count - self._counted >= MANY:
            self._count()
        if self.measurements is not None:
            self.measurements.ended(account)

    def attempt(self, outcome: "Outcome") -> None:
        """Count one attempt at a worker or peer."""
        error, dialect = outcome.error, outcome.candidate.dialect
        if error is None:
            self._succeeded[dialect] = self._succeeded.get(dialect, 0) + 1
        else:
            self._failed[dialect, type(error).__name__] += 1
            self.recent.failed_attempt(outcome, error)

    def counts(self) -> Counts:
        """Return the counters."""
        self._count()
        return replace(
            self._sums.counts(),
            attempts=(
                *(LabelledCount(name, "ok", count) for name, count in self._succeeded.items()),
                *(LabelledCount(*key, count) for key, count in self._failed.items()),
            ),
            connection_events=tuple(self.connections.events.items()),
            spans=tuple(self.spans.items()),
            connections=self.connections.open,
            in_flight=len(self.recent.under_way),
        )

    def _count(self) -> None:
        """Count the requests that have ended since the previous call."""
        self._sums.add(self.first_bytes, self.recent.since(self._counted))
        self.first_bytes.clear()
        self._counted = self.recent.count

    def text(self, sizes: GaugeValues, others: Iterable[Counts] = ()) -> bytes:
        """Return all metrics in Prometheus' text format; `others` are the counters of this node's other processes."""
        momentary = CollectorRegistry(auto_describe=False)
        counts = sum_of((self.counts(), *others))
        momentary.register(_Counters(counts))
        momentary.register(_Momentary(sizes))
        return generate_latest(self._process) + generate_latest(momentary)


class _Counters(Collector):
    """Collector of the counters of all processes."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        return (*_counted(self._counts), *_by_operation(self._counts))


def _counted(counts: Counts) -> Iterable[Metric]:
    yield _counts(
        "modelvine_requests",
        "Completed requests, by kind and HTTP status (499: the caller disconnected).",
        ("kind", "status"),
        counts.requests,
    )
    yield _counts(
        "modelvine_attempts",
        "Attempts at workers and peers, by dialect and outcome: `ok` or the error's class.",
        ("dialect", "outcome"),
        counts.attempts,
    )
    yield _spreads(
        "modelvine_request_seconds",
        "Seconds from a request's arrival to its last byte.",
        counts.seconds,
    )
    yield _spreads(
        "modelvine_first_byte_seconds",
        "Seconds from a request's arrival to the first byte of its answer.",
        counts.first_byte,
    )
    yield GaugeMetricFamily(
        "modelvine_requests_in_flight",
        "Requests in flight.",
        counts.in_flight,
    )
    yield GaugeMetricFamily(
        "modelvine_connections",
        "Open connections from clients and other nodes.",
        counts.connections,
    )
    yield _labelled(
        CounterMetricFamily(
            "modelvine_connection_events",
            "; ".join(f"`{event}`: {meaning}" for event, meaning in EVENTS.items()) + ".",
            labels=("event",),
        ),
        dict.fromkeys(EVENTS, 0) | dict(counts.connection_events),
    )
    yield _labelled(
        CounterMetricFamily(
            "modelvine_spans",
            "Spans of traced requests: `sent` to the collector, or `dropped` because it was unavailable or the buffer was full.",
            labels=("outcome",),
        ),
        dict(counts.spans),
    )
    yield CounterMetricFamily("modelvine_request_bytes", "Bytes of request bodies.", counts.taken)
    yield CounterMetricFamily("modelvine_answer_bytes", "Bytes of responses sent.", counts.sent)
    yield _counts(
        "modelvine_tokens",
        "Tokens of this machine's workers, for callers of any node, by model and part (prompt, completion); estimated: "
        "counted from the events of a stream that broke off or whose worker reports no usage.",
        ("model", "part", "estimated"),
        counts.tokens,
    )


def _by_operation(counts: Counts) -> Iterable[Metric]:
    same = "The same as modelvine_{}_seconds, under OpenTelemetry's name."
    of_tokens = "Seconds of each token after the first, in streams whose worker reports its tokens."
    yield _operations(genai.REQUEST_DURATION, same.format("request"), counts.seconds)
    yield _operations(genai.FIRST_BYTE_TIME, same.format("first_byte"), counts.first_byte)
    yield _operations(genai.TIME_PER_OUTPUT, of_tokens, counts.token_time)


def _counts(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[LabelledCount | Spent]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for *values, count in rows:
        family.add_metric([str(value) for value in values], float(count))
    return family


def _spreads(name: str, text: str, rows: Iterable[HistogramCounts]) -> Metric:
    return _with_rows(HistogramMetricFamily(name, text, labels=("kind",)), rows, ())


def _operations(name: str, text: str, rows: Iterable[HistogramCounts]) -> Metric:
    """Return the times of kinds of requests as times of operations, under the conventions' names."""
    labels = (genai.OPERATION, genai.PROVIDER)
    family = HistogramMetricFamily(
        genai.as_prometheus(name, "seconds"), text, labels=[*map(genai.as_prometheus, labels)]
    )
    relabelled = (row._replace(kind=genai.operation_of(Kind(row.kind))) for row in rows)
    return _with_rows(family, relabelled, (genai.OWN_PROVIDER,))


def _with_rows(
    family: HistogramMetricFamily, rows: Iterable[HistogramCounts], labels: tuple[str, ...]
) -> Metric:
    bounds = [*map(floatToGoString, SECONDS), "+Inf"]
    for kind, counts, total in rows:
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric((kind, *labels), buckets, total)
    return family


class _Momentary(Collector):
    """Collector of the figures in `GaugeValues`."""

    def __init__(self, sizes: GaugeValues) -> None:
        self._sizes = sizes

    def collect(self) -> Iterable[Metric]:
        yield from _known(self._sizes)
        yield from _of_process(self._sizes)
        yield from _events(self._sizes)


def _known(sizes: GaugeValues) -> Iterable[Metric]:
    yield _labelled(
        GaugeMetricFamily("modelvine_nodes", "Known nodes, by presence.", labels=("presence",)),
        sizes.nodes,
    )
    yield GaugeMetricFamily("modelvine_services", "Model replicas in the registry.", sizes.services)
    yield GaugeMetricFamily("modelvine_workers", "Workers of this machine.", sizes.workers)
    reported = GaugeMetricFamily(
        "modelvine_worker_tells",
        "Metrics that workers of this machine report (vLLM, SGLang, llama.cpp, TGI, LocalAI), by model and figure:"
        " queued and running requests; speed and tokens of the last response.",
        labels=("project", "model", "cid", "type", "figure"),
    )
    for service, figures in sizes.worker_figures.items():
        *names, kind = service.key
        for figure, value in figures.items():
            reported.add_metric((*names, str(int(kind)), figure), value)
    yield reported
    yield GaugeMetricFamily(
        "modelvine_mesh_connections", "Peers connected to the mesh.", sizes.connections
    )
    yield GaugeMetricFamily(
        "modelvine_mesh_wires",
        "Connections to those peers: two if both ends dialled at the same time.",
        sizes.wires,
    )
    yield GaugeMetricFamily(
        "modelvine_mesh_standing_streams",
        "Idle streams that peers keep for their next question; each is a task of the mesh, closed after five minutes.",
        sizes.standing,
    )


def _of_process(sizes: GaugeValues) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "modelvine_loop_lag_seconds",
        "Maximum lag of the event loop in the last minute, in seconds.",
        sizes.loop_lag,
    )
    yield GaugeMetricFamily(
        "modelvine_loop_busy_seconds",
        "Maximum CPU time of the event loop between two samples in the last minute; lag without it comes from the machine.",
        sizes.loop_busy,
    )
    yield _labelled(
        GaugeMetricFamily(
            "modelvine_tasks",
            "Tasks of each event loop; those of the mesh as of the last sample.",
            labels=("loop",),
        ),
        sizes.tasks,
    )
    yield GaugeMetricFamily("modelvine_threads", "Python threads.", sizes.threads)
    yield _labelled(
        GaugeMetricFamily("modelvine_up", "Whether a part works (1) or not (0).", labels=("part",)),
        sizes.up,
    )


def _events(sizes: GaugeValues) -> Iterable[Metric]:
    yield _labelled(
        GaugeMetricFamily(
            "modelvine_relaying",
            "Use of this node as a relay: reservations, circuits, and circuits without a reservation.",
            labels=("what",),
        ),
        sizes.relaying,
    )
    yield _labelled(
        CounterMetricFamily(
            "modelvine_relayed",
            "Events of this node as a relay: reserved, opened, refused, cut at a limit; bytes carried.",
            labels=("event",),
        ),
        sizes.relayed,
    )
    yield _labelled(
        CounterMetricFamily(
            "modelvine_router_events",
            "Events of requests in the router since the start.",
            labels=("event",),
        ),
        sizes.routed,
    )
    yield _labelled(
        CounterMetricFamily(
            "modelvine_registry_events",
            "Frames, comparisons and refusals since the start.",
            labels=("event",),
        ),
        sizes.frames,
    )


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> Metric:
    for label, value in values.items():
        family.add_metric((label,), value)
    return family
