"""Parser for texts in OpenAI's form. JSON or stream events in, small events out: the mirror of `text_writer`.

For clients that speak another protocol. What their protocols lack (ids, fingerprints) is not read.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import orjson

from router.errors import WorkerFailed
from router.openai import logprobs
from router.openai.body import MAX_DEPTH
from router.openai.sse import EventTooLarge, Splitter
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage, read_usage
from router.requests import Kind

_MOST_CHOICES = 2**16
_STOPPED = ("stop_reason", "matched_stop")
_REASONS: Mapping[object, Reason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A piece of a model's reasoning before its text, where the worker separates the two."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call. The first of each `index` has its id and name; the `arguments` are JSON once joined.

    Calls are numbered as they begin: older servers give all of them the index 0.
    """

    index: int
    id: str
    name: str
    arguments: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TextFailure:
    """A failure on the way of a stream, which ends it."""

    message: str
    type: str
    code: str


TextEvent: TypeAlias = Delta | ReasoningPiece | CallPart | End | Usage | TextFailure


class _Calls:
    """The tool calls of a stream: the number and the id of the one that is open at each choice and index."""

    __slots__ = ("_begun", "_open")

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}
        self._open: dict[tuple[int, int], tuple[int, str]] = {}

    def numbered(self, part: CallPart) -> CallPart:
        """Return a piece with the number of its call. Another id with a name begins a new call."""
        key = part.choice, part.index
        number, id_ = self._open.get(key, (-1, ""))
        if number < 0 or (part.name and id_ and part.id not in ("", id_)):
            number = self._begun.get(part.choice, 0)
            self._begun[part.choice] = number + 1
            self._open[key] = number, part.id
        return replace(part, index=number)


class TextStreamParser:
    """One stream of text, in chunks of any size. `ended` says that its `[DONE]` or a failure has come."""

    __slots__ = ("_calls", "_saw_end", "_splitter", "ended")

    def __init__(self, *, max_event_bytes: int) -> None:
        self._splitter = Splitter(max_event_bytes=max_event_bytes)
        self._calls = _Calls()
        self.ended = self._saw_end = False

    @property
    def may_end(self) -> bool:
        """Whether the stream may end here: after a finish reason or `[DONE]`. Some workers omit one; without both it broke."""
        return self.ended or self._saw_end

    def feed(self, chunk: bytes) -> list[TextEvent]:
        """Return the events in the next bytes; raise `WorkerFailed` if this is no stream of OpenAI's."""
        try:
            events = self._splitter.feed(chunk)
        except EventTooLarge as error:
            raise WorkerFailed(str(error)) from error
        return self._parse_events(event.data for event in events)

    def finish(self) -> list[TextEvent]:
        """Return the content of the stream's last event if its blank line never came."""
        return self._parse_events(event.data for event in self._splitter.finish())

    def _parse_events(self, chunks: Iterable[bytes]) -> list[TextEvent]:
        events: list[TextEvent] = []
        for data in chunks:
            if not data or self.ended:
                continue
            if data == b"[DONE]":
                self.ended = True
                continue
            for event in parse_chunk(answer_object(data)):
                events.append(self._calls.numbered(event) if isinstance(event, CallPart) else event)
                if not isinstance(event, Delta):
                    self.ended = self.ended or isinstance(event, TextFailure)
                    self._saw_end = self._saw_end or isinstance(event, End)
        return events


def parse_answer(kind: Kind, body: bytes) -> list[TextEvent]:
    """Return the events of a chat or completion answered in one piece; raise `WorkerFailed` if it is no such answer."""
    answer = answer_object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise WorkerFailed("the answer has no choices")
    events: list[TextEvent] = []
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise WorkerFailed("a choice of the answer is not an object")
        index = _index(choice.get("index"), position)
        message = choice.get("message") if kind is Kind.CHAT else choice
        if not isinstance(message, dict):
            raise WorkerFailed("a choice of the answer has no message")
        numbers = count()
        events += (
            replace(event, index=next(numbers)) if isinstance(event, CallPart) else event
            for event in _pieces(message, index, choice.get("logprobs"))
        )
        events.append(_end(choice, index))
    if (usage := read_usage(answer)) is not None:
        events.append(usage)
    return events


def text_of(events: Iterable[TextEvent], choice: int = 0) -> str:
    """Return the text of one choice."""
    return "".join(
        event.text for event in events if isinstance(event, Delta) and event.choice == choice
    )


def reason_of(events: Iterable[TextEvent], choice: int = 0) -> Reason:
    """Return the finish reason of one choice."""
    ends = (event.reason for event in events if isinstance(event, End) and event.choice == choice)
    return next(ends, "stop")


def usage_of(events: Iterable[TextEvent]) -> Usage | None:
    """Return the usage of an answer, `None` without any; the last report counts."""
    last: Usage | None = None
    for event in events:
        if isinstance(event, Usage):
            last = event
    return last


