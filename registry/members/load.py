"""Load reports: which ones this node sends, and which replicas those of other nodes are about. No I/O.

A load is small, lossy and rare. It is never part of a record, never stored, never compared. An idle node sends none.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from registry.clock import Clock
from registry.effects import Effect, Loaded
from registry.records import Load, LoadNote, PeerId, Record, Service
from registry.wire import MAX_LOADS

INTERVAL = 1.0
"""Minimum seconds between two notes of one node, multiplied by `rarity`: the total does not grow with the mesh."""

REPEAT = 5.0
"""Seconds, multiplied likewise, after which a busy node repeats unchanged figures: notes get lost, and they age."""

SHARE = 0.25
"""Relative change that makes a number worth a note; a change to or from zero always is."""

_IDLE = Load()


class Reporter:
    """Remembers the last reported load of each busy replica."""

    def __init__(self) -> None:
        self._reported: dict[Service, Load] = {}
        self._reported_at = float("-inf")

    def rows_to_report(
        self, busy: Mapping[Service, Load], now: float, *, rarity: float = 1.0
    ) -> dict[Service, Load]:
        """Return the rows to report now, mostly none; they count as reported. `busy` are the replicas with requests."""
        silent = (now - self._reported_at) / rarity
        if silent < INTERVAL or not (busy or self._reported):
            return {}
        ended = {
            service: replace(load, in_flight=0, queued=0, rate=0.0)
            for service, load in self._reported.items()
            if service not in busy
        }
        rows = {**ended, **busy}
        if silent < REPEAT and not any(self._has_changed(*row) for row in rows.items()):
            return {}
        self._reported_at = now
        chosen = dict(sorted(rows.items(), key=self._weight, reverse=True)[:MAX_LOADS])
        self._reported = {s: load for s, load in (self._reported | chosen).items() if load.waiting}
        return chosen

    def _has_changed(self, service: Service, load: Load) -> bool:
        before = self._reported.get(service, _IDLE)
        return _is_leap(before.in_flight, load.in_flight) or _is_leap(before.queued, load.queued)

    def _weight(self, row: tuple[Service, Load]) -> tuple[int, int]:
        # The largest changes go first, so that neither a burst nor the end of one waits; then the busiest replicas.
        service, load = row
        before = self._reported.get(service, _IDLE)
        return abs(load.waiting - before.waiting), load.waiting


def loads_by_service(note: LoadNote, record: Record) -> dict[Service, Load]:
    """Return the loads of a note by service; a row whose place in the record has no known service is skipped."""
    pairs = ((record.service_at(position), load) for position, load in note.rows)
    return {service: load for service, load in pairs if service is not None}


def _is_leap(before: int, after: int) -> bool:
    return before != after and (0 in (before, after) or abs(after - before) >= SHARE * before)


Loads = Mapping[Service, Load]


class LoadReplica(Protocol):
    """The part of a replica that publishes loads."""

    def publish_load(self, busy: Loads, now: float) -> list[Effect]:
        """Publish the load of our replicas when that is worth a note; `busy` are those with requests."""


class LoadExchange:
    """Adapter between the replica, which decides what is sent and accepted, and the router, which measures and uses loads."""

    def __init__(self, replica: LoadReplica, *, now: Clock, counters: Counter[str]) -> None:
        self._replica = replica
        self._now = now
        self._counters = counters
        self._source: Callable[[], Loads] = dict
        self._listeners: list[Callable[[PeerId, Loads], None]] = []

    def set_source(self, busy: Callable[[], Loads]) -> None:
        """Call `busy` some times a second for the load of our replicas that have requests; it must not block."""
        self._source = busy

    def on_load(self, listener: Callable[[PeerId, Loads], None]) -> None:
        """Call `listener` with a node and the loads that it reports of some of its replicas; it must not block."""
        self._listeners.append(listener)

    def publish_load(self) -> list[Effect]:
        """Return the effects that publish our load, if it is worth a note now."""
        effects = self._replica.publish_load(self._source(), self._now())
        self._counters["loads_out"] += len(effects)
        return effects

    def notify_listeners(self, loaded: Loaded) -> None:
        """Pass a node's load report to the listeners."""
        self._counters["loads_in"] += 1
        if not loaded.loads:
            self._counters["loads_dropped"] += 1
            return
        for listener in self._listeners:
            listener(loaded.node, loaded.loads)
