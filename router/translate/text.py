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

    __slots__ = ("_held", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = ""

    def take(self, text: str) -> str:
        """Take in the next piece and return what is certainly part of the text; nothing after a stop string."""
        if self.hit:
            return ""
        looked = self._held + text
        found = [(at, stop) for stop in self._stops if (at := looked.find(stop)) >= 0]
        if found:
            (at, self.hit), self._held = min(found), ""
            return looked[:at]
        keep = max((_partial_stop_length(looked, stop) for stop in self._stops), default=0)
        self._held = looked[len(looked) - keep :]
        return looked[: len(looked) - keep]

    def rest(self) -> str:
        """Return what was held back, once the text has ended by itself."""
        held, self._held = self._held, ""
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
        "_asked",
        "_bytes",
        "_called",
        "_choice",
        "_echo",
        "_read",
        "_reason",
        "_shown",
        "_spent",
        "_stops",
        "ended",
    )

    def __init__(
        self, asked: TextRequest, read: Callable[[TextRequest, T], OutputPiece], choice: int = 0
    ) -> None:
        """Start a choice. `read` reads one of the worker's events, and raises a `WorkerError` for a failure or an invalid one."""
        self._asked = asked
        self._read = read
        self._choice = choice
        self._echo = echo(asked, choice)
        self._stops = StopFilter(asked.stop)
        self._shown = HeldTokens(len(self._echo))
        self._reason: Reason | None = None
        self._spent: Usage | None = None
        self._bytes = 0
        self._called = False
        self.ended = False

    def take(self, data: T) -> list[Event]:
        """Take in one event and return what it means; raise what `read` raises."""
        said = self._read(self._asked, data)
        self._spent = said.usage or self._spent
        self._bytes += len(said.text.encode())
        shown = self._stops.take(said.text)
        events = self._delta(shown, said.tokens)
        if self._stops.hit:
            return events + self._end("stop")
        events += said.calls
        self._called = self._called or bool(said.calls)
        self._reason = said.reason or self._reason
        return events + self._end(self._reason or "stop") if said.over else events

    def finish(self) -> list[Event]:
        """Take in the end of the stream; return nothing if it never gave a finish reason."""
        return self._end(self._reason) if self._reason and not self.ended else []

    def _end(self, reason: Reason) -> list[Event]:
        if self.ended:
            return []
        self.ended = True
        rest = [] if self._stops.hit else self._delta(self._stops.rest(), (), last=True)
        estimate = Usage(
            estimate_prompt_tokens(self._asked, self._choice),
            estimated_tokens(self._bytes),
            estimated=True,
        )
        reason = "tool_calls" if self._called else reason
        return [*rest, End(reason, self._choice, self._stops.hit), self._spent or estimate]

    def _delta(self, shown: str, tokens: tuple[Token, ...], *, last: bool = False) -> list[Event]:
        text, self._echo = self._echo + shown, ""
        if self._asked.logprobs is None:
            return [Delta(text, self._choice)] if text else []
        start = self._shown.start
        told = self._shown.take(tokens, len(shown))
        if last:
            told += self._shown.rest()
        return [Delta(text, self._choice, told, start if told else 0)] if text or told else []


def in_one_piece(asked: TextRequest, choice: int, said: OutputPiece) -> list[Event]:
    """Return the events of a choice that came in one piece."""
    stops = StopFilter(asked.stop)
    before = echo(asked, choice)
    text = stops.take(said.text) + stops.rest()
    likely = HeldTokens(len(before))
    tokens = likely.take(said.tokens, len(text)) + (() if stops.hit else likely.rest())
    delta = Delta(before + text, choice, tokens, len(before) if tokens else 0)
    reason: Reason = "stop" if stops.hit else said.reason or "stop"
    spent = said.usage or estimate_usage(asked, choice, said.text)
    if said.calls:
        shown: list[Event] = [delta] if delta.text else []
        return [*shown, *said.calls, End("tool_calls", choice), spent]
    return [delta, End(reason, choice, stops.hit), spent]


def echo(asked: TextRequest, choice: int) -> str:
    """Return the prompt if the caller wants it repeated before the text of a choice, else nothing."""
    return asked.prompts[choice // asked.n] if asked.echo else ""


def estimate_usage(asked: TextRequest, choice: int, text: str) -> Usage:
    """Estimate the usage of a choice."""
    return Usage(
        estimate_prompt_tokens(asked, choice), estimated_tokens(len(text.encode())), estimated=True
    )


def estimate_prompt_tokens(asked: TextRequest, choice: int) -> int:
    """Estimate the tokens of one choice's prompt: to count them takes the model's tokenizer."""
    if asked.kind is not Kind.CHAT:
        return estimated_tokens(len(asked.prompts[choice // asked.n].encode()))
    return estimated_tokens(len(orjson.dumps(asked.messages)))
