"""Trace of one request: its ids and its attempts, from which spans are made at its end.

Only a request that is traced has one. It holds no text of the request or of an error: both may quote the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.openai.usage import Usage
from router.peers.headers import PARENT
from router.requests import PassedHeaders, Request
from router.select.candidates import Candidate
from router.select.weights import expectations

MOST_ATTEMPTS = 32
"""Attempts of one request that are noted: a stream that is often continued has more, and its later parts are left out."""

SAMPLED = 1
"""The flag of a `traceparent` by which a caller says that the trace is recorded (W3C Trace Context, 3.2.2.5.1)."""


class SpanIds(Protocol):
    """Source of span ids."""

    def span(self) -> str:
        """Return the id of a new span, 16 hexadecimal digits."""


def parent_of(trace: str, span: str, flags: str) -> str:
    """Write a `traceparent`, version 00."""
    return f"00-{trace}-{span}-{flags}"


@dataclass(slots=True)
class AttemptTrace:
    """One attempt. Times are of the router's clock, 0 for events that have not happened.

    `call` is the id of the span of the call to this machine's worker, empty if another node is asked. `others` is the number of
    other candidates, `expected` the seconds that the attempt was expected to take, negative if unknown.
    """

    id: str
    candidate: Candidate
    number: int
    call: str = ""
    others: int = 0
    expected: float = -1.0
    began: float = 0.0
    first_byte: float = 0.0
    ended: float = 0.0
    route: str = ""
    """How the answer came; empty if none did."""
    status: int = 0
    usage: Usage | None = None
    error: str = ""
    """The class of the error that it failed with."""

    def record_first_byte(self, route: str, status: int, now: float) -> None:
        """Note the first byte."""
        self.route, self.status, self.first_byte = route, status, now

    def record_end(self, error: Exception | None, usage: Usage | None, now: float) -> None:
        """Note the end, the error, and the token usage."""
        self.ended, self.usage = now, usage
        self.error = "" if error is None else type(error).__name__


@dataclass(slots=True)
class Trace:
    """The trace of one request at this node. `span` is the one of this node, `parent` the caller's, if any.

    `flags` are those of the `traceparent`, and `asked` is when the request was read, by the router's clock.
    """

    id: str
    span: str
    flags: str
    asked: float
    ids: SpanIds
    parent: str = ""
    streams: bool = False
    attempts: list[AttemptTrace] = field(default_factory=list)

    def add_attempt(
        self, request: Request, candidate: Candidate, others: Sequence[Candidate], number: int
    ) -> AttemptTrace:
        """Return the trace of a new attempt."""
        expected = expectations(request, candidate, (candidate, *others))
        attempt = AttemptTrace(
            id=self.ids.span(),
            candidate=candidate,
            number=number,
            call=self.ids.span() if candidate.worker else "",
            others=len(others),
            expected=expected.get("expected_seconds", -1.0),
        )
        if len(self.attempts) < MOST_ATTEMPTS:
            self.attempts.append(attempt)
        return attempt

    def outgoing_headers(self, passed: PassedHeaders, attempt: AttemptTrace) -> PassedHeaders:
        """Return the headers that travel with one attempt: the receiver's span is a child of the attempt's."""
        parent = parent_of(self.id, attempt.call or attempt.id, self.flags)
        return PassedHeaders({**passed, PARENT: parent})
