"""Metrics that workers report: a few figures under common names, queried when the node's own metrics are read.

They show what a node cannot measure: a worker's requests from elsewhere, and its speed by its own clock.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import isfinite
from typing import Protocol, runtime_checkable

from registry.clock import Clock
from registry.records import Service
from router.dialects import Dialect
from router.errors import WorkerFailed
from router.workers import Worker

FRESH = 5.0
"""Seconds for which a result is cached, so that frequent readers do not query the worker each time."""

AGAIN = 600.0
"""Seconds after which a worker without such figures is queried again."""

AT_ONCE = 32
"""Workers that are queried at one time."""


class Figure(StrEnum):
    """Figure that a worker may report; the label of `modelvine_worker_tells`."""

    QUEUED = "queued"
    """Requests that wait there."""
    RUNNING = "running"
    """Requests that it answers now."""
    SPEED = "tokens_per_second"
    """How fast it wrote its last answer."""
    READ = "prompt_tokens"
    """Tokens of the prompt that it read last."""
    WRITTEN = "completion_tokens"
    """Tokens that it wrote last."""


FigureValues = Mapping[Figure, float]


@runtime_checkable
class LoadReporting(Protocol):
    """A dialect whose protocol has such figures."""

    async def figures(self, worker: Worker) -> FigureValues | None:
        """Query within `ALIVE_SECONDS`; return an empty mapping if none came now, `None` if the worker has none at all."""


class Figures:
    """Cache of the figures of this machine's workers, which are seldom queried."""

    def __init__(self, dialects: Mapping[str, Dialect], now: Clock) -> None:
        self._dialects = dialects
        self._now = now
        self._figures: dict[Worker, tuple[float, FigureValues]] = {}
        self._query_lock = asyncio.Lock()
        self._semaphore = asyncio.Semaphore(AT_ONCE)

    async def query(self, workers: Iterable[Worker]) -> Mapping[Service, FigureValues]:
        """Return the figures of those of these workers that report any; the cached ones of other workers are dropped."""
        queried = list(workers)
        # A reader that comes during a query waits, and then finds its results.
        async with self._query_lock:
            await asyncio.gather(*map(self._query_worker, queried))
            self._figures = {w: self._figures[w] for w in queried if w in self._figures}
            return {w.service: figures for w, (_, figures) in self._figures.items() if figures}

    async def _query_worker(self, worker: Worker) -> None:
        until, _ = self._figures.get(worker, (0.0, {}))
        if self._now() < until:
            return
        try:
            dialect = self._dialects[worker.dialect]
        except (KeyError, WorkerFailed):
            return
        if not isinstance(dialect, LoadReporting):
            return
        async with self._semaphore:
            figures = await dialect.figures(worker)
        self._figures[worker] = self._now() + (AGAIN if figures is None else FRESH), figures or {}


def valid_figures(figures: Mapping[Figure, float]) -> FigureValues:
    """Leave out values that are not valid amounts: they come from a worker."""
    return {figure: value for figure, value in figures.items() if isfinite(value) and value >= 0}


def parse_metrics(text: bytes, names: Mapping[str, Figure]) -> FigureValues:
    """Read figures by their names in Prometheus' text format, each the sum of its series; others are ignored."""
    figures: dict[Figure, float] = {}
    for name, figure in names.items():
        series = rf"^{re.escape(name)}(?:\{{[^\n]*\}})? +(\S{{1,40}})".encode()
        for value in re.findall(series, text, re.MULTILINE):
            try:
                figures[figure] = figures.get(figure, 0.0) + float(value)
            except ValueError:
                continue
    return valid_figures(figures)
