"""Book of the usage that this process has counted, until it is taken to be written."""

import time
from typing import TYPE_CHECKING

from node.auth.usage_row import NOBODY, UsageId, UsageRow
from registry.clock import Clock

if TYPE_CHECKING:
    from node.faces.access_log import Account

_DAY = 86_400
_REFUSED = 400


class UsageTally:
    """Running sums of one row: a row object for each request would cost ten times as much."""

    __slots__ = (
        "cached", "completion", "estimated", "failed", "first_seconds", "prompt", "requests", "seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.failed = self.prompt = self.completion = self.cached = 0
        self.estimated = 0
        self.seconds = self.first_seconds = 0.0


class UsageBook:
    """Counts of this process, until they are taken."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._day, self._until = "", 0.0
        self._tallies: dict[UsageId, UsageTally] = {}
        self._rows: list[UsageRow] = []

    def count(self, account: "Account") -> None:
        """Count a request that has just ended."""
        if self._wall() >= self._until:
            self.today()
        node, used = account.node, account.used
        # Where no node answered, the requested model can be any text, so it is not kept.
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
        """Add a row that another process has counted."""
        self._rows.append(row)

    def today(self) -> str:
        """Return today's date in UTC, as `2026-11-25`."""
        now = self._wall()
        if now >= self._until:
            self._day = time.strftime("%Y-%m-%d", time.gmtime(now))
            self._until = (now // _DAY + 1) * _DAY
        return self._day

    def take(self) -> tuple[UsageRow, ...]:
        """Return, and remove, the counts since the last call."""
        tallies, self._tallies = self._tallies, {}
        rows, self._rows = self._rows, []
        return (*(_row(key, tally) for key, tally in tallies.items()), *rows)


def _row(key: UsageId, tally: UsageTally) -> UsageRow:
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
