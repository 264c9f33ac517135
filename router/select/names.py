"""Fallback through the names that a caller listed, and the failure that is told: a generator without I/O.

A name gives way to the next when nobody serves it, or when whoever does failed in a way that another worker might not.
"""

from collections.abc import Generator
from dataclasses import replace

from router.errors import BadRequest, RouterError, UnknownModel, WorkerError
from router.openai.body import with_model
from router.requests import Request
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
