"""Load reports: which of our own are worth sending, and whose another's are. No I/O.

A load is small, lossy and rare. It is never part of a record, never stored, never compared; an idle node says nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from registry.records import Load, LoadNote, Record, Service
from registry.wire import MAX_LOADS

INTERVAL = 1.0
"""Seconds between two notes of one node at least, multiplied by the mesh's rarity: all together say no more for being more."""

REPEAT = 5.0
"""Seconds, multiplied likewise, after which a busy node says again what holds: notes get lost, and they age."""

SHARE = 0.25
"""By how much of itself a number must have moved to be worth a note; to and from nothing it always is."""

_IDLE = Load()


class Reporter:
    """Remembers what was said of each busy replica."""

    def __init__(self) -> None:
        self._said: dict[Service, Load] = {}
        self._spoke = float("-inf")

    def rows(
        self, busy: Mapping[Service, Load], now: float, *, rarity: float = 1.0
    ) -> dict[Service, Load]:
        """Return what is to be said now, mostly nothing; it counts as said. `busy` are the replicas with requests."""
        silent = (now - self._spoke) / rarity
        if silent < INTERVAL or not (busy or self._said):
            return {}
        ended = {
            service: replace(load, in_flight=0, queued=0, rate=0.0)
            for service, load in self._said.items()
            if service not in busy
        }
        rows = {**ended, **busy}
        if silent < REPEAT and not any(self._moved(*row) for row in rows.items()):
            return {}
        self._spoke = now
        chosen = dict(sorted(rows.items(), key=self._weight, reverse=True)[:MAX_LOADS])
        self._said = {s: load for s, load in (self._said | chosen).items() if load.waiting}
        return chosen

    def _moved(self, service: Service, load: Load) -> bool:
        before = self._said.get(service, _IDLE)
        return _is_leap(before.in_flight, load.in_flight) or _is_leap(before.queued, load.queued)

    def _weight(self, row: tuple[Service, Load]) -> tuple[int, int]:
        # What moved most goes first, so that neither a new crowd nor an end of one waits; then the busiest.
        service, load = row
        before = self._said.get(service, _IDLE)
        return abs(load.waiting - before.waiting), load.waiting


def loads_in(note: LoadNote, record: Record) -> dict[Service, Load]:
    """Read whose load the rows of a note are; a place where the record names nothing that we know is passed over."""
    named = ((record.service_at(place), load) for place, load in note.rows)
    return {service: load for service, load in named if service is not None}


def _is_leap(before: int, after: int) -> bool:
    return before != after and (0 in (before, after) or abs(after - before) >= SHARE * before)
