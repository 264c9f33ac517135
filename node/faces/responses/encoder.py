"""Encoder of answers for the Responses API: one object, or a stream of numbered events that ends with that object.

The output of a response grows item by item, and each item is made of one kind of parsed event.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import orjson

from node.faces.encoder import TextEncoder
from router.errors import WorkerFailed
from router.openai import logprobs
from router.openai.logprobs import Token
from router.openai.text_parser import CallPart, ReasoningPiece, TextEvent, TextFailure
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind

MAX_CHARACTERS = 64 * 1024 * 1024
"""The most characters in the texts of one answer: the protocol repeats all of them at the end."""

TOKEN_CHARACTERS = 64
"""Characters that a token with its log probability counts for in that limit, and so does each alternative to it."""

MAX_ITEMS = 1_024
"""The most items of one output."""

Payload: TypeAlias = dict[str, object]


class Item(ABC):
    """One item of an output: it is opened, grows piece by piece, and is closed."""

    prefix: str

    def __init__(self, answer: str, index: int) -> None:
        self.id = f"{self.prefix}_{answer}{index:04x}"
        self.index = index
        self.status = "in_progress"
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All of its pieces, joined."""
        return "".join(self._pieces)

    def grow(self, piece: str) -> Payload:
        """Add a piece and return its event."""
        self._pieces.append(piece)
        return self._delta(piece)

    def open(self) -> Iterator[Payload]:
        """Yield the events with which the item begins."""
        added = "response.output_item.added"
        yield {"type": added, "output_index": self.index, "item": self._head() | self._body("")}
        yield from self._opened()

    def close(self, status: str) -> Iterator[Payload]:
        """Yield the events with which the item ends; they contain all of it."""
        self.status = status
        yield from self._closed(self.text)
        yield {
            "type": "response.output_item.done",
            "output_index": self.index,
            "item": self.payload(),
        }

    def payload(self) -> Payload:
        """Return the item as it appears in the output."""
        return self._head() | self._body(self.text)

    def _at(self) -> Payload:
        return {"item_id": self.id, "output_index": self.index}

    @abstractmethod
    def _head(self) -> Payload: ...

    @abstractmethod
    def _body(self, text: str) -> Payload: ...

    @abstractmethod
    def _opened(self) -> Iterator[Payload]: ...

    @abstractmethod
    def _delta(self, piece: str) -> Payload: ...

    @abstractmethod
    def _closed(self, text: str) -> Iterator[Payload]: ...


class ItemWithPart(Item):
    """An item whose text is in its only part. `beside` are further fields of the events with a piece or with all of it."""

    event: str
    beside: ClassVar[Payload] = {}

    def _body(self, text: str) -> Payload:
        return {"content": [] if self.status == "in_progress" else [self._part(text)]}

    def _opened(self) -> Iterator[Payload]:
        yield self._of_part("response.content_part.added", part=self._part(""))

    def _delta(self, piece: str) -> Payload:
        return self._of_part(f"{self.event}.delta", delta=piece, **self.beside)

    def _closed(self, text: str) -> Iterator[Payload]:
        yield self._of_part(f"{self.event}.done", text=text, **self.beside)
        yield self._of_part("response.content_part.done", part=self._part(text))

    def _of_part(self, kind: str, **fields: object) -> Payload:
        return {"type": kind, **self._at(), "content_index": 0, **fields}

    @abstractmethod
    def _part(self, text: str) -> Payload: ...


class Message(ItemWithPart):
    """The text that the model says."""

    prefix = "msg"
    event = "response.output_text"
    beside: ClassVar[Payload] = {"logprobs": []}

    def __init__(self, answer: str, index: int) -> None:
        super().__init__(answer, index)
        self._likely_tokens: list[Payload] = []

    def drawn(self, piece: str, tokens: Sequence[Token]) -> Payload:
        """Add a piece with its tokens and return its event."""
        likely = [logprobs.write_token(token) for token in tokens]
        self._likely_tokens += likely
        return self.grow(piece) | {"logprobs": likely}

    def _closed(self, text: str) -> Iterator[Payload]:
        done, part = super()._closed(text)
        yield done | {"logprobs": self._likely_tokens}
        yield part

    def _head(self) -> Payload:
        return {"id": self.id, "type": "message", "role": "assistant", "status": self.status}

    def _part(self, text: str) -> Payload:
        likely = self._likely_tokens if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": likely}


