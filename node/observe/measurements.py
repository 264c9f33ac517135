"""Measurements of requests under OpenTelemetry's names: one histogram for each instrument and set of attributes.

Attributes are the operation, the model as its node registered it, the class of an error, and the sort of token: never the content
of a request, nor its caller. All processes of a node send their measurements to the first one, so a collector sees one source for
each node.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from node.config.settings import NodeSettings
from node.observe import genai
from node.observe.request_sums import Histogram
from node.observe.tracing import library, resource_of, shown_model
from registry.clock import Clock
from registry.records import PeerId

if TYPE_CHECKING:
    from node.faces.access_log import Account

MAX_SERIES = 2_000
"""Separate histograms; measurements beyond them are counted without their model and their error."""

Attributes = tuple[tuple[str, str], ...]

_REFUSED = 400
_ALWAYS = frozenset({genai.OPERATION, genai.PROVIDER, genai.SORT_OF_TOKENS})


class HistogramValue(NamedTuple):
    """One histogram: the count in each bucket of its instrument, and the sum of all values."""

    instrument: str
    attributes: Attributes
    counts: tuple[int, ...]
    total: float


class Measurements:
    """Measurements of one process; in the first process, those of the helpers too."""

    def __init__(self, *, limit: int = MAX_SERIES) -> None:
        self._limit = limit
        self._series: dict[tuple[str, Attributes], Histogram] = {}

    def ended(self, account: "Account") -> None:
        """Add a request that has ended."""
        kind = (
            (genai.OPERATION, genai.operation_of(account.kind)),
            (genai.PROVIDER, genai.OWN_PROVIDER),
        )
        candidate = account.candidate
        # A model without a replica can have any name.
        labels = kind if candidate is None else (*kind, _model(candidate.service.model))
        if account.status >= _REFUSED:
            failed = (*labels, (genai.ERROR, account.error or str(account.status)))
            self._observe(genai.REQUEST_DURATION, failed, account.seconds)
        else:
            self._observe(genai.REQUEST_DURATION, labels, account.seconds)
            if account.streams_text:
                self._observe(genai.FIRST_BYTE_TIME, labels, account.first_byte_seconds)
        if token_time := account.token_seconds():
            self._observe(genai.TIME_PER_OUTPUT, labels, token_time)
        for model, usage in account.tokens_by_model():
            # There shall be no metric of tokens that no worker has reported.
            if not usage.estimated:
                used = (*kind, _model(model))
                self._tokens(used, genai.INPUT, usage.prompt)
                self._tokens(used, genai.OUTPUT, usage.completion)

    def add(self, rows: Iterable[HistogramValue]) -> None:
        """Add the measurements of another process."""
        for instrument, attributes, counts, total in rows:
            self._histogram(instrument, attributes).add(counts, total)

    def rows(self) -> tuple[HistogramValue, ...]:
        """Return all measurements."""
        return tuple(
            HistogramValue(*key, tuple(h.counts), h.total) for key, h in self._series.items()
        )

    def take(self) -> tuple[HistogramValue, ...]:
        """Return the measurements since the previous call."""
        rows = self.rows()
        self._series.clear()
        return rows

    def _tokens(self, used: Attributes, sort: str, tokens: int) -> None:
        if tokens:
            self._observe(genai.TOKENS_USED, (*used, (genai.SORT_OF_TOKENS, sort)), tokens)

    def _observe(self, instrument: str, attributes: Attributes, value: float) -> None:
        self._histogram(instrument, attributes).observe(value)

    def _histogram(self, instrument: str, attributes: Attributes) -> Histogram:
        key = instrument, attributes
        if key not in self._series and len(self._series) >= self._limit:
            key = instrument, tuple(pair for pair in attributes if pair[0] in _ALWAYS)
        histogram = self._series.get(key)
        if histogram is None:
            histogram = self._series[key] = Histogram(genai.INSTRUMENTS[instrument].bounds)
        return histogram


def _model(name: str) -> tuple[str, str]:
    return genai.REQUEST_MODEL, shown_model(name)


class MeasurementsExporter(Protocol):
    """Exporter of measurements to a collector."""

    async def run(self) -> None:
        """Send them every few seconds, until cancelled."""

    async def close(self) -> None:
        """Send them once more; this may take some seconds."""


def measurements_of(settings: NodeSettings) -> Measurements | None:
    """Return the measurements of requests, or `None` without a collector to send them to."""
    return Measurements() if _endpoint(settings) else None


def measurements_exporter_of(
    settings: NodeSettings, node: PeerId, measurements: Measurements | None, wall: Clock
) -> MeasurementsExporter | None:
    """Return the exporter to the collector of `node.traces`, or `None` without measurements; raise `ValueError`."""
    if measurements is None:
        return None
    exporter = library().OtlpMeasurements(
        _endpoint(settings), resource_of(node), measurements, wall
    )
    return cast("MeasurementsExporter", exporter)


def _endpoint(settings: NodeSettings) -> str:
    """Return the collector's URL for metrics, next to that of traces; empty if the latter does not end in `/traces`."""
    before, _, last = settings.traces.rpartition("/")
    return f"{before}/metrics" if last == "traces" else ""
