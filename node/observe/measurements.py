"""Measurements of requests under OpenTelemetry's names: one histogram for each instrument and set of attributes.

Attributes are the operation, the model as its node registered it, the class of an error, and the sort of token: never what was
said, nor who asked. All processes of a node tell the first one what they measured, so a collector sees one source for each node.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from node.config.settings import NodeSettings
from node.observe import genai
from node.observe.request_sums import Histogram
from node.observe.tracing import library, resource_of, shown
from registry.clock import Clock
from registry.records import PeerId

if TYPE_CHECKING:
    from node.faces.access_log import Account

MAX_SERIES = 2_000
"""Histograms that are held apart; what comes beyond that is counted without its model and its error."""

Attributes = tuple[tuple[str, str], ...]

_REFUSED = 400
_ALWAYS = frozenset({genai.OPERATION, genai.PROVIDER, genai.SORT_OF_TOKENS})


class Measured(NamedTuple):
    """One histogram: how many values fell between each two bounds of its instrument, and the sum of them all."""

    instrument: str
    attributes: Attributes
    counts: tuple[int, ...]
    total: float


class Measurements:
    """What one process has measured, and in the first one also what helpers told."""

    def __init__(self, *, most: int = MAX_SERIES) -> None:
        self._most = most
        self._series: dict[tuple[str, Attributes], Histogram] = {}

    def ended(self, account: "Account") -> None:
        """Take in a request that is over."""
        kind = (
            (genai.OPERATION, genai.operation_of(account.kind)),
            (genai.PROVIDER, genai.OWN_PROVIDER),
        )
        candidate = account.candidate
        # What nobody serves can be called anything.
        asked = kind if candidate is None else (*kind, _model(candidate.service.model))
        if account.status >= _REFUSED:
            failed = (*asked, (genai.ERROR, account.error or str(account.status)))
            self._observe(genai.REQUEST_DURATION, failed, account.seconds)
        else:
            self._observe(genai.REQUEST_DURATION, asked, account.seconds)
            if account.streams_text:
                self._observe(genai.FIRST_BYTE_TIME, asked, account.first)
        if token_time := account.token_seconds():
            self._observe(genai.TIME_PER_OUTPUT, asked, token_time)
        for model, usage in account.spent():
            # Of what nobody told there shall be no metric.
            if not usage.estimated:
                used = (*kind, _model(model))
                self._tokens(used, genai.INPUT, usage.prompt)
                self._tokens(used, genai.OUTPUT, usage.completion)

    def add(self, rows: Iterable[Measured]) -> None:
        """Take in what another process has measured."""
        for instrument, attributes, counts, total in rows:
            self._histogram(instrument, attributes).add(counts, total)

    def rows(self) -> tuple[Measured, ...]:
        """Return all that was measured."""
        return tuple(Measured(*key, tuple(h.counts), h.total) for key, h in self._series.items())

    def take(self) -> tuple[Measured, ...]:
        """Return what was measured since this was asked last."""
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
        if key not in self._series and len(self._series) >= self._most:
            key = instrument, tuple(pair for pair in attributes if pair[0] in _ALWAYS)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Histogram(genai.INSTRUMENTS[instrument].bounds)
        return found


def _model(name: str) -> tuple[str, str]:
    return genai.REQUEST_MODEL, shown(name)


class MeasurementsExporter(Protocol):
    """Sends measurements to a collector."""

    async def run(self) -> None:
        """Send them every few seconds, until cancelled."""

    async def close(self) -> None:
        """Send them once more; may take some seconds."""


def measurements_of(settings: NodeSettings) -> Measurements | None:
    """Return what measures requests, `None` where no collector would hear of it."""
    return Measurements() if _endpoint(settings) else None


def measurements_exporter_of(
    settings: NodeSettings, node: PeerId, measurements: Measurements | None, wall: Clock
) -> MeasurementsExporter | None:
    """Return what sends measurements to the collector of `node.traces`, `None` where there is none; raise `ValueError`."""
    if measurements is None:
        return None
    exporter = library().OtlpMeasurements(
        _endpoint(settings), resource_of(node), measurements, wall
    )
    return cast("MeasurementsExporter", exporter)


def _endpoint(settings: NodeSettings) -> str:
    """Return where a collector takes metrics: beside the traces, and nowhere if that place has a name of its own."""
    before, _, last = settings.traces.rpartition("/")
    return f"{before}/metrics" if last == "traces" else ""
