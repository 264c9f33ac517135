"""Mid-stream fail-over of text streams: a state machine over their events, without I/O.

Text that was sent cannot be taken back, so another worker gets the text so far as the beginning of its answer, and continues
from there. An event in the stream marks the seam. A stream of more than one plain text (tool calls, several choices, prescribed
formats, reasoning) breaks off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

import orjson

from registry.records import PeerId
from router.openai.sse import Event, has_line
from router.openai.usage import parse_object
from router.requests import Kind, Request

MOST_SEAMS = 3
"""Times that one stream is continued; then it breaks off."""

MOST_TEXT_CHARACTERS = 1024 * 1024
"""The longest text that is remembered; a stream that has sent more breaks off when its worker dies."""

_DONE = b"[DONE]"
_END = b"data: [DONE]\n\n"
# Fields that ask for more than one plain text, or for a format that the second half of a text would not keep.
_FORBIDDING = (
    "tools", "functions", "logprobs", "top_logprobs", "echo", "suffix", "audio", "prompt_logprobs", "return_token_ids",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "regex",
    "ebnf",
)  # fmt: skip
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_GOES_ON = re.compile(rb'"finish_reason"\s*:\s*null')
_ENDS = re.compile(rb'"finish_reason"\s*:\s*"')
_HEAD = ("id", "object", "created", "model")


class StreamState(Enum):
    """How far a stream has come."""

    OPEN = auto()
    COMPLETE = auto()
    """Its finish reason has come; only usage and `[DONE]` may follow."""
    CLOSED = auto()
    """`[DONE]` has come."""
    BROKEN = auto()
    """Its worker reported a failure by an event."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Decision to send `request` to another worker, and continue the stream with its answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class Finish:
    """Decision to end the stream, whose text is complete; `last` are its last events."""

    last: bytes


class ContinuedText:
    """One stream, across all the workers that write it. `state` is that of the present worker's part."""

    def __init__(self, request: Request, fields: Mapping[str, object]) -> None:
        """Use `continued_text`."""
        self._request = request
        self._fields = fields
        self._text: list[str] = []
        self._characters = 0
        self._head: dict[str, object] = {}
        self._written = 0
        """Number of events with text in all parts, roughly that of their tokens."""
        self._lost = 0
        """Number of those in the parts that broke off."""
        self._plain = True
        self._usage_reported = False
        self._first = True
        """Whether the present part is the first of which the caller sees anything: it passes unchanged."""
        self._dead_node = PeerId("")
        self.seams = 0
        self.state = StreamState.OPEN

    def feed(self, event: Event) -> bytes:
        """Take in an event of the present part, and return the bytes of it for the caller, possibly none."""
        if not event.data:
            return event.raw
        if event.data == _DONE:
            self.state = StreamState.CLOSED
            return event.raw
        if is_failure_event(event):
            self.state = StreamState.BROKEN
            return b""
        payload = parse_object(event.data)
        empty = self._learn(payload.get("choices"))
        self._usage_reported = self._usage_reported or isinstance(payload.get("usage"), dict)
        if self._first:
            self._head = self._head or {name: payload[name] for name in _HEAD if name in payload}
            return event.raw
        return b"" if empty else _event(self._rewrite_event(payload))

    def decide_continuation(self, dead: PeerId) -> Resume | Finish | None:
        """Return how the stream goes on after the present part ended too soon, `None` if it does not."""
        progress = self._written - self._lost
        self._dead_node, self._lost = dead, self._written
        tokens_left = self._tokens_left()
        if self.state is StreamState.CLOSED:
            return Finish(b"")
        if self.state is StreamState.COMPLETE or (tokens_left is not None and tokens_left < 1):
            return Finish(self._last_events())
        # If the request kills each worker that comes to this place, two are enough.
        deadly = self.seams > 0 and not progress
        if not self._plain or self.seams >= MOST_SEAMS or deadly:
            return None
        self.seams += 1
        self.state, self._first = StreamState.OPEN, not self._head
        body, deaths = orjson.dumps(self._continuation_body(tokens_left)), self._request.deaths + 1
        request = replace(self._request, body=body, deaths=deaths, verbatim=None)
        # The stream does not wait for a worker to come back, and its first byte has come.
        return Resume(replace(request, holds=False, aim=0.0))

    def seam_event(self, node: PeerId) -> bytes:
        """Return the event that marks where one worker's text ends and that of another, at `node`, begins."""
        if self._first:
            return b""
        seam = {"from": self._dead_node, "to": node, "characters": self._characters}
        return b": continued\n" + _event(self._chunk(None) | {"modelvine": {"seam": seam}})

    def _learn(self, choices: object) -> bool:
        """Learn from the choices of an event; return whether it has no content, only a role perhaps."""
        match choices:
            case [{**choice}]:
                pass
            case None | []:
                return False
            case _:
                self._plain = False
                return False
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict) or choice.get("index", 0) != 0:
            self._plain = False
            return False
        has_other_content = any(delta[name] for name in delta if name not in ("role", "content"))
        if has_other_content or choice.get("logprobs"):
            self._plain = False
        text = choice.get("text") if self._request.kind is Kind.COMPLETION else delta.get("content")
        if isinstance(text, str) and text:
            self._write(text)
        if choice.get("finish_reason") is not None:
            self.state = StreamState.COMPLETE
        return not text and not has_other_content and self.state is StreamState.OPEN

    def _write(self, text: str) -> None:
        self._written += 1
        self._characters += len(text)
        if self._characters > MOST_TEXT_CHARACTERS:
            self._plain = False
            self._text.clear()
        if self._plain:
            self._text.append(text)

    def _rewrite_event(self, payload: dict[str, object]) -> dict[str, object]:
        """Return an event of a later part, rewritten as one of the first."""
        match payload.get("choices"):
            case [{"delta": {"role": _, **delta}, **choice}]:
                payload["choices"] = [{**choice, "delta": delta}]
        if isinstance(payload.get("usage"), dict):
            payload["usage"] = self._sum(payload["usage"])
            payload["modelvine"] = {"estimated": True, "seams": self.seams}
        return payload | self._head

    def _sum(self, usage: object) -> dict[str, object]:
        """Return the usage of all parts. Broken-off parts are estimated, and the last worker counted them as prompt."""
        match usage:
            case {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}:
                totals = {
                    "prompt_tokens": max(prompt - self._lost, 0),
                    "completion_tokens": completion + self._lost,
                }
                return {**totals, "total_tokens": sum(totals.values())}
            case _:
                return {}

    def _tokens_left(self) -> int | None:
        """Return how many tokens may still be written, `None` when there is no limit."""
        limits = [self._fields.get(name) for name in _LIMITS]
        positive = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        return min(positive) - self._written if positive else None

    def _continuation_body(self, tokens_left: int | None) -> dict[str, object]:
        body = dict(self._fields)
        if tokens_left is not None:
            body |= {name: tokens_left for name in _LIMITS if body.get(name) is not None}
        text = "".join(self._text)
        if not text:
            return body
        if self._request.kind is Kind.COMPLETION:
            return body | {"prompt": f"{body['prompt']}{text}"}
        # llama.cpp continues a last message of the assistant by itself; vLLM and SGLang need these fields for it.
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body | {"messages": _with_answer(body["messages"], text)}

    def _chunk(self, finish_reason: object) -> dict[str, object]:
        content: dict[str, object] = (
            {"text": ""} if self._request.kind is Kind.COMPLETION else {"delta": {}}
        )
        return {**self._head, "choices": [{"index": 0, **content, "finish_reason": finish_reason}]}

    def _last_events(self) -> bytes:
        """Return the missing last events of a stream whose text is complete."""
        last = b"" if self.state is StreamState.COMPLETE else _event(self._chunk("length"))
        match self._fields.get("stream_options"):
            case {"include_usage": True} if not self._usage_reported:
                usage = {"prompt_tokens": 0, "completion_tokens": self._written}
                totals = {"usage": usage | {"total_tokens": self._written}}
                note = {"modelvine": {"estimated": True, "seams": self.seams}}
                last += _event({**self._head, "choices": [], **totals, **note})
        return last + _END


