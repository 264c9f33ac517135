"""Refusals of an HTTP worker: the error that a status beyond 299 means, as far as all dialects agree."""

import time
from email.utils import parsedate_to_datetime

from router.errors import (
    Looped,
    WorkerBusy,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTooSmall,
)
from router.http.exchange import REFUSALS, Exchange
from router.openai.sse import Splitter

MAX_REFUSAL_BYTES = 64 * 1024
"""Bytes of a refusal that are read and shown."""

_LONGEST_RETRY = 3600.0

LOOP_DETECTED = 508
"""Status with which a node refuses a request that has passed it before (RFC 5842 7.2)."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_MODIFIED = "304, not modified, to a request without a condition"


async def refusal(exchange: Exchange) -> WorkerError:
    """Return the error that a status beyond 299 means, as far as all dialects over HTTP agree."""
    status = exchange.status
    if status in REFUSALS:
        return rejected(status, await objection(exchange))
    # 529 is Anthropic's status for overloaded, which other servers have adopted.
    if status in (408, 425, 429, 529):
        return busy(exchange)
    if status == LOOP_DETECTED:
        return Looped("the request returned: its worker is a node that it had passed")
    if status in (401, 403):
        return WorkerFailed("the worker does not admit this node")
    if status in _REDIRECTS:
        hint = "to another address, which has to be registered instead"
        return WorkerFailed(f"the worker redirects ({status}) {hint}")
    answered = _NOT_MODIFIED if status == 304 else f"with status {status}"
    return WorkerFailed(f"the worker answered {answered}")


def rejected(status: int, body: bytes) -> WorkerRejected:
    """Return the error for one of `REFUSALS`."""
    return WorkerTooSmall(body) if status == 413 else WorkerRejected(status, body)


async def objection(exchange: Exchange) -> bytes:
    """Return the body that says what is wrong with a request; TGI may write it as the event of a stream."""
    body = (await exchange.read_up_to(MAX_REFUSAL_BYTES))[:MAX_REFUSAL_BYTES]
    if not exchange.streamed:
        return body
    splitter = Splitter(max_event_bytes=MAX_REFUSAL_BYTES)
    data = (event.data for event in (*splitter.feed(body), *splitter.finish()))
    return next(filter(None, data), body)


def busy(exchange: Exchange) -> WorkerBusy:
    """Return the error for a full worker, with its `Retry-After` if that is valid."""
    seconds = retry_after(exchange.header("retry-after"), time.time())
    if seconds is None:
        return WorkerBusy("the worker is full")
    return WorkerBusy("the worker is full", retry_after=seconds, named=True)


def retry_after(value: str, now: float) -> float | None:
    """Return the seconds to wait from a number or a date (RFC 9110 10.2.3), `None` if it is neither; `now` is wall-clock time."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = max(0.0, parsedate_to_datetime(value).timestamp() - now)
        except (ValueError, OverflowError):
            return None
    return min(seconds, _LONGEST_RETRY) if seconds >= 0 else None