class Reasoning(ItemWithPart):
    """The reasoning of the model before its text, without a summary."""

    prefix = "rs"
    event = "response.reasoning_text"

    def _head(self) -> Payload:
        return {"id": self.id, "type": "reasoning", "status": self.status, "summary": []}

    def _part(self, text: str) -> Payload:
        return {"type": "reasoning_text", "text": text}


class FunctionCall(Item):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, answer: str, index: int, first: CallPart, called: Mapping[str, str]) -> None:
        """`called` is the name of the function, with its namespace where it has one."""
        super().__init__(answer, index)
        self._name = called
        self._call: Payload = {"call_id": first.id or f"call_{answer}{index:04x}"}

    def _head(self) -> Payload:
        head = {"id": self.id, "type": "function_call", "status": self.status}
        return {**head, **self._call, **self._name}

    def _body(self, text: str) -> Payload:
        return {"arguments": text}

    def _opened(self) -> Iterator[Payload]:
        return iter(())

    def _delta(self, piece: str) -> Payload:
        delta = "response.function_call_arguments.delta"
        return {"type": delta, **self._at(), "delta": piece}

    def _closed(self, text: str) -> Iterator[Payload]:
        done = "response.function_call_arguments.done"
        yield {"type": done, **self._at(), "name": self._name["name"], "arguments": text}


class Output:
    """The output of one response, built from parsed events. One text at most is open at a time, but any number of calls.

    `reason` is the finish reason, `None` until one arrives.
    """

    def __init__(self, answer: str, called: Mapping[str, Mapping[str, str]]) -> None:
        """`answer` is part of the ids of all items; `called` maps names of functions in the chat to the caller's names."""
        self.items: list[Item] = []
        self.reason: Reason | None = None
        self.usage: Usage | None = None
        self._answer = answer
        self._called = called
        self._open: dict[int | type[ItemWithPart], Item] = {}
        self._characters = 0

    def take(self, event: TextEvent) -> Iterator[Payload]:
        """Take in an event of the answer and yield the caller's events for it; raise `WorkerFailed` at a limit."""
        match event:
            case Delta(text, 0):
                yield from self._grow(Message, text, event.tokens)
            case ReasoningPiece(text, 0):
                yield from self._grow(Reasoning, text)
            case CallPart(choice=0):
                yield from self._call(event)
            case End(reason, 0):
                self.reason = reason
                yield from self._close()
            case Usage():
                self.usage = event
            case TextFailure() | Delta() | ReasoningPiece() | CallPart() | End():
                # Only one choice is requested, and failures are reported elsewhere.
                return

    def finish(self) -> Iterator[Payload]:
        """Close the open items. An answer without any item gets an empty text."""
        yield from self._close()
        if not self.items:
            yield from self._grow(Message, "")
            yield from self._close()

    def all_items(self) -> list[Payload]:
        """Return the items, including those that broke off."""
        for item in self._open.values():
            item.status = "incomplete"
        return [item.payload() for item in self.items]

    def _grow(
        self, kind: type[ItemWithPart], text: str, tokens: Sequence[Token] = ()
    ) -> Iterator[Payload]:
        item = self._open.get(kind)
        if item is None:
            yield from self._close()
            yield from self._add(kind, item := kind(self._answer, len(self.items)))
        if text:
            yield self._grow_item(item, text, tokens)

    def _call(self, part: CallPart) -> Iterator[Payload]:
        item = self._open.get(part.index)
        if item is None:
            for kind in (Message, Reasoning):
                if (text := self._open.pop(kind, None)) is not None:
                    yield from text.close("completed")
            called = self._called.get(part.name, {"name": part.name})
            item = FunctionCall(self._answer, len(self.items), part, called)
            yield from self._add(part.index, item)
        if part.arguments:
            yield self._grow_item(item, part.arguments)

    def _add(self, key: int | type[ItemWithPart], item: Item) -> Iterator[Payload]:
        if len(self.items) >= MAX_ITEMS:
            raise WorkerFailed(f"the answer has more than {MAX_ITEMS:,} items")
        self.items.append(item)
        self._open[key] = item
        yield from item.open()

    def _grow_item(self, item: Item, piece: str, tokens: Sequence[Token] = ()) -> Payload:
        count = sum(1 + len(token.likeliest) for token in tokens)
        self._characters += len(piece) + TOKEN_CHARACTERS * count
        if self._characters > MAX_CHARACTERS:
            raise WorkerFailed(f"the answer has more than {MAX_CHARACTERS:,} characters")
        if tokens and isinstance(item, Message):
            return item.drawn(piece, tokens)
        return item.grow(piece)

    def _close(self) -> Iterator[Payload]:
        ended, self._open = self._open, {}
        last = self.items[-1] if self.items else None
        for item in ended.values():
            cut = item is last and self.reason in ("length", "content_filter")
            yield from item.close("incomplete" if cut else "completed")