def is_wanted(request: Request) -> bool:
    """Return whether a request asks for a text stream that is to be continued; `continued_text` tells whether it can be."""
    text = request.stream and request.kind in (Kind.CHAT, Kind.COMPLETION)
    # With a list of models, another model could continue the text.
    return request.continues and text and not request.fallbacks


def continued_text(request: Request) -> ContinuedText | None:
    """Return the stream that answers a request, `None` if no other worker could continue it."""
    if request.verbatim is not None and request.verbatim.needs:
        return None
    fields = parse_object(request.body)
    plain = (
        not any(fields.get(name) for name in _FORBIDDING)
        and all(fields.get(name) in (None, 1) for name in ("n", "best_of"))
        and fields.get("response_format") in (None, {"type": "text"})
    )
    return ContinuedText(request, fields) if plain and _has_place(request.kind, fields) else None


def is_failure_event(event: Event) -> bool:
    """Return whether a worker reports a failure by an event."""
    payload = parse_object(event.data) if b'"error"' in event.data else {}
    return "error" in payload and "choices" not in payload


def ended_too_soon(last: bytes) -> bool:
    """Return whether a stream ended early, by its last events: a worker that sends null finish reasons sends a last one, too."""
    ended = has_line(last, b"[DONE]") or _ENDS.search(last)
    return bool(_GOES_ON.search(last)) and not ended


def _has_place(kind: Kind, fields: Mapping[str, object]) -> bool:
    """Return whether the beginning of an answer can be appended to the caller's input."""
    if kind is Kind.COMPLETION:
        return isinstance(fields.get("prompt"), str)
    match fields.get("messages"):
        case [*_, {"role": "assistant", "content": content}]:
            return isinstance(content, str)
        case [*_, {"role": str(role)}]:
            return role != "assistant"
        case _:
            return False


def _with_answer(messages: object, text: str) -> list[object]:
    match messages:
        case [*before, {"role": "assistant", "content": str(begun), **rest}]:
            # The caller had begun the answer itself.
            return [*before, {**rest, "role": "assistant", "content": begun + text}]
        case [*before]:
            return [*before, {"role": "assistant", "content": text}]
        case _:
            return []


def _event(payload: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
