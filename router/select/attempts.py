"""Order of attempts, and their end: a generator without I/O.

It yields the candidate to try and is sent the failure. A request that every worker would reject is not retried, nor one that
broke after the caller had seen part of an answer.

Fallback through the names that a caller listed: the next name is tried if no node serves a name, or if its worker failed in a
way that another might not.

Retry budget: retries are a share of recent requests, so that they cannot double a load. The death of a machine or worker with
many requests in flight adds no load: as many requests as were there may go elsewhere, once. Time is an argument.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from registry.bounded import put_newest
from router.errors import BadRequest, PoisonousRequest, RouterError, UnknownModel, WorkerError
from router.openai.body import with_model
from router.requests import Request
from router.select.candidates import Candidate
from router.state.readiness import is_not_ready

WINDOW = 10
"""Seconds that count as recent."""

RESERVE = 30
"""Retries within `WINDOW` that are always allowed: a share of few requests would be none."""

MOST_DEATHS = 2
"""Deaths of workers at which a request is given up: of a single one, the request need not be the cause."""

MAX_PLACES = 4_096
"""Machines and workers that are remembered as having died lately; beyond that, the one that died first is evicted."""


@dataclass(slots=True)
class _Death:
    until: float
    left: int


class RetryBudget:
    """Retry budget; `share` is the share of recent requests that retries may be."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._second = 0
        self._next_second = 1
        # The requests of this second are added to the others when it is over.
        self._new_requests = 0
        self._requests = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._deaths: dict[str, _Death] = {}

    def count_request(self, now: float) -> None:
        """Count a new request."""
        if now >= self._next_second:
            self._advance(now)
        self._new_requests += 1

    def try_spend(self, place: str, under_way: int, now: float) -> bool:
        """Return whether a request that failed at a place may be retried; if so, charge the budget.

        `under_way` is how many requests were in flight there when this one failed, itself included.
        """
        self._advance(now)
        death = self._deaths.get(place)
        if death is None or death.until <= now:
            death = _Death(now + WINDOW, under_way)
            put_newest(self._deaths, place, death, limit=MAX_PLACES)
        if death.left > 0:
            death.left -= 1
            return True
        requests = sum(self._requests) + self._new_requests
        if sum(self._retries) >= max(RESERVE, self._share * requests):
            return False
        self._retries[self._second % WINDOW] += 1
        return True

    def _advance(self, now: float) -> None:
        second = int(now)
        if second <= self._second:
            return
        self._requests[self._second % WINDOW], self._new_requests = self._new_requests, 0
        for expired in range(max(self._second + 1, second - WINDOW + 1), second + 1):
            self._requests[expired % WINDOW] = self._retries[expired % WINDOW] = 0
        self._second, self._next_second = second, second + 1


def iterate_names(request: Request) -> Generator[Request, RouterError, None]:
    """Go through the names of a request until one is answered or there is no point; then raise the most telling error.

    Yields the request as it is sent by that name alone, and is sent its error. Only the last name may queue.
    """
    telling: RouterError | None = None
    names = (request.model, *request.fallbacks)
    for name in names:
        body = request.body
        if name != request.model:
            body = with_model(body, request.content_type, name)
        last = name == names[-1]
        # To find the worker that is ready first under any of the names, all of them are tried again.
        error = yield replace(
            request, model=name, body=body, fallbacks=(), waits=request.waits and last, holds=False
        )
        if telling is None or _rank_error(error) >= _rank_error(telling):
            telling = error
        final = isinstance(error, WorkerError) and not error.elsewhere
        if final or isinstance(error, BadRequest):
            raise error
    if telling is not None:
        raise telling


def _rank_error(error: RouterError) -> int:
    """Rank an error by what it tells a caller: an unknown name least, a worker's own error most."""
    return 0 if isinstance(error, UnknownModel) else 1 if is_not_ready(error) else 2


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an attempt; `elapsed` is seconds since the request began."""

    error: WorkerError
    elapsed: float = 0.0


Tries = Generator[Candidate, Failure, None]


def iterate_candidates(
    ordered: Sequence[Candidate],
    *,
    at_most: int,
    within: float,
    afford: Callable[[Candidate, WorkerError], bool],
    once: bool = False,
) -> Tries:
    """Go through the candidates until one answers or there is no point; then raise the last error that a worker gave.

    The error of a worker that was not ready is raised only if none was ready. A node that has failed is asked again only if no
    other is left. No attempt starts once `within` seconds are over, and `afford` says whether one more may be made after this
    failure of this candidate. What may be done `once` only is not retried if its worker may have begun.
    """
    remaining = list(ordered)
    failed = set()
    telling: WorkerError | None = None
    for tries_left in reversed(range(min(at_most, len(remaining)))):
        # The machine is as likely a cause as the worker on it, so another machine is the better bet.
        candidate = next((c for c in remaining if c.node not in failed), remaining[0])
        remaining.remove(candidate)
        failure = yield candidate
        last = failure.error
        if telling is None or is_not_ready(telling) or not is_not_ready(last):
            telling = last
        failed.add(candidate.node)
        may_be_done = once and last.sent
        again = tries_left and last.elsewhere and not may_be_done and failure.elapsed < within
        if not again or not afford(candidate, last):
            break
    if telling is not None:
        telling.attempts, telling.deaths = last.attempts, last.deaths
        raise telling


def count_deaths(request: Request, error: WorkerError) -> Request:
    """Return the request with its worker deaths counted; raise `PoisonousRequest` if they reach `MOST_DEATHS`."""
    if error.deaths == request.deaths:
        return request
    if error.deaths < MOST_DEATHS:
        return replace(request, deaths=error.deaths)
    poisonous = PoisonousRequest(
        "two workers died during this request before they answered, so no third worker gets it"
    )
    poisonous.attempts, poisonous.deaths, poisonous.at = error.attempts, error.deaths, error.at
    raise poisonous from error
