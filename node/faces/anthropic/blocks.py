"""Content blocks of an Anthropic answer: each is opened once, filled, and closed before the next one opens."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import orjson

from router.errors import WorkerFailed
from router.openai.body import MAX_DEPTH
from router.openai.text_parser import CallPart, Thought
from router.openai.text_writer import Delta

UNREADABLE = "INVALID_JSON"
"""Under this key stand arguments that are no JSON object, or may be nested too deep: Anthropic's form has objects only, and
its guide names this key.
"""

MAX_CALLS = 1_024
"""Calls of tools in one answer; a worker that makes more has failed."""

Said: TypeAlias = Delta | Thought | CallPart


def content_of(said: Sequence[Said], own_id: str) -> list[dict[str, object]]:
    """Return the blocks of an answer in one piece."""
    blocks: list[dict[str, object]] = []
    calls: dict[int, dict[str, object]] = {}
    for part in said:
        match part:
            case CallPart(index=index) if index in calls:
                calls[index]["input"] = f"{calls[index]['input']}{part.arguments}"
            case CallPart(index=index):
                calls[index] = _call(part, len(calls), own_id) | {"input": part.arguments}
                blocks.append(calls[index])
            case Delta(text):
                _put(blocks, "text", text)
            case Thought(text):
                _put(blocks, "thinking", text)
    for call in calls.values():
        call["input"] = _object(str(call["input"]))
    return [b | {"signature": ""} if b["type"] == "thinking" else b for b in blocks]


def without(blocks: list[dict[str, object]], begun: str) -> list[dict[str, object]]:
    """Leave out what the caller had begun itself: llama.cpp repeats it in one piece, though not in a stream."""
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

    def take(self, said: Sequence[Said]) -> bytes:
        """Return the events that say a piece of an answer; raise `WorkerFailed` for pieces that nobody can put together."""
        return b"".join(map(self._event, said))

    def close(self) -> bytes:
        """Close the block that is open."""
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", index=self._index)

    def _event(self, part: Said) -> bytes:
        match part:
            case Delta(text):
                if self._calling and not text.strip():
                    # Space between two calls would make a block of its own, and cut a call in two.
                    return b""
                opened = self._opened(("text", 0), {"type": "text", "text": ""})
                return opened + self._delta(type="text_delta", text=text)
            case Thought(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._opened(("thinking", 0), empty)
                return opened + self._delta(type="thinking_delta", thinking=text)
            case CallPart():
                return self._part(part)

    def _part(self, part: CallPart) -> bytes:
        place = ("tool_use", part.index)
        opened = b""
        if self._open != place:
            if part.index in self._calls:
                if not part.arguments:
                    return b""
                raise WorkerFailed("the worker mixes the pieces of several calls")
            opened = self._opened(place, _call(part, len(self._calls), self._own_id))
            self._calls.add(part.index)
        if not part.arguments:
            return opened
        return opened + self._delta(type="input_json_delta", partial_json=part.arguments)

    @property
    def _calling(self) -> bool:
        return self._open is not None and self._open[0] == "tool_use"

    def _opened(self, place: tuple[str, int], empty: Mapping[str, object]) -> bytes:
        """Open a block unless it is the open one."""
        if self._open == place:
            return b""
        closed = self.close()
        self._open = place
        self._index += 1
        return closed + event("content_block_start", index=self._index, content_block=empty)

    def _delta(self, **delta: object) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def _call(part: CallPart, calls: int, own_id: str) -> dict[str, object]:
    if not part.name:
        raise WorkerFailed("a call of a tool names no function")
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
    if arguments.count("{") + arguments.count("[") > MAX_DEPTH:
        # It could be read, but not be written again.
        return {UNREADABLE: arguments}
    try:
        said = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return {UNREADABLE: arguments}
    return said if isinstance(said, dict) else {UNREADABLE: arguments}
