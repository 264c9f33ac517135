"""Writer for texts in OpenAI's form: small events in, OpenAI's JSON or stream events out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import orjson

from router.errors import WorkerRejected
from router.openai import logprobs
from router.openai.logprobs import Token
from router.openai.usage import Usage
from router.requests import Kind

DONE = b"data: [DONE]\n\n"

SUCCESS: Mapping[str, object] = {"code": 0, "message": "success"}
"""Fields of every answer of the interface standard for models, besides OpenAI's."""

_FINGERPRINT = b'"system_fingerprint"'

Reason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the text of one choice.

    `tokens` belong to this piece, or to pieces before it; `start` characters of the choice precede the first of them.
    """

    text: str
    choice: int = 0
    tokens: tuple[Token, ...] = ()
    start: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole tool call; `arguments` are JSON."""

    id: str
    name: str
    arguments: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """The end of one choice. `stop` is the stop string before which it ended, if known."""

    reason: Reason
    choice: int = 0
    stop: str = ""


Event: TypeAlias = Delta | ToolCall | End | Usage


@dataclass(frozen=True, slots=True)
class TextForm:
    """What all parts of one answer have in common; `created` is Unix time, `fingerprint` the worker's if it has one."""

    id: str
    created: int
    model: str
    kind: Kind
    fingerprint: str | None = None

    def with_fingerprint(self, data: bytes) -> "TextForm":
        """Return the form with the fingerprint in a worker's first event, or in its answer in one piece, if any."""
        if _FINGERPRINT not in data:
            return self
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            return self
        match parsed:
            case {"system_fingerprint": str(fingerprint)} if fingerprint:
                return replace(self, fingerprint=fingerprint)
        return self

    def opening(self) -> bytes:
        """Return the first event of a stream: it shows that the worker has begun."""
        if self.kind is Kind.CHAT:
            return self._chunk({"index": 0, "delta": {"role": "assistant", "content": ""}})
        return self._chunk({"index": 0, "text": ""})

    def event(self, event: Event, calls: int = 0) -> bytes:
        """Return one event of a stream; `calls` is the number of tool calls that its choice has had before."""
        chat = self.kind is Kind.CHAT
        match event:
            case Delta(text, choice):
                part: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
                likely = self._logprobs(event.tokens, event.start)
                return self._chunk({"index": choice, **part, "logprobs": likely})
            case ToolCall(choice=choice):
                call = {"index": calls, **_call(event)}
                return self._chunk({"index": choice, "delta": {"tool_calls": [call]}})
            case End(choice=choice):
                part = {"delta": {}} if chat else {"text": ""}
                return self._chunk({"index": choice, **part, **_ending(event)})
            case Usage():
                return _data({**self._head(chunk=True), "choices": [], "usage": _usage(event)})

    def stream(self, events: Iterable[Event]) -> bytes:
        """Return the whole stream of an answer that came in one piece."""
        written, calls = [self.opening()], 0
        for event in events:
            written.append(self.event(event, calls))
            calls += isinstance(event, ToolCall)
        return b"".join((*written, DONE))

    def whole_answer(self, events: Iterable[Event]) -> tuple[bytes, Usage]:
        """Return an answer in one piece, and its usage: the sum over its parts."""
        choices: dict[int, _Choice] = {}
        usage = Usage(0, 0)
        for event in events:
            if isinstance(event, Usage):
                usage += event
                continue
            choice = choices.setdefault(event.choice, _Choice())
            match event:
                case Delta(text):
                    choice.texts.append(text)
                    choice.start = choice.start if choice.tokens else event.start
                    choice.tokens += event.tokens
                case ToolCall():
                    choice.calls.append(_call(event))
                case End():
                    choice.ending = _ending(event)
        written = [
            {
                "index": index,
                **choice.message(self.kind),
                "logprobs": self._logprobs(choice.tokens, choice.start),
                **choice.ending,
            }
            for index, choice in sorted(choices.items())
        ]
        body = {**SUCCESS, **self._head(chunk=False), "choices": written, "usage": _usage(usage)}
        return orjson.dumps(body), usage

    def _chunk(self, choice: dict[str, object]) -> bytes:
        choice = {"logprobs": None, "finish_reason": None, **choice}
        return _data({**self._head(chunk=True), "choices": [choice]})

    def _logprobs(self, tokens: Sequence[Token], start: int) -> dict[str, object] | None:
        if self.kind is Kind.CHAT:
            return logprobs.write_chat_logprobs(tokens)
        return logprobs.write_completion_logprobs(tokens, start)

    def _head(self, *, chunk: bool) -> dict[str, object]:
        chat = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self.kind is Kind.CHAT else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def _ending(end: End) -> dict[str, object]:
    # vLLM's field for the stop string, which OpenAI's form lacks; clients that do not know it ignore it.
    stopped: dict[str, object] = {"stop_reason": end.stop} if end.stop else {}
    return {"finish_reason": end.reason, **stopped}


def refused(message: str, param: str) -> WorkerRejected:
    """Return the refusal of a request with a value that is wrong for every worker."""
    code = "invalid_parameter"
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return WorkerRejected(400, orjson.dumps({"error": error}))


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    start: int = 0
    calls: list[dict[str, object]] = field(default_factory=list)
    ending: dict[str, object] = field(default_factory=lambda: _ending(End("stop")))

    def message(self, kind: Kind) -> dict[str, object]:
        text = "".join(self.texts)
        if kind is not Kind.CHAT:
            return {"text": text}
        message: dict[str, object] = {"role": "assistant", "content": text}
        if self.calls:
            message |= {"content": text or None, "tool_calls": self.calls}
        return {"message": message}


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, object]:
    payload: dict[str, object] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    return payload | ({"estimated": True} if usage.estimated else {})


def _data(payload: dict[str, object]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