_INCOMPLETE: Mapping[Reason | None, str] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that all snapshots of one response share. `created` is Unix time, `repeats` are settings of its request.

    `called` maps names of functions in the chat to the caller's names.
    """

    id: str
    created: int
    model: str
    repeats: Mapping[str, object]
    called: Mapping[str, Mapping[str, str]]


class ResponsesEncoder(TextEncoder):
    """Encoder of one response."""

    def __init__(self, head: Head, *, streams: bool, max_event_bytes: int) -> None:
        super().__init__(Kind.CHAT, streams=streams, max_event_bytes=max_event_bytes)
        self._head = head
        self._output = Output(head.id, head.called)
        self._sequence = 0

    def answer(self, events: Sequence[TextEvent]) -> Payload:
        """Return the response."""
        for event in events:
            for _ in self._output.take(event):
                pass
        for _ in self._output.finish():
            pass
        return self._response(self._status)

    def opening(self) -> bytes:
        """Return the events with which the response begins."""
        response = self._response("in_progress")
        begun = ("response.created", "response.in_progress")
        return self._written({"type": kind, "response": response} for kind in begun)

    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return the events for a piece of the output."""
        return b"".join(self._written(self._output.take(event)) for event in events)

    def closing(self) -> bytes:
        """Return the last events, of which the last contains the whole response."""
        finished = self._written(self._output.finish())
        status = self._status
        last: Payload = {"type": f"response.{status}", "response": self._response(status)}
        return finished + self._written([last])

    def failure(self, failure: TextFailure) -> bytes:
        """Return the events of a failure: the response's last state, and the error that OpenAI's clients raise."""
        # The response may not have begun: only keep-alive comments were sent so far.
        opening = b"" if self._sequence else self.opening()
        code = failure.code or "server_error"
        error: Payload = {"code": code, "message": failure.message}
        failed: Payload = {"type": "response.failed", "response": self._response("failed", error)}
        error_fields = error | {"type": failure.type or "server_error", "param": None}
        return opening + self._written(
            [failed, {**error, "param": None, "type": "error", "error": error_fields}]
        )

    @property
    def _status(self) -> str:
        return "incomplete" if self._output.reason in _INCOMPLETE else "completed"

    def _written(self, events: Iterable[Payload]) -> bytes:
        written = []
        for event in events:
            event["sequence_number"] = self._sequence
            self._sequence += 1
            written.append(
                b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))
            )
        return b"".join(written)

    def _response(self, status: str, error: Payload | None = None) -> Payload:
        output, usage = self._output, self._output.usage
        incomplete = status == "incomplete"
        return {
            "id": f"resp_{self._head.id}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": _INCOMPLETE[output.reason]} if incomplete else None,
            "model": self._head.model,
            "output": output.all_items(),
            "usage": _usage(usage) if usage else None,
            **self._head.repeats,
        }


def _usage(usage: Usage) -> Payload:
    usage_fields: Payload = {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
    return usage_fields | ({"estimated": True} if usage.estimated else {})
