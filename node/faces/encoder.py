"""Encoder of answers in a protocol other than OpenAI's. Each encoder writes one answer; the common parts are here.

A face with a protocol of its own maps its requests to OpenAI's body, and passes an encoder along. Everything between is the same
for all faces: choice, attempts, broken streams, accounts.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from node.faces.errors import Refusal
from registry.values import value_class
from router.attempt import Routed
from router.errors import AnswerBroken
from router.openai import text_parser
from router.openai.sse import has_line
from router.openai.text_parser import TextEvent, TextFailure
from router.requests import Kind, Request

EVENT_STREAM = "text/event-stream"
JSON = "application/json"

_DONE = re.compile(rb"(?:\A|(?<=[\r\n]))data: ?\[DONE\](?:\r\n|\n|\r){2}")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Encoder(Protocol):
    """Encoder of one answer in its caller's protocol. Each request has its own."""

    @property
    def streams(self) -> bool:
        """Whether the caller gets a stream, even of an answer that came in one piece."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Additional headers: read after an answer in one piece was encoded, or before a stream begins."""

    def encode_whole(self, body: bytes) -> tuple[str, bytes]:
        """Return content type and bytes of an answer that came in one piece; raise `WorkerFailed` when it is invalid."""

    def encode_events(self, events: bytes) -> bytes:
        """Return whole events of OpenAI's stream in the caller's protocol, possibly nothing; raise `WorkerFailed`."""

    def encode_end(self) -> bytes:
        """Return the end of the stream; raise `WorkerFailed`."""

    def encode_failure(self, refused: Refusal) -> bytes:
        """Return the last bytes of a stream that broke off; none where clients understand only a cut connection."""


Homing = Callable[[Routed, bytes], bytes]
"""Adds a home to the ids in a service's answer."""


@value_class
class AnswerForm:
    """A request, and the encoder of its answer; without one, the answer stays in OpenAI's form.

    `dropped` names the caller's parameters that have no effect because OpenAI's form has no equivalent. `framed`, where set,
    wraps an answer in one piece from a worker that speaks the caller's protocol into what the caller expects. `names` maps
    OpenAI's parameters to the caller's names; parameters not in it did not come from the caller. It is `None` where the names are
    the same. `homed` is set for a service, and changes its JSON.
    """

    request: Request
    encoder: Encoder | None = None
    dropped: tuple[str, ...] = ()
    framed: Callable[[bytes], bytes] | None = None
    names: Mapping[str, str] | None = None
    homed: Homing | None = None


class WithoutDone:
    """OpenAI's form except for the end of a stream, which Llama Stack's client would read as a piece of the answer."""

    streams = True
    headers = _NO_HEADERS

    def encode_whole(self, body: bytes) -> tuple[str, bytes]:
        """Return the answer unchanged."""
        return JSON, body

    def encode_events(self, events: bytes) -> bytes:
        """Remove `[DONE]`, which the client would parse as JSON; raise `AnswerBroken` for an error event in the stream."""
        if has_line(events, b'{"error"'):
            raise AnswerBroken("the worker broke off")
        return _DONE.sub(b"", events) if has_line(events, b"[DONE]") else events

    def encode_end(self) -> bytes:
        """Return nothing: the stream ends without a marker."""
        return b""

    def encode_failure(self, _: Refusal) -> bytes:
        """Return nothing, so that the connection is cut: the client takes an error for a piece, and a proper end for success."""
        return b""


class TextEncoder(ABC):
    """Base of encoders for chats and completions, which encode parsed events."""

    def __init__(self, kind: Kind, *, streams: bool, max_event_bytes: int) -> None:
        self._kind = kind
        self._streams = streams
        self._parser = text_parser.TextStreamParser(max_event_bytes=max_event_bytes)
        self._begun = self._failed = False

    @property
    def streams(self) -> bool:
        """Whether the caller gets a stream."""
        return self._streams

    @property
    def headers(self) -> Mapping[str, str]:
        """Additional headers: none."""
        return {}

    @abstractmethod
    def answer(self, events: Sequence[TextEvent]) -> object:
        """Return the JSON of a whole answer."""

    @abstractmethod
    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return some events in the form of the caller's stream, possibly nothing. `events` holds no `TextFailure`."""

    @abstractmethod
    def failure(self, failure: TextFailure) -> bytes:
        """Return the last event of a stream that broke off."""

    def opening(self) -> bytes:
        """Return the beginning of the stream."""
        return b""

    def closing(self) -> bytes:
        """Return the end of a stream that did not fail. There may have been no `End`: some workers give no finish reason."""
        return b""

    def encode_whole(self, body: bytes) -> tuple[str, bytes]:
        """Encode an answer that came in one piece."""
        events = text_parser.parse_answer(self._kind, body)
        if self._streams:
            return EVENT_STREAM, self._encode(events) + self.closing()
        return JSON, text_parser.written_answer(self.answer(events))

    def encode_events(self, events: bytes) -> bytes:
        """Encode a piece of a stream."""
        return self._encode(self._parser.feed(events))

    def encode_end(self) -> bytes:
        """Encode the end of a stream. One with neither a finish reason nor `[DONE]` broke off."""
        written = self._encode(self._parser.finish())
        if not self._parser.may_end:
            written += self._fail(TextFailure("the worker broke off", "", "answer_broken"))
        return written if self._failed else written + self.closing()

    def encode_failure(self, refused: Refusal) -> bytes:
        """Encode the failure of a stream that broke off."""
        error = refused.body["error"]
        return self._fail(TextFailure(error["message"], error["type"], error["code"]))

    def _encode(self, events: Sequence[TextEvent]) -> bytes:
        if self._failed:
            return b""
        opening = b"" if self._begun else self.opening()
        self._begun = True
        # A failure is always the last event.
        if events and isinstance(events[-1], TextFailure):
            return opening + self.events(events[:-1]) + self._fail(events[-1])
        return opening + self.events(events)

    def _fail(self, failure: TextFailure) -> bytes:
        if self._failed:
            return b""
        self._failed = True
        return self.failure(failure)
