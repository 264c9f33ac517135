"""Order of attempts, and their end: a generator without I/O.

Yields the candidate to try and is sent what went wrong. What every worker would reject is not tried again, nor what
broke after the caller had seen part of an answer.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from router.errors import WorkerError
from router.select.candidates import Candidate
from router.state.readiness import not_ready


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended badly; `elapsed` is seconds since the request began."""

    error: WorkerError
    elapsed: float = 0.0


Tries = Generator[Candidate, Failure, None]


def attempts(
    ordered: Sequence[Candidate],
    *,
    at_most: int,
    within: float,
    afford: Callable[[Candidate, WorkerError], bool],
) -> Tries:
    """Go through the candidates until one answers or there is no point; then raise the last error that somebody gave.

    That nobody was there tells less, and is raised when it was so at all of them. A node that has failed is asked again only
    when no other is left. No attempt starts once `within` seconds are gone, and `afford` says whether one more may be made
    after this failure of this candidate.
    """
    left = list(ordered)
    failed = set()
    telling: WorkerError | None = None
    for others in reversed(range(min(at_most, len(left)))):
        # The machine is as likely a cause as the worker on it, so another machine is the better bet.
        candidate = next((c for c in left if c.node not in failed), left[0])
        left.remove(candidate)
        failure = yield candidate
        last = failure.error
        if telling is None or not_ready(telling) or not not_ready(last):
            telling = last
        failed.add(candidate.node)
        again = others and last.elsewhere and failure.elapsed < within
        if not again or not afford(candidate, last):
            break
    if telling is not None:
        telling.attempts, telling.deaths = last.attempts, last.deaths
        raise telling
