"""Requests at TGI's own `/v1` paths in OpenAI's form, and TGI's forms of their answers, with all fields that it requires.

What a worker sends is passed on unchanged where nothing is missing in it. A caller that offered tools in TGI's form
(`arguments`) gets calls in TGI's form: each event of a stream has one call, and a message with calls has no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from node.faces.encoder import JSON
from node.faces.errors import Refusal
from node.faces.tgi import encoder
from node.faces.tgi.request_mapping import grammar
from router.canonical.values import read_flag, read_integer, read_number, read_text
from router.errors import WorkerFailed
from router.openai.body import encode_json
from router.openai.sse import Event, EventTooLarge, Splitter, with_data
from router.openai.text_parser import TextFailure, answer_object, written_answer
from router.requests import Kind
from router.select.fitness import USUAL_BYTES
from router.translate.verbatim import TGI, Verbatim

Choice = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of one answer; `sent` are the fields of its request in OpenAI's form, `created` is Unix time."""

    kind: Kind
    sent: Mapping[str, object]
    id: str
    created: int
    spelt: bool
    """Whether the caller offers tools in TGI's form."""
    _called: dict[tuple[int, int], str] = field(default_factory=dict)

    def whole(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer in one piece."""
        choices = [self._whole(choice, at) for at, choice in enumerate(_choices(said))]
        answer = self._head(said, "chat.completion") | {"choices": choices}
        return answer | {"usage": self._usage(said.get("usage"), choices)}

    def chunks(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one event of a stream, as several where a choice contains more than one event has room for."""
        pieces = [self._pieces(choice, at) for at, choice in enumerate(_choices(said))]
        head = self._head(said, "chat.completion.chunk")
        rows = [*zip_longest(*pieces)] or [()]
        return [head | {"choices": [one for one in row if one is not None]} for row in rows]

    def _head(self, said: Mapping[str, Any], chat: str) -> dict[str, Any]:
        created = said.get("created")
        usual: dict[str, Any] = {
            "id": self.id,
            "object": chat if self.kind is Kind.CHAT else "text_completion",
            "model": str(self.sent.get("model")),
            "system_fingerprint": "",
        }
        lacking = {
            name: text for name, text in usual.items() if not isinstance(said.get(name), str)
        }
        told = isinstance(created, int) and not isinstance(created, bool) and created >= 0
        return {**said, **lacking, "created": created if told else self.created}

    def _whole(self, choice: Choice, at: int) -> Choice:
        reason = choice.get("finish_reason")
        ended = reason if isinstance(reason, str) and reason else "stop"
        found = choice | {"index": _index(choice, at), "finish_reason": ended}
        if self.kind is Kind.COMPLETION:
            return found | {"text": _text(choice.get("text")), "logprobs": choice.get("logprobs")}
        message = choice.get("message")
        given = message if isinstance(message, dict) else {}
        calls = _calls(given)
        said: dict[str, Any] = {**given, "role": given.get("role") or "assistant"}
        said["content"] = text = _text(given.get("content"))
        if calls:
            said["content"] = None if self.spelt else text or None
            said["tool_calls"] = [self._call(call, (found["index"], n)) for n, call in calls]
        return found | {"message": said, "logprobs": _likely(choice.get("logprobs"))}

    def _pieces(self, choice: Choice, at: int) -> list[Choice]:
        reason, index = choice.get("finish_reason"), _index(choice, at)
        if self.kind is Kind.COMPLETION:
            # In TGI's form, `""` marks a text that continues.
            ended: object = reason if isinstance(reason, str) else ""
            text, likely = _text(choice.get("text")), choice.get("logprobs")
            return [
                choice | {"index": index, "text": text, "finish_reason": ended, "logprobs": likely}
            ]
        ended = reason if isinstance(reason, str) and reason else None
        likely = _likely(choice.get("logprobs"))
        deltas = self._deltas(choice.get("delta"), index)
        pieces = [choice | {"index": index, "delta": delta} for delta in deltas]
        silent: Choice = {"finish_reason": None, "logprobs": None}
        pieces = [piece | silent for piece in pieces]
        pieces[0]["logprobs"] = likely
        pieces[-1]["finish_reason"] = ended
        return pieces

    def _deltas(self, delta: object, index: int) -> list[dict[str, Any]]:
        given: dict[str, Any] = delta if isinstance(delta, dict) else {}
        calls, text = _calls(given), _text(given.get("content"))
        role = given.get("role") or "assistant"
        said: dict[str, Any] = {**given, "role": role, "content": text}
        if not calls:
            return [said]
        if not self.spelt:
            return [said]
        del said["tool_calls"]
        told = [
            {"role": role, "tool_calls": {"index": n, **self._call(call, (index, n))}}
            for n, call in calls
        ]
        return [said, *told] if text else told

    def _call(self, call: Mapping[str, Any], place: tuple[int, int]) -> dict[str, Any]:
        """Return a call, or a piece of one, with all required fields; the worker sends the id with the first piece only."""
        function = call.get("function")
        given: dict[str, Any] = function if isinstance(function, dict) else {}
        id_ = call.get("id")
        if isinstance(id_, str) and id_:
            self._called[place] = id_
        arguments = given.get("arguments")
        text = arguments if isinstance(arguments, str) else ""
        if isinstance(arguments, dict):
            text = written_answer(arguments).decode()
        return {
            **call,
            "id": self._called.get(place, ""),
            "type": "function",
            "function": {**given, "arguments": text},
        }

    def _usage(self, given: Any, choices: Sequence[Choice]) -> dict[str, Any]:
        match given:
            case {"prompt_tokens": int(read), "completion_tokens": int(written)} as told:
                total = told.get("total_tokens")
                return {**told, "total_tokens": total if isinstance(total, int) else read + written}
        asked = self.sent.get("messages" if self.kind is Kind.CHAT else "prompt")
        texts = [choice.get("message") or choice.get("text") for choice in choices]
        read, written = (-(-len(written_answer(part)) // USUAL_BYTES) for part in (asked, texts))
        spent = {"prompt_tokens": read, "completion_tokens": written}
        return {**spent, "total_tokens": read + written, "estimated": True}


def _choices(said: Mapping[str, Any]) -> list[Choice]:
    choices = said.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict)]


def _calls(message: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return calls of tools, each with its index."""
    given = message.get("tool_calls")
    # TGI's own streams have one call in each event.
    calls = [given] if isinstance(given, dict) else given if isinstance(given, list) else []
    return [(_index(call, at), call) for at, call in enumerate(calls) if isinstance(call, dict)]


def _likely(given: object) -> object:
    """Return the log probabilities of a chat's tokens, with the empty lists that workers omit."""
    if not isinstance(given, dict):
        return None
    content = given.get("content")
    tokens = content if isinstance(content, list) else []
    return given | {
        "content": [
            {**token, "top_logprobs": token.get("top_logprobs") or []}
            for token in tokens
            if isinstance(token, dict)
        ]
    }


def _index(said: Mapping[str, Any], otherwise: int) -> int:
    given = said.get("index")
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    return otherwise


def _text(given: object) -> str:
    """Return a text; some workers send it in parts."""
    if isinstance(given, list):
        return "".join(_text(part.get("text")) for part in given if isinstance(part, dict))
    return given if isinstance(given, str) else ""


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
