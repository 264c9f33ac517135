"""Encoder of answers for Anthropic's API: as a message of blocks, or as events that open, fill and close them.

Reasoning is sent to callers that asked for it. If a worker does not report its tokens, they are estimated, and `usage` says so.

Each content block is opened once, filled, and closed before the next one opens.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import orjson

from node.faces.anthropic import errors
from node.faces.anthropic.request_mapping import MessagesRequest
from node.faces.anthropic.token_count import estimated_tokens
from node.faces.encoder import TextEncoder
from router.errors import WorkerFailed
from router.openai.text_parser import (
    CallPart,
    ReasoningPiece,
    TextEvent,
    TextFailure,
    arguments_object,
)
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind
from router.select.fitness import USUAL_BYTES

UNREADABLE = "INVALID_JSON"
"""Key for arguments that are not a JSON object, or may be nested too deeply.

Anthropic's form has only objects, and its guide names this key.
"""

MAX_CALLS = 1_024
"""The most calls of tools in one answer; a worker that makes more has failed."""

ContentPiece: TypeAlias = Delta | ReasoningPiece | CallPart


def content_of(pieces: Sequence[ContentPiece], own_id: str) -> list[dict[str, object]]:
    """Return the blocks of an answer in one piece."""
    blocks: list[dict[str, object]] = []
    calls: dict[int, dict[str, object]] = {}
    for part in pieces:
        match part:
            case CallPart(index=index) if index in calls:
                calls[index]["input"] = f"{calls[index]['input']}{part.arguments}"
            case CallPart(index=index):
                calls[index] = _call(part, len(calls), own_id) | {"input": part.arguments}
                blocks.append(calls[index])
            case Delta(text):
                _put(blocks, "text", text)
            case ReasoningPiece(text):
                _put(blocks, "thinking", text)
    for call in calls.values():
        call["input"] = _object(str(call["input"]))
    return [b | {"signature": ""} if b["type"] == "thinking" else b for b in blocks]


def without_prefill(blocks: list[dict[str, object]], begun: str) -> list[dict[str, object]]:
    """Remove the caller's prefilled beginning: llama.cpp repeats it in an answer in one piece, though not in a stream."""
    match blocks:
        case [{"type": "text", "text": str(text)}, *rest] if begun and text.startswith(begun):
            left = text.removeprefix(begun)
            return [{"type": "text", "text": left}, *rest] if left else rest
    return blocks


