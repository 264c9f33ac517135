"""Usage: what each key asked, by day and model and by the node that answered. Counted at the node that was asked; never content.

Rows of a day are written to the site's store every few seconds, those of each node under its own id, so that any node of the
site shows the sum. What a process that is killed had not written yet is lost: ten seconds at most.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from node.auth.usage_history import UsageHistory
from registry.clock import Clock
from registry.errors import StoreUnavailable
from registry.records import PeerId
from registry.store import Change, Delete, Put, Space, Store

if TYPE_CHECKING:
    from node.faces.access_log import Account

log = logging.getLogger("modelvine.usage")

PERIOD = 5.0
"""Seconds between two writes."""

PARTS = 16
"""Parts of a day at one node, so that a write is of what has changed."""

MAX_ROWS = 300
"""Rows of a part; what comes beyond counts as of no model and no node, and of no key beyond twice as many."""

MAX_NAME = 100
"""Characters of a model's name that are kept."""

NOBODY = "-"
"""Stands for the key of whoever showed none, the model that nobody has, and the node where nobody answered."""

_DAY = 86_400
_REFUSED = 400


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one key asked of one model in one day (UTC, `2026-11-25`), where one node answered; sums of seconds.

    `first_seconds` is the time until the first byte of what was answered. `cost` is worked out when it is shown. `estimated`
    is how many answers did not tell their tokens: of those only what was read of their streams counts.
    """

    day: str
    key: str
    model: str
    node: str
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cost: float = 0.0

    def __add__(self, other: "UsageRow") -> "UsageRow":
        return replace(
            self,
            requests=self.requests + other.requests,
            failed=self.failed + other.failed,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            estimated=self.estimated + other.estimated,
            seconds=round(self.seconds + other.seconds, 6),
            first_seconds=round(self.first_seconds + other.first_seconds, 6),
            cost=round(self.cost + other.cost, 9),
        )


_Id = tuple[str, str, str, str]
_ROWS = TypeAdapter(tuple[UsageRow, ...])


class UsageTally:
    """Sums of one row that grow with each request: a row for each would cost ten times as much."""

    __slots__ = (
        "cached", "completion", "estimated", "failed", "first_seconds", "prompt", "requests", "seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.failed = self.prompt = self.completion = self.cached = 0
        self.estimated = 0
        self.seconds = self.first_seconds = 0.0


class UsageBook:
    """What is counted in this process, until somebody takes it."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._day, self._until = "", 0.0
        self._tallies: dict[_Id, UsageTally] = {}
        self._rows: list[UsageRow] = []

    def count(self, account: "Account") -> None:
        """Count a request that ended just now."""
        if self._wall() >= self._until:
            self.today()
        node, used = account.node, account.used
        # What nobody has can be called anything.
        row = self._day, account.key or NOBODY, NOBODY if node == NOBODY else account.model, node
        tally = self._tallies.get(row)
        if tally is None:
            tally = self._tallies[row] = UsageTally()
        tally.requests += 1
        tally.seconds += account.seconds
        tally.first_seconds += account.first
        if account.status >= _REFUSED:
            tally.failed += 1
        if used is None or used.estimated:
            tally.estimated += 1
        if used is not None:
            tally.prompt += used.prompt
            tally.completion += used.completion
            if used.cached:
                tally.cached += used.cached

    def add(self, row: UsageRow) -> None:
        """Take in what another process has counted."""
        self._rows.append(row)

    def today(self) -> str:
        """Return the day that it is, by UTC."""
        now = self._wall()
        if now >= self._until:
            self._day = time.strftime("%Y-%m-%d", time.gmtime(now))
            self._until = (now // _DAY + 1) * _DAY
        return self._day

    def take(self) -> tuple[UsageRow, ...]:
        """Return what was counted since this was asked last."""
        tallies, self._tallies = self._tallies, {}
        rows, self._rows = self._rows, []
        return (*(_row(key, tally) for key, tally in tallies.items()), *rows)


class UsageLog:
    """The usage of a site: written for this node, read for all."""

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
        """What this process counts."""
        self.history = UsageHistory(now)
        """The last hour of this node."""
        self._store = store
        self._node = node
        self._days = days
        self._parts: dict[str, dict[_Id, UsageRow]] = {}
        """Rows of this node that may still change, by the names of their parts."""
        self._dirty: set[str] = set()
        self._pruned = ""
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Load what this node has counted lately; raise `StoreUnavailable`."""
        for name, value in (await self._store.read(Space.USAGE)).items():
            if self._may_change(name) and f":{self._node}:" in name:
                self._parts[name] = {_id(row): row for row in _thaw(value)}

    async def run(self) -> None:
        """Write what was counted, every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.write()
            except StoreUnavailable as error:
                log.debug("usage waits for the store: %s", error)

    async def close(self) -> None:
        """Write what is left; what cannot be written is lost."""
        try:
            await self.write()
        except StoreUnavailable as error:
            log.warning("the last usage was lost: %s", error)

    async def write(self) -> None:
        """Write what was counted since the last time; raise `StoreUnavailable`, and write it then with what comes next."""
        async with self._turn:
            for row in self.book.take():
                self._count(row)
            if self._dirty:
                await self._store.write(*map(self._put, sorted(self._dirty)))
                self._dirty.clear()
            await self._prune()

    async def rows(self, since: str, until: str) -> Sequence[UsageRow]:
        """Return what the whole site has counted, from day to day, both included, in order; raise `StoreUnavailable`."""
        await self.write()
        found: dict[_Id, UsageRow] = {}
        for name, value in (await self._store.read(Space.USAGE)).items():
            if since <= name.partition(":")[0] <= until:
                for row in _thaw(value):
                    held = found.get(_id(row))
                    found[_id(row)] = row if held is None else held + row
        return [found[key] for key in sorted(found)]

    def _count(self, row: UsageRow) -> None:
        row = replace(row, model=row.model[:MAX_NAME])
        self.history.add(row)
        part = crc32(f"{row.key} {row.model}".encode()) % PARTS
        name = f"{row.day}:{self._node}:{part}"
        rows = self._parts.setdefault(name, {})
        if _id(row) not in rows and len(rows) >= MAX_ROWS:
            row = replace(row, model=NOBODY, node=NOBODY)
            if _id(row) not in rows and len(rows) >= 2 * MAX_ROWS - 1:
                row = replace(row, key=NOBODY)
        held = rows.get(_id(row))
        rows[_id(row)] = row if held is None else held + row
        self._dirty.add(name)

    def _put(self, name: str) -> Put:
        return Put(Space.USAGE, name, _ROWS.dump_json(tuple(self._parts[name].values())))

    def _may_change(self, name: str) -> bool:
        # What another process counted of yesterday may come late.
        return _age(name, self.book.today()) <= 1

    async def _prune(self) -> None:
        """Forget days that are over, once a day: here, and in the store those that are too old."""
        today = self.book.today()
        if self._pruned == today:
            return
        self._parts = {n: rows for n, rows in self._parts.items() if self._may_change(n)}
        held = await self._store.read(Space.USAGE)
        gone: list[Change] = [
            Delete(Space.USAGE, name) for name in held if _age(name, today) >= self._days
        ]
        if gone:
            await self._store.write(*gone)
        self._pruned = today


def sums(rows: Iterable[UsageRow], by: Sequence[str]) -> list[UsageRow]:
    """Return rows summed up by some of `day`, `key`, `model` and `node`; the others are empty."""
    found: dict[_Id, UsageRow] = {}
    for row in rows:
        day, key, model, node = (
            said if name in by else ""
            for name, said in zip(("day", "key", "model", "node"), _id(row), strict=True)
        )
        short = replace(row, day=day, key=key, model=model, node=node)
        held = found.get(_id(short))
        found[_id(short)] = short if held is None else held + short
    return [found[key] for key in sorted(found)]


def _row(key: _Id, tally: UsageTally) -> UsageRow:
    return UsageRow(
        *key,
        requests=tally.requests,
        failed=tally.failed,
        prompt_tokens=tally.prompt,
        completion_tokens=tally.completion,
        cached_tokens=tally.cached,
        estimated=tally.estimated,
        seconds=round(tally.seconds, 6),
        first_seconds=round(tally.first_seconds, 6),
    )


def _id(row: UsageRow) -> _Id:
    return row.day, row.key, row.model, row.node


def _age(name: str, today: str) -> int:
    """Return how many days ago a row was written; one whose day nobody can read is as old as can be."""
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
