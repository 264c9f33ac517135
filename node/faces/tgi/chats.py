"""Requests at TGI's own `/v1` paths in OpenAI's form, and the encoder of their answers in TGI's form.

What a worker sends is passed on unchanged where nothing is missing in it.
"""

from collections.abc import Mapping

from node.faces.encoder import JSON
from node.faces.errors import Refusal
from node.faces.tgi import encoder
from node.faces.tgi.forms import Forms
from node.faces.tgi.request_mapping import grammar
from router.canonical.values import read_flag, read_integer, read_number, read_text
from router.errors import WorkerFailed
from router.openai.body import encode_json
from router.openai.sse import Event, EventTooLarge, Splitter, with_data
from router.openai.text_parser import TextFailure, answer_object, written_answer
from router.requests import Kind
from router.translate.verbatim import TGI, Verbatim

_NAMING = frozenset({"model", "models", "project"})
_CHOICES = frozenset({"auto", "none", "required"})
_DONE = b"[DONE]"

_PENALTIES = ("frequency_penalty", "presence_penalty")
_NUMBERS = ("repetition_penalty", "temperature", "top_p")
_COUNTS: Mapping[str, int] = {"max_tokens": 2**31, "n": 2**31, "seed": 2**64, "top_logprobs": 2**31}
_MOST = 2.0**31
_LONGEST_TEXT = 1024 * 1024

OWN = ("logit_bias", "presence_penalty", "tool_prompt")
"""Fields of TGI's chats that OpenAI's form lacks, or has with another meaning."""


def fields_of(given: Mapping[str, object], model: str) -> dict[str, object]:
    """Return OpenAI's fields for a model; fields with other names in TGI's form are renamed. Raise `BadRequest`."""
    said = {name: value for name, value in _told(given).items() if name not in _NAMING}
    if isinstance(messages := said.get("messages"), list):
        said["messages"] = [_told(m) if isinstance(m, dict) else m for m in messages]
    if isinstance(tools := said.get("tools"), list):
        said["tools"] = [_tool(tool) for tool in tools]
    match said.get("tool_choice"):
        case str(name) if name not in _CHOICES:
            said["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"function": dict(function)}:
            said["tool_choice"] = {"type": "function", "function": function}
    match said.get("response_format"):
        case {"type": "json" | "regex"} as form:
            del said["response_format"]
            said |= grammar(form, "response_format")
    return {"model": model, **{k: v for k, v in said.items() if k not in dropped(given)}}


def check(given: Mapping[str, object], kind: Kind) -> None:
    """Raise `BadRequest` where a field of TGI's has a value that its specification does not allow."""
    for name in _PENALTIES:
        read_number(given, name, -2, 2)
    for name in _NUMBERS:
        read_number(given, name, 0, _MOST)
    for name, most in _COUNTS.items():
        read_integer(given, name, 0, most - 1)
    read_flag(given, "stream")
    read_text(given, "suffix", _LONGEST_TEXT)
    read_text(given, "tool_prompt", _LONGEST_TEXT)
    if kind is Kind.CHAT:
        read_flag(given, "logprobs")


def dropped(given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields without an equivalent in OpenAI's form: `tool_prompt`, and a `logit_bias` that names no tokens."""
    bias = isinstance(given.get("logit_bias"), list)
    unheard = {"tool_prompt": given.get("tool_prompt") is not None, "logit_bias": bias}
    return tuple(name for name, there in unheard.items() if there)


def own_words(given: Mapping[str, object]) -> Verbatim | None:
    """Return the fields that only a worker of TGI's protocol understands as the caller means them, `None` for none."""
    heard = {name: given[name] for name in OWN if given.get(name) is not None}
    if not isinstance(heard.get("logit_bias"), list):
        heard.pop("logit_bias", None)
    return Verbatim(TGI, "chat", encode_json(heard)) if heard else None


def spelt(given: Mapping[str, object]) -> bool:
    """Return whether a caller offers tools in TGI's form (`arguments`); other callers get calls in OpenAI's form."""
    tools = given.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        match tool:
            case {"function": {"arguments": _}}:
                return True
    return False


def _told(given: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that are not null: some servers refuse null."""
    return {name: value for name, value in given.items() if value is not None}


def _tool(tool: object) -> object:
    match tool:
        case {"function": {"arguments": arguments, **rest}} if "parameters" not in rest:
            return {"type": "function", "function": {**rest, "parameters": arguments}}
    return tool


class Completed:
    """Encoder that passes on an answer of `/v1`, with the fields that TGI's clients require; errors are in TGI's form."""

    def __init__(self, forms: Forms, *, max_event_bytes: int) -> None:
        self._forms = forms
        self._splitter = Splitter(max_event_bytes=max_event_bytes)
        self._failed = False

    @property
    def streams(self) -> bool:
        """Whether the caller gets a stream."""
        return self._forms.sent.get("stream") is True

    @property
    def headers(self) -> Mapping[str, str]:
        """Additional headers: none."""
        return {}

    def whole(self, body: bytes) -> tuple[str, bytes]:
        """Return an answer in one piece; raise `WorkerFailed`."""
        if self.streams:
            raise WorkerFailed("the worker does not stream")
        return JSON, written_answer(self._forms.whole(answer_object(body)))

    def stream(self, events: bytes) -> bytes:
        """Return a piece of a stream; raise `WorkerFailed`."""
        try:
            found = self._splitter.feed(events)
        except EventTooLarge as error:
            raise WorkerFailed(str(error)) from error
        return b"".join(map(self._event, found))

    def end(self) -> bytes:
        """Return the rest of a stream."""
        return b"".join(map(self._event, self._splitter.finish()))

    def broken(self, refused: Refusal) -> bytes:
        """Return the event for a stream that broke off."""
        error = refused.body["error"]
        return self._fail(TextFailure(error["message"], error["type"], error["code"]))

    def _event(self, event: Event) -> bytes:
        data = event.data
        if self._failed:
            return b""
        if not data or data == _DONE:
            return event.raw
        said = answer_object(data)
        if error := said.get("error"):
            return self._fail(_failure(error))
        chunks = self._forms.chunks(said)
        if chunks == [said]:
            return event.raw
        *before, last = map(written_answer, chunks)
        return b"".join(b"data: " + one + b"\n\n" for one in before) + with_data(event, last)

    def _fail(self, failure: TextFailure) -> bytes:
        if self._failed:
            return b""
        self._failed = True
        return encoder.event(failure)


def _failure(error: object) -> TextFailure:
    match error:
        case {"message": str(message), "type": str(kind), "code": str(code)}:
            return TextFailure(message, kind, code)
        case {"message": str(message)} | str(message):
            return TextFailure(message, "", "")
    return TextFailure("the stream broke off", "", "")
