"""Text of a worker of another protocol, cut at stop strings, with its tokens estimated if they are not reported.

A dialect reads the worker's output into `OutputPiece`, piece by piece or at once; here it becomes the events of an answer.

Texts are cut because some workers return the stop string, or ignore it. Text that may be the beginning of a stop string is held
back until the next text shows whether it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import orjson

from router.canonical.text import TextRequest
from router.openai.logprobs import HeldTokens, Token
from router.openai.text_writer import Delta, End, Event, Reason, ToolCall
from router.openai.usage import Usage
from router.requests import Kind
from router.select.fitness import estimated_tokens


class StopFilter:
    """Filter that cuts one text, piece by piece, before the first stop string. `hit` is that string, `""` without one."""

    __slots__ = ("_buffer", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""
        self.hit = ""

    def feed(self, text: str) -> str:
        """Take in the next piece and return what is certainly part of the text; nothing after a stop string."""
        if self.hit:
            return ""
        searched = self._buffer + text
        matches = [(index, stop) for stop in self._stops if (index := searched.find(stop)) >= 0]
        if matches:
            (index, self.hit), self._buffer = min(matches), ""
            return searched[:index]
        keep = max((_partial_stop_length(searched, stop) for stop in self._stops), default=0)
        self._buffer = searched[len(searched) - keep :]
        return searched[: len(searched) - keep]

    def flush(self) -> str:
        """Return what was held back, once the text has ended by itself."""
        held, self._buffer = self._buffer, ""
        return held


def _partial_stop_length(text: str, stop: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """One piece of a worker's output for one choice; `over` says that it is the last."""

    text: str = ""
    reason: Reason | None = None
    usage: Usage | None = None
    calls: tuple[ToolCall, ...] = ()
    over: bool = False
    tokens: tuple[Token, ...] = ()


class ChoiceReader(Generic[T]):
    """Reader of one choice of a stream, event by event; `ended` says that it is complete and no more need be read."""

    __slots__ = (
        "_bytes",
        "_choice",
        "_echo",
        "_has_calls",
        "_read",
        "_reason",
        "_request",
        "_stops",
        "_tokens",
        "_usage",
        "ended",
    )

    def __init__(
        self, request: TextRequest, read: Callable[[TextRequest, T], OutputPiece], choice: int = 0
    ) -> None:
        """Start a choice. `read` reads one of the worker's events, and raises a `WorkerError` for a failure or an invalid one."""
        self._request = request
        self._read = read
        self._choice = choice
        self._echo = echo(request, choice)
        self._stops = StopFilter(request.stop)
        self._tokens = HeldTokens(len(self._echo))
        self._reason: Reason | None = None
        self._usage: Usage | None = None
        self._bytes = 0
        self._has_calls = False
        self.ended = False

    def feed(self, data: T) -> list[Event]:
        """Take in one event and return what it means; raise what `read` raises."""
        piece = self._read(self._request, data)
        self._usage = piece.usage or self._usage
        self._bytes += len(piece.text.encode())
        shown = self._stops.feed(piece.text)
        events = self._delta(shown, piece.tokens)
        if self._stops.hit:
            return events + self._end("stop")
        events += piece.calls
        self._has_calls = self._has_calls or bool(piece.calls)
        self._reason = piece.reason or self._reason
        return events + self._end(self._reason or "stop") if piece.over else events

    def finish(self) -> list[Event]:
        """Take in the end of the stream; return nothing if it never gave a finish reason."""
        return self._end(self._reason) if self._reason and not self.ended else []

    def _end(self, reason: Reason) -> list[Event]:
        if self.ended:
            return []
        self.ended = True
        tail = [] if self._stops.hit else self._delta(self._stops.flush(), (), last=True)
        estimate = Usage(
            estimate_prompt_tokens(self._request, self._choice),
            estimated_tokens(self._bytes),
            estimated=True,
        )
        reason = "tool_calls" if self._has_calls else reason
        return [*tail, End(reason, self._choice, self._stops.hit), self._usage or estimate]

    def _delta(self, shown: str, tokens: tuple[Token, ...], *, last: bool = False) -> list[Event]:
        text, self._echo = self._echo + shown, ""
        if self._request.logprobs is None:
            return [Delta(text, self._choice)] if text else []
        start = self._tokens.start
        ready = self._tokens.feed(tokens, len(shown))
        if last:
            ready += self._tokens.flush()
        return [Delta(text, self._choice, ready, start if ready else 0)] if text or ready else []


def in_one_piece(request: TextRequest, choice: int, piece: OutputPiece) -> list[Event]:
    """Return the events of a choice that came in one piece."""
    stops = StopFilter(request.stop)
    before = echo(request, choice)
    text = stops.feed(piece.text) + stops.flush()
    likely = HeldTokens(len(before))
    tokens = likely.feed(piece.tokens, len(text)) + (() if stops.hit else likely.flush())
    delta = Delta(before + text, choice, tokens, len(before) if tokens else 0)
    reason: Reason = "stop" if stops.hit else piece.reason or "stop"
    usage = piece.usage or estimate_usage(request, choice, piece.text)
    if piece.calls:
        shown: list[Event] = [delta] if delta.text else []
        return [*shown, *piece.calls, End("tool_calls", choice), usage]
    return [delta, End(reason, choice, stops.hit), usage]


def echo(request: TextRequest, choice: int) -> str:
    """Return the prompt if the caller wants it repeated before the text of a choice, else nothing."""
    return request.prompts[choice // request.n] if request.echo else ""


def estimate_usage(request: TextRequest, choice: int, text: str) -> Usage:
    """Estimate the usage of a choice."""
    return Usage(
        estimate_prompt_tokens(request, choice),
        estimated_tokens(len(text.encode())),
        estimated=True,
    )


def estimate_prompt_tokens(request: TextRequest, choice: int) -> int:
    """Estimate the tokens of one choice's prompt: to count them takes the model's tokenizer."""
    if request.kind is not Kind.CHAT:
        return estimated_tokens(len(request.prompts[choice // request.n].encode()))
    return estimated_tokens(len(orjson.dumps(request.messages)))
