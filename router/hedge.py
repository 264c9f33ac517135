"""Hedging: asks a second worker if the first is slower than usual.

The first answer counts; the other request is cancelled at once.

Only short, unstreamed answers with a known usual latency are hedged; only an idle worker on another machine or in another
process is asked; and only within the retry budget: asking twice must not add to a high load.

`LatencyQuantiles` holds the latency quantiles of the last answers of each model and kind of request. No I/O.
"""

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable
from functools import partial

from registry.bounded import put_newest
from router.attempt import Attempt, AttemptContext, Routed
from router.errors import WorkerError
from router.requests import Kind
from router.select.candidates import Candidate

SAMPLES = 100
"""Answers remembered for one model and kind; beyond that, the oldest is evicted."""

FEWEST = 20
"""Fewest answers from which a quantile is given."""

MAX_MODELS = 1_024
"""Pairs of model and kind that are remembered; beyond that, the one answered longest ago is evicted."""


class LatencyQuantiles:
    """Latencies of the last answers, in seconds."""

    def __init__(self) -> None:
        self._latencies: dict[tuple[str, Kind], tuple[deque[float], list[float]]] = {}

    def record(self, model: str, kind: Kind, seconds: float) -> None:
        """Take in how long an answer took."""
        latest, ordered = self._latencies.get((model, kind)) or (deque(), list[float]())
        put_newest(self._latencies, (model, kind), (latest, ordered), limit=MAX_MODELS)
        if len(latest) >= SAMPLES:
            ordered.remove(latest.popleft())
        latest.append(seconds)
        insort(ordered, seconds)

    def slow_latency(self, model: str, kind: Kind) -> float | None:
        """Return the 95th percentile in seconds, `None` while too few answers are known."""
        _, ordered = self._latencies.get((model, kind), (None, ()))
        return ordered[len(ordered) * 19 // 20] if len(ordered) >= FEWEST else None


SHORTEST_WAIT = 0.05
"""Seconds after which a second worker is asked at the earliest: shorter answers are not worth two workers' time."""

LONGEST_WAIT = 5.0
"""Seconds beyond which an answer is not short, and is not hedged."""

_KINDS = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING})


class Hedger:
    """Hedging of attempts: knows when a second worker is worth asking, and asks it."""

    def __init__(self, runner: AttemptContext) -> None:
        self._runner = runner
        self._ledger = runner.ledger
        self._latencies = LatencyQuantiles()

    async def enter(self, attempt: Attempt) -> tuple[Attempt, Routed]:
        """Enter an attempt or the one that overtook it, and return which; raise the first attempt's `WorkerError`."""
        request = attempt.request
        if request.stream or request.kind not in _KINDS:
            return attempt, await attempt.__aenter__()
        slow, began = self._latencies.slow_latency(request.model, request.kind), self._runner.now()
        if slow is None or slow > LONGEST_WAIT or not attempt.others:
            entered = attempt, await attempt.__aenter__()
        else:
            rival = partial(self._second_attempt, attempt)
            entered = await race(attempt, rival, max(slow, SHORTEST_WAIT))
            self._ledger.events["hedges_won"] += entered[0] is not attempt
        self._latencies.record(request.model, request.kind, self._runner.now() - began)
        return entered

    def _second_attempt(self, first: Attempt) -> Attempt | None:
        """Return an attempt at another candidate; `None` if all are busy or in doubt, or the budget is spent."""
        first_place = first.candidate.place
        idle = (
            c for c in first.others if c.place != first_place and not c.rank and self._is_idle(c)
        )
        rival = next(idle, None)
        if rival is None or not self._ledger.try_charge_hedge():
            return None
        # It need not wait for a slot: the first is at work.
        others, number = (first.candidate,), first.number + 1
        return Attempt(
            self._runner, first.request, rival, number=number, others=others, holds_slot=False
        )

    def _is_idle(self, candidate: Candidate) -> bool:
        requests_of_others = candidate.report.requests_of_others if candidate.report else 0.0
        return requests_of_others < 1 and not self._ledger.in_flight.get(candidate.key)


async def race(
    first: Attempt, second: Callable[[], Attempt | None], wait: float
) -> tuple[Attempt, Routed]:
    """Enter an attempt, and after `wait` seconds another; return the one that enters first, and cancel the other.

    Raise the first attempt's error if neither enters.
    """
    entered: dict[Attempt, Routed] = {}
    failed: dict[Attempt, WorkerError] = {}

    async def enter(attempt: Attempt) -> None:
        try:
            entered[attempt] = await attempt.__aenter__()
        except WorkerError as error:
            failed[attempt] = error

    winner: Attempt | None = None
    try:
        async with asyncio.TaskGroup() as group:
            pending = {group.create_task(enter(first))}
            await asyncio.wait(pending, timeout=wait)
            if not (entered or failed) and (other := second()) is not None:
                pending.add(group.create_task(enter(other)))
            while pending and not entered:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for loser in pending:
                loser.cancel()
        winner = next(iter(entered), None)
    finally:
        # Both may have entered at the same moment.
        for attempt in entered:
            if attempt is not winner:
                await attempt.__aexit__(None, None, None)
    if winner is not None:
        return winner, entered[winner]
    error = failed[first]
    before = first.request.deaths
    error.deaths = before + sum(other.deaths - before for other in failed.values())
    error.attempts = max(other.attempts for other in failed.values())
    raise error
