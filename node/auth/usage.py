"""Usage of each key, by day, by model and by the node that answered. Counted at the node that got the request; never content.

Rows of a day are written to the site's store every few seconds, those of each node under its own id, so that any node of the
site shows the sum. A process that is killed loses what it had not written yet: ten seconds at most.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from node.auth.books import UsageBook
from node.auth.usage_history import UsageHistory
from node.auth.usage_row import NOBODY, UsageId, UsageRow, id_of
from registry.clock import Clock
from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import Change, Delete, Put, Space, Store

log = logging.getLogger("modelvine.usage")

PERIOD = 5.0
"""Seconds between two writes."""

PARTS = 16
"""Parts into which a day at one node is divided, so that a write holds only parts that have changed."""

MAX_ROWS = 300
"""Rows of a part; further usage counts without model and node, and beyond twice as many rows without key too."""

MAX_NAME = 100
"""Characters of a model's name that are kept."""

_ROWS = TypeAdapter(tuple[UsageRow, ...])


class UsageLog:
    """Usage log of a site: writes this node's rows, reads those of all nodes."""

    def __init__(
        self,
        book: UsageBook,
        store: Store,
        node: PeerId,
        *,
        days: int,
        now: Clock = time.monotonic,
    ) -> None:
        """Rows are kept for so many `days`."""
        self.book = book
        """Counts of this process that wait to be written."""
        self.history = UsageHistory(now)
        """The last hour of this node."""
        self._store = store
        self._node = node
        self._days = days
        self._parts: dict[str, dict[UsageId, UsageRow]] = {}
        """Rows of this node that may still change, by the name of their part."""
        self._dirty: set[str] = set()
        self._pruned = ""
        self._lock = asyncio.Lock()

    async def restore(self) -> None:
        """Load this node's rows that may still change; raise `StoreUnavailable`."""
        for name, value in (await self._store.read(Space.USAGE)).items():
            if self._may_change(name) and f":{self._node}:" in name:
                self._parts[name] = {id_of(row): row for row in _thaw(value)}

    async def run(self) -> None:
        """Write the counts every `PERIOD` seconds, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.write()
            except StoreUnavailable as error:
                log.debug("usage waits for the store: %s", error)

    async def close(self) -> None:
        """Write the remaining counts; those that cannot be written are lost."""
        try:
            await self.write()
        except StoreUnavailable as error:
            log.warning("the last usage was lost: %s", error)

    async def write(self) -> None:
        """Write the counts since the last write; raise `StoreUnavailable`, and keep them for the next write."""
        async with self._lock:
            for row in self.book.take():
                self._count(row)
            if self._dirty:
                await self._store.write(*map(self._put, sorted(self._dirty)))
                self._dirty.clear()
            await self._prune()

    async def rows(self, since: str, until: str) -> Sequence[UsageRow]:
        """Return the rows of the whole site from `since` to `until`, both included, in order; raise `StoreUnavailable`."""
        await self.write()
        sums: dict[UsageId, UsageRow] = {}
        for name, value in (await self._store.read(Space.USAGE)).items():
            if since <= name.partition(":")[0] <= until:
                for row in _thaw(value):
                    existing = sums.get(id_of(row))
                    sums[id_of(row)] = row if existing is None else existing + row
        return [sums[key] for key in sorted(sums)]

    def _count(self, row: UsageRow) -> None:
        row = replace(row, model=row.model[:MAX_NAME])
        self.history.add(row)
        part = crc32(f"{row.key} {row.model}".encode()) % PARTS
        name = f"{row.day}:{self._node}:{part}"
        rows = self._parts.setdefault(name, {})
        if id_of(row) not in rows and len(rows) >= MAX_ROWS:
            row = replace(row, model=NOBODY, node=NOBODY)
            if id_of(row) not in rows and len(rows) >= 2 * MAX_ROWS - 1:
                row = replace(row, key=NOBODY)
        existing = rows.get(id_of(row))
        rows[id_of(row)] = row if existing is None else existing + row
        self._dirty.add(name)

    def _put(self, name: str) -> Put:
        return Put(Space.USAGE, name, _ROWS.dump_json(tuple(self._parts[name].values())))

    def _may_change(self, name: str) -> bool:
        # Another process's counts of yesterday may arrive late.
        return _age(name, self.book.today()) <= 1

    async def _prune(self) -> None:
        """Once a day, forget rows in memory that can no longer change, and delete rows in the store that are too old."""
        today = self.book.today()
        if self._pruned == today:
            return
        self._parts = {n: rows for n, rows in self._parts.items() if self._may_change(n)}
        stored = await self._store.read(Space.USAGE)
        deletes: list[Change] = [
            Delete(Space.USAGE, name) for name in stored if _age(name, today) >= self._days
        ]
        if deletes:
            await self._store.write(*deletes)
        self._pruned = today


def _age(name: str, today: str) -> int:
    """Return how many days old a row is; a row whose day is unreadable counts as the oldest possible."""
    return _number(today) - _number(name.partition(":")[0])


def _number(day: str) -> int:
    try:
        return date.fromisoformat(day).toordinal()
    except ValueError:
        return 0


def _thaw(value: bytes) -> tuple[UsageRow, ...]:
    try:
        return _ROWS.validate_json(value)
    except ValidationError:
        log.warning("rows of usage in the store cannot be read, and are not counted")
        return ()
