"""Buffers of one process for receipts and counted usage, until the node takes them to write them to the store."""

import time
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, NamedTuple

from node.auth.receipts import Side
from node.auth.usage_row import NOBODY, UsageId, UsageRow
from registry.clock import Clock
from router.openai.usage import Usage

if TYPE_CHECKING:
    from node.faces.access_log import Account


MAX_WAITING = 20_000
"""Receipts that wait for a store that does not work; beyond that, new receipts are lost, and an error is logged."""

_MOST_CHARACTERS = 100


class WaitingReceipt(NamedTuple):
    """Receipt for `peer`: Unix time in milliseconds, and its JSON exactly as in `Page.digest`."""

    peer: str
    at: int
    text: str


class ReceiptBook:
    """Receipts that one process has yet to write. Lives on one event loop."""

    def __init__(self, wall: Clock) -> None:
        """`wall` returns Unix time."""
        self._wall = wall
        self._waiting: list[WaitingReceipt] = []
        self.lost = 0

    def add(
        self, side: Side, peer: str, request: str, model: str, usage: Usage | None, seconds: float
    ) -> None:
        """Add a receipt for an answer that has just ended well."""
        prompt = completion = "null"
        if usage is not None and not usage.estimated:
            prompt, completion = str(usage.prompt), str(usage.completion)
        at, milliseconds = int(self._wall() * 1000), int(seconds * 1000)
        request, model = _quoted(request[:_MOST_CHARACTERS]), _quoted(model[:_MOST_CHARACTERS])
        # Formatted by hand, as many are made in a second.
        text = (
            f'{{"at":{at},"completion":{completion},"milliseconds":{milliseconds},"model":{model},'
            f'"prompt":{prompt},"request":{request},"side":"{side}"}}'
        )
        self.take_in(WaitingReceipt(peer, at, text))

    def take_in(self, receipt: WaitingReceipt) -> None:
        """Add a receipt, of another process too; count it as lost if too many wait."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(receipt)
        else:
            self.lost += 1

    def take(self) -> tuple[WaitingReceipt, ...]:
        """Return, and remove, the receipts that were added since the last call."""
        receipts, self._waiting = self._waiting, []
        return tuple(receipts)


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
    """Usage that this process has counted and nothing has taken yet."""

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
        tally.first_seconds += account.first_byte_seconds
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