def parse_chunk(payload: Mapping[str, object]) -> Iterator[TextEvent]:
    """Yield the content of one event of a stream; raise `WorkerFailed` if it is invalid."""
    error = payload.get("error")
    if error:
        yield _failure(error)
        return
    choices = payload.get("choices")
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if not isinstance(choice, dict):
            raise WorkerFailed("a choice of the stream is not an object")
        index = _index(choice.get("index"), position)
        delta = choice.get("delta")
        piece = delta if isinstance(delta, dict) else choice
        yield from _pieces(piece, index, choice.get("logprobs"))
        if choice.get("finish_reason"):
            yield _end(choice, index)
    if (usage := read_usage(payload)) is not None:
        yield usage


def _pieces(message: Mapping[str, object], choice: int, likely: object) -> Iterator[TextEvent]:
    content, own_thought = _content(message.get("content"))
    for thought in (message.get("reasoning_content"), message.get("reasoning"), own_thought):
        if isinstance(thought, str) and thought:
            yield ReasoningPiece(thought, choice)
            break
    for text in (content, message.get("refusal"), message.get("text")):
        if isinstance(text, str) and text:
            yield Delta(text, choice, logprobs.read(likely) if likely else ())
            break
    calls = message.get("tool_calls")
    for position, call in enumerate(calls if isinstance(calls, list) else ()):
        yield _call(call, position, choice)
    if not calls and isinstance(function := message.get("function_call"), dict):
        # The form before `tool_calls`, without an id.
        yield _call({"function": function}, 0, choice)


def _content(value: object) -> tuple[str, str]:
    """Return the text and the thoughts of a content, which may be a list of parts; raise `WorkerFailed` for anything else."""
    match value:
        case None:
            return "", ""
        case str(text):
            return text, ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in value if isinstance(value, list) else [value]:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case {"type": "thinking", "thinking": list(pieces)}:
                thoughts += (
                    _text(piece.get("text")) for piece in pieces if isinstance(piece, dict)
                )
            case _:
                raise WorkerFailed("the answer's content is neither a text nor a list of texts")
    return "".join(texts), "".join(thoughts)


def _call(call: object, position: int, choice: int) -> CallPart:
    match call:
        case {"function": dict(function), **rest}:
            return CallPart(
                index=_index(rest.get("index"), position),
                id=_text(rest.get("id")),
                name=_text(function.get("name")),
                arguments=_arguments(function.get("arguments")),
                choice=choice,
            )
    raise WorkerFailed("a tool call names no function")


def _arguments(value: object) -> str:
    # Some workers send an object where OpenAI has a string of JSON.
    if isinstance(value, dict):
        return written_answer(value).decode()
    return _text(value)


def _failure(error: object) -> TextFailure:
    match error:
        case {"message": str(message), **rest}:
            return TextFailure(message, _text(rest.get("type")), _text(rest.get("code")))
        case str(message):
            return TextFailure(message, "", "")
    return TextFailure("the stream broke off", "", "")


def _end(fields: Mapping[str, object], choice: int) -> End:
    finish_reason = fields.get("finish_reason")
    reason = _REASONS.get(finish_reason, "stop") if isinstance(finish_reason, str) else "stop"
    # vLLM and SGLang report the stop string, which OpenAI's form lacks. For a stop token the field is a number.
    stops = [stop for name in _STOPPED if isinstance(stop := fields.get(name), str)]
    return End(reason, choice, stops[0] if stops and reason == "stop" else "")


def _index(value: object, otherwise: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_CHOICES:
        return value
    return otherwise


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def answer_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a worker answered with; raise `WorkerFailed` for anything else.

    NaN and infinities, which JSON lacks and Python writes all the same, are `None`.
    """
    # JSON has no byte order mark, but programs of .NET and PHP may write one (RFC 8259 8.1).
    data = data.removeprefix(BOM_UTF8)
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        answer = _parse_with_infinities(data)
        if answer is None:
            raise WorkerFailed("the answer is not valid JSON") from error
    if not isinstance(answer, dict):
        raise WorkerFailed("the answer is not a JSON object")
    return answer


def _parse_with_infinities(data: bytes) -> object:
    if not (b"NaN" in data or b"Infinity" in data):
        return None
    try:
        parsed = json.loads(data, parse_constant=lambda _: None)
        # Python's parser also accepts what cannot be written again, such as half of a surrogate pair.
        orjson.dumps(parsed)
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return None
    return parsed


def written_answer(answer: object) -> bytes:
    """Return what a worker answered as JSON; raise `WorkerFailed` if it is nested too deeply: orjson reads more levels."""
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:
        raise WorkerFailed("the answer is nested too deeply") from error


def arguments_object(arguments: str) -> dict[str, object] | None:
    """Return the joined arguments of a tool call; `None` if they are no object, or nested too deeply to be written."""
    try:
        parsed = orjson.loads(arguments or "{}")
        if arguments.count("{") + arguments.count("[") > MAX_DEPTH:
            # Code in a text has as many brackets. An answer has a few levels around the arguments.
            orjson.dumps([[[[[[[[parsed]]]]]]]])
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return parsed if isinstance(parsed, dict) else None