def event(kind: str, **fields: object) -> bytes:
    """Return one event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


class Blocks:
    """The blocks of one stream."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._index = -1
        self._open: tuple[str, int] | None = None
        self._calls: set[int] = set()

    def take(self, pieces: Sequence[ContentPiece]) -> bytes:
        """Return the events for a piece of an answer; raise `WorkerFailed` for pieces that cannot be put together."""
        return b"".join(map(self._event, pieces))

    def close(self) -> bytes:
        """Close the open block, and return the event of that."""
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", index=self._index)

    def _event(self, part: ContentPiece) -> bytes:
        match part:
            case Delta(text):
                if self._calling and not text.strip():
                    # White space between two calls would open a block of its own, and split a call.
                    return b""
                opened = self._opened(("text", 0), {"type": "text", "text": ""})
                return opened + self._delta(type="text_delta", text=text)
            case ReasoningPiece(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._opened(("thinking", 0), empty)
                return opened + self._delta(type="thinking_delta", thinking=text)
            case CallPart():
                return self._part(part)

    def _part(self, part: CallPart) -> bytes:
        key = ("tool_use", part.index)
        opened = b""
        if self._open != key:
            if part.index in self._calls:
                if not part.arguments:
                    return b""
                raise WorkerFailed("the worker interleaves several tool calls")
            opened = self._opened(key, _call(part, len(self._calls), self._own_id))
            self._calls.add(part.index)
        if not part.arguments:
            return opened
        return opened + self._delta(type="input_json_delta", partial_json=part.arguments)

    @property
    def _calling(self) -> bool:
        return self._open is not None and self._open[0] == "tool_use"

    def _opened(self, key: tuple[str, int], empty: Mapping[str, object]) -> bytes:
        """Open a block unless it is open already, and return the events of that."""
        if self._open == key:
            return b""
        closed = self.close()
        self._open = key
        self._index += 1
        return closed + event("content_block_start", index=self._index, content_block=empty)

    def _delta(self, **delta: object) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def _call(part: CallPart, calls: int, own_id: str) -> dict[str, object]:
    if not part.name:
        raise WorkerFailed("a tool call names no function")
    if calls >= MAX_CALLS:
        raise WorkerFailed(f"an answer calls at most {MAX_CALLS:,} tools")
    id_ = part.id or f"toolu_{own_id}_{calls}"
    return {"type": "tool_use", "id": id_, "name": part.name, "input": {}}


def _put(blocks: list[dict[str, object]], kind: str, text: str) -> None:
    if blocks and blocks[-1]["type"] == kind:
        blocks[-1][kind] = f"{blocks[-1][kind]}{text}"
    else:
        blocks.append({"type": kind, kind: text})


def _object(arguments: str) -> dict[str, object]:
    parsed = arguments_object(arguments)
    return {UNREADABLE: arguments} if parsed is None else parsed


_REASONS: Mapping[Reason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class AnthropicEvents(TextEncoder):
    """Encoder of one answer."""

    def __init__(
        self, request: MessagesRequest, request_id: str, own_id: str, *, max_event_bytes: int
    ) -> None:
        """`own_id` is the answer's id: a caller's own request id may occur twice in one conversation."""
        super().__init__(Kind.CHAT, streams=request.stream, max_event_bytes=max_event_bytes)
        self._request = request
        self._request_id = request_id
        self._id = own_id
        self._blocks = Blocks(own_id)
        self._end: End | None = None
        self._usage: Usage | None = None
        self._has_calls = False
        self._bytes = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's id in the header that Anthropic's SDK reads."""
        return {"request-id": self._request_id}

    def answer(self, events: Sequence[TextEvent]) -> object:
        """Return the message of an answer in one piece."""
        pieces = self._take_end(events)
        content = without_prefill(content_of(pieces, self._id), self._request.begun)
        return {**self._message(content), **self._ending(), "usage": self._usage_fields()}

    def opening(self) -> bytes:
        """Return the event that begins the message."""
        # An estimate: the number of tokens read is known, and sent, only at the end.
        usage = {"input_tokens": estimated_tokens(self._request.fields), "output_tokens": 0}
        ending = {"stop_reason": None, "stop_sequence": None}
        message = {**self._message([]), **ending, "usage": usage}
        return event("message_start", message=message)

    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return the events for a piece of the answer."""
        return self._blocks.take(self._take_end(events))

    def closing(self) -> bytes:
        """Return the events that close the open block and the message."""
        closed = self._blocks.close()
        ending = event("message_delta", delta=self._ending(), usage=self._usage_fields())
        return closed + ending + event("message_stop")

    def failure(self, failure: TextFailure) -> bytes:
        """Return the event for a stream that broke off."""
        return errors.broken(failure, self._request_id)

    def _take_end(self, events: Sequence[TextEvent]) -> list[Delta | ReasoningPiece | CallPart]:
        """Record finish reason and usage; return the other events that this caller gets."""
        pieces: list[Delta | ReasoningPiece | CallPart] = []
        for part in events:
            match part:
                case Usage():
                    self._usage = part
                case End(choice=0):
                    self._end = part
                case Delta(text, 0) | ReasoningPiece(text, 0) | CallPart(arguments=text, choice=0):
                    self._bytes += len(text.encode())
                    self._has_calls = self._has_calls or isinstance(part, CallPart)
                    if self._request.thinks or not isinstance(part, ReasoningPiece):
                        pieces.append(part)
        return pieces

    def _message(self, content: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
        }

    def _ending(self) -> dict[str, object]:
        end = self._end or End("stop")
        reason, stop = _REASONS[end.reason], end.stop
        if not self._has_calls and reason == "tool_use":
            reason = "end_turn"
        elif self._has_calls and reason == "end_turn":
            # Some workers give the reason `stop` after a call of a tool.
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if stop in self._request.stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage_fields(self) -> dict[str, object]:
        usage = self._usage or Usage(
            estimated_tokens(self._request.fields), -(-self._bytes // USUAL_BYTES), estimated=True
        )
        fields: dict[str, object] = {
            "input_tokens": usage.prompt,
            "output_tokens": usage.completion,
        }
        return fields | ({"estimated": True} if usage.estimated else {})
