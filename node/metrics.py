"""What does this node measure about itself? Prometheus series; label children are resolved once, not per request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from router.dispatch import Outcome

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a cache hit on this machine to a long answer of a large model.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is counted elsewhere, at one moment: read when somebody asks for the metrics."""

    nodes: Mapping[str, int]
    """Nodes by presence."""
    services: int
    """Replicas of models that the whole catalog offers."""
    workers: int
    """Workers of this machine."""
    up: Mapping[str, bool]
    """Whether a part works: store, mesh."""
    frames: Mapping[str, int]
    """The registry's counters since the start."""
    connections: int
    """Peers connected to the mesh."""


class Metrics:
    """This node's counters. Cheap enough for every request and every chunk."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "modelvine_requests",
            "Requests answered, by kind and HTTP status (499: the caller hung up).",
            ("kind", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "modelvine_request_seconds",
            "Seconds from a request's arrival to its last byte.",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_byte = Histogram(
            "modelvine_first_byte_seconds",
            "Seconds from a request's arrival to the first byte of its answer.",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "modelvine_requests_in_flight",
            "Requests that are being answered now.",
            registry=self.registry,
        )
        self._taken = Counter(
            "modelvine_request_bytes", "Bytes of request bodies.", registry=self.registry
        )
        self._sent = Counter(
            "modelvine_answer_bytes", "Bytes of answers sent.", registry=self.registry
        )
        self._attempts = Counter(
            "modelvine_attempts",
            "Workers and peers tried, by dialect and outcome: `ok` or the error's class.",
            ("dialect", "outcome"),
            registry=self.registry,
        )
        # Children are looked up under a lock by the library; these caches are plain dictionaries.
        self._requests_of = cache(self._requests.labels)
        self._seconds_of = cache(self._seconds.labels)
        self._first_byte_of = cache(self._first_byte.labels)
        self._attempts_of = cache(self._attempts.labels)

    def begun(self) -> None:
        """Count a request that came in."""
        self._in_flight.inc()

    def answering(self, kind: str, seconds: float) -> None:
        """Count the first byte of an answer."""
        self._first_byte_of(kind).observe(seconds)

    def ended(self, kind: str, *, status: int, seconds: float, taken: int, sent: int) -> None:
        """Count a request that is over, with the bytes it took in and sent out."""
        self._in_flight.dec()
        self._requests_of(kind, str(status)).inc()
        self._seconds_of(kind).observe(seconds)
        self._taken.inc(taken)
        self._sent.inc(sent)

    def attempt(self, outcome: "Outcome") -> None:
        """Count one attempt at one worker or peer."""
        ended = "ok" if outcome.error is None else type(outcome.error).__name__
        self._attempts_of(outcome.candidate.dialect, ended).inc()

    def text(self, sizes: Sizes) -> bytes:
        """Return everything in Prometheus' text format."""
        momentary = CollectorRegistry(auto_describe=False)
        momentary.register(_Momentary(sizes))
        return generate_latest(self.registry) + generate_latest(momentary)


class _Momentary(Collector):
    """Shows sizes that are counted elsewhere as series."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def collect(self) -> Iterable[Metric]:
        sizes = self._sizes
        yield _labelled(
            GaugeMetricFamily(
                "modelvine_nodes", "Nodes known, by what they are to us.", labels=("presence",)
            ),
            sizes.nodes,
        )
        yield GaugeMetricFamily(
            "modelvine_services", "Replicas of models that the registry knows.", sizes.services
        )
        yield GaugeMetricFamily("modelvine_workers", "Workers of this machine.", sizes.workers)
        yield GaugeMetricFamily(
            "modelvine_mesh_connections", "Peers connected to the mesh.", sizes.connections
        )
        yield _labelled(
            GaugeMetricFamily("modelvine_up", "Whether a part works (1) or not.", labels=("part",)),
            sizes.up,
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
