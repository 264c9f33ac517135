"""Order of attempts, and their end: a generator without I/O.

Yields the candidate to try and is sent what went wrong. What every worker would reject is not tried again, nor what
broke after the caller had seen part of an answer.

Fallback through the names that a caller listed, and the failure that is told: a generator without I/O.

A name gives way to the next when nobody serves it, or when whoever does failed in a way that another worker might not.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from router.errors import BadRequest, RouterError, UnknownModel, WorkerError
from router.openai.body import with_model
from router.requests import Request
from router.select.candidates import Candidate
from router.state.readiness import not_ready


def in_turn(request: Request) -> Generator[Request, RouterError, None]:
    """Go through the names of a request until one is answered or there is no point; then raise what tells most.

    Yields the request as it is asked by that name alone, and is sent how that ended. Only the last name may queue.
    """
    told: RouterError | None = None
    names = (request.model, *request.fallbacks)
    for name in names:
        body = request.body
        if name != request.model:
            body = with_model(body, request.content_type, name)
        last = name == names[-1]
        # Who is ready first under any of the names is found by asking for all of them again.
        error = yield replace(
            request, model=name, body=body, fallbacks=(), waits=request.waits and last, holds=False
        )
        told = error if told is None or _tells(error) >= _tells(told) else told
        if isinstance(error, BadRequest) or (
            isinstance(error, WorkerError) and not error.elsewhere
        ):
            raise error
    if told is not None:
        raise told


def _tells(error: RouterError) -> int:
    """Rank an error: that a name is unknown tells least, what somebody answered tells most."""
    return 0 if isinstance(error, UnknownModel) else 1 if not_ready(error) else 2


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
