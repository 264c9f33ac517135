"""Encoder of answers in another protocol than OpenAI's. An encoder writes one answer; what all have in common is here.

A face that has its own words reads them into a request with OpenAI's body, and gives a voice along. Everything between is
the same for all faces: choice, attempts, streams that break off, accounts.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import orjson

from node.faces.errors import Refusal
from registry.values import value_class
from router.attempt import Routed
from router.errors import AnswerBroken
from router.openai import text_parser
from router.openai.text_parser import Heard, TextFailure
from router.requests import Kind, Request

EVENT_STREAM = "text/event-stream"
JSON = "application/json"

_DONE = re.compile(rb"^data: ?\[DONE\]\r?\n\r?\n", re.MULTILINE)
_FAILURE = re.compile(rb'^data: ?\{"error"', re.MULTILINE)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""The longest answer in one piece that is said in other words; a longer one is refused as a failure of its worker."""


class Encoder(Protocol):
    """Says one answer in the words of its caller's protocol. One for each request."""

    @property
    def streams(self) -> bool:
        """Whether the caller hears a stream, even of an answer that came in one piece."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What headers say besides: asked once an answer in one piece was said, or before a stream begins."""

    def whole(self, body: bytes) -> tuple[str, bytes]:
        """Return content type and bytes of an answer that came in one piece; raise `WorkerFailed` when it is none."""

    def stream(self, events: bytes) -> bytes:
        """Return what whole events of OpenAI's stream are in the caller's, nothing perhaps; raise `WorkerFailed`."""

    def end(self) -> bytes:
        """Return what ends the stream; raise `WorkerFailed`."""

    def broken(self, refused: Refusal) -> bytes:
        """Return the last bytes of a stream that broke off; none where only a cut connection is understood."""


Homing = Callable[[Routed, bytes], bytes]
"""Puts a home to the ids in what a service answers."""


@value_class
class SpokenAnswer:
    """A request, and the voice in which its answer is said; OpenAI's own words where there is none.

    `dropped` names the caller's parameters that have no effect, for lack of a word in OpenAI's form. `framed` makes the caller's
    answer of one in one piece from a worker who speaks the caller's protocol, where there is something around it. `names` are the
    caller's for parameters of OpenAI's: others were not the caller's to say. `None` where they are the same. `homed` is set for a
    service, and changes its JSON.
    """

    request: Request
    voice: Encoder | None = None
    dropped: tuple[str, ...] = ()
    framed: Callable[[bytes], bytes] | None = None
    names: Mapping[str, str] | None = None
    homed: Homing | None = None


class WithoutDone:
    """OpenAI's own words, but for the ends of a stream: what Llama Stack's client reads there is a piece of the answer."""

    streams = True
    headers = _NO_HEADERS

    def whole(self, body: bytes) -> tuple[str, bytes]:
        """Say it as it came."""
        return JSON, body

    def stream(self, events: bytes) -> bytes:
        """Leave out `[DONE]`, which it takes for JSON; raise `AnswerBroken` where the worker, or its node, tells a failure."""
        if _FAILURE.search(events):
            raise AnswerBroken("the worker broke off")
        return _DONE.sub(b"", events)

    def end(self) -> bytes:
        """End without a word."""
        return b""

    def broken(self, _: Refusal) -> bytes:
        """Have the connection cut: it takes an error for one more piece, and half an answer for a whole one."""
        return b""


class TextVoice(ABC):
    """A voice for chats and completions: what it says of the events that were heard."""

    def __init__(self, kind: Kind, *, streams: bool, max_event_bytes: int) -> None:
        self._kind = kind
        self._streams = streams
        self._ear = text_parser.Stream(max_event_bytes=max_event_bytes)
        self._begun = self._failed = False

    @property
    def streams(self) -> bool:
        """Whether the caller hears a stream."""
        return self._streams

    @property
    def headers(self) -> Mapping[str, str]:
        """What headers say besides."""
        return {}

    @abstractmethod
    def answer(self, heard: Sequence[Heard]) -> object:
        """Return the JSON of a whole answer."""

    @abstractmethod
    def events(self, heard: Sequence[Heard]) -> bytes:
        """Return a piece of the caller's stream: what some events look like, nothing perhaps. No `Failure` is among them."""

    @abstractmethod
    def failure(self, failure: TextFailure) -> bytes:
        """Return the last event of a stream that broke off."""

    def opening(self) -> bytes:
        """Return what the stream begins with."""
        return b""

    def closing(self) -> bytes:
        """Return what the stream ends with, when nothing failed. Some workers never say why: there may have been no `End`."""
        return b""

    def whole(self, body: bytes) -> tuple[str, bytes]:
        """Say an answer that came in one piece."""
        heard = text_parser.whole(self._kind, body)
        if self._streams:
            return EVENT_STREAM, self._said(heard) + self.closing()
        return JSON, orjson.dumps(self.answer(heard))

    def stream(self, events: bytes) -> bytes:
        """Say a piece of a stream."""
        return self._said(self._ear.take(events))

    def end(self) -> bytes:
        """Say the end of a stream. It broke off if its worker said neither why it ends nor that it does."""
        said = self._said(self._ear.finish())
        if not self._ear.whole:
            said += self._fail(TextFailure("the worker broke off", "", "answer_broken"))
        return said if self._failed else said + self.closing()

    def broken(self, refused: Refusal) -> bytes:
        """Say that a stream broke off."""
        error = refused.body["error"]
        return self._fail(TextFailure(error["message"], error["type"], error["code"]))

    def _said(self, heard: Sequence[Heard]) -> bytes:
        if self._failed:
            return b""
        opening = b"" if self._begun else self.opening()
        self._begun = True
        # Nothing is heard after it.
        if heard and isinstance(heard[-1], TextFailure):
            return opening + self.events(heard[:-1]) + self._fail(heard[-1])
        return opening + self.events(heard)

    def _fail(self, failure: TextFailure) -> bytes:
        if self._failed:
            return b""
        self._failed = True
        return self.failure(failure)
