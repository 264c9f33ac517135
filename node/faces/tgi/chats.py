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

    def whole(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer in one piece."""
        choices = [self._whole(choice, index) for index, choice in enumerate(_choices(fields))]
        answer = self._head(fields, "chat.completion") | {"choices": choices}
        return answer | {"usage": self._usage(fields.get("usage"), choices)}

    def chunks(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one event of a stream, as several where a choice contains more than one event has room for."""
        pieces = [self._pieces(choice, index) for index, choice in enumerate(_choices(fields))]
        head = self._head(fields, "chat.completion.chunk")
        rows = [*zip_longest(*pieces)] or [()]
        return [head | {"choices": [piece for piece in row if piece is not None]} for row in rows]

    def _head(self, fields: Mapping[str, Any], chat: str) -> dict[str, Any]:
        created = fields.get("created")
        usual: dict[str, Any] = {
            "id": self.id,
            "object": chat if self.kind is Kind.CHAT else "text_completion",
            "model": str(self.sent.get("model")),
            "system_fingerprint": "",
        }
        lacking = {
            name: text for name, text in usual.items() if not isinstance(fields.get(name), str)
        }
        is_time = isinstance(created, int) and not isinstance(created, bool) and created >= 0
        return {**fields, **lacking, "created": created if is_time else self.created}

    def _whole(self, choice: Choice, index: int) -> Choice:
        reason = choice.get("finish_reason")
        ended = reason if isinstance(reason, str) and reason else "stop"
        choice_fields = choice | {"index": _index(choice, index), "finish_reason": ended}
        if self.kind is Kind.COMPLETION:
            return choice_fields | {
                "text": _text(choice.get("text")),
                "logprobs": choice.get("logprobs"),
            }
        message = choice.get("message")
        fields = message if isinstance(message, dict) else {}
        calls = _calls(fields)
        message_fields: dict[str, Any] = {**fields, "role": fields.get("role") or "assistant"}
        message_fields["content"] = text = _text(fields.get("content"))
        if calls:
            message_fields["content"] = None if self.spelt else text or None
            message_fields["tool_calls"] = [
                self._call(call, (choice_fields["index"], n)) for n, call in calls
            ]
        return choice_fields | {
            "message": message_fields,
            "logprobs": _likely(choice.get("logprobs")),
        }

    def _pieces(self, choice: Choice, position: int) -> list[Choice]:
        reason, index = choice.get("finish_reason"), _index(choice, position)
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
        fields: dict[str, Any] = delta if isinstance(delta, dict) else {}
        calls, text = _calls(fields), _text(fields.get("content"))
        role = fields.get("role") or "assistant"
        delta_fields: dict[str, Any] = {**fields, "role": role, "content": text}
        if not calls:
            return [delta_fields]
        if not self.spelt:
            return [delta_fields]
        del delta_fields["tool_calls"]
        deltas = [
            {"role": role, "tool_calls": {"index": n, **self._call(call, (index, n))}}
            for n, call in calls
        ]
        return [delta_fields, *deltas] if text else deltas

    def _call(self, call: Mapping[str, Any], position: tuple[int, int]) -> dict[str, Any]:
        """Return a call, or a piece of one, with all required fields; the worker sends the id with the first piece only."""
        function = call.get("function")
        fields: dict[str, Any] = function if isinstance(function, dict) else {}
        id_ = call.get("id")
        if isinstance(id_, str) and id_:
            self._called[position] = id_
        arguments = fields.get("arguments")
        text = arguments if isinstance(arguments, str) else ""
        if isinstance(arguments, dict):
            text = written_answer(arguments).decode()
        return {
            **call,
            "id": self._called.get(position, ""),
            "type": "function",
            "function": {**fields, "arguments": text},
        }

    def _usage(self, value: Any, choices: Sequence[Choice]) -> dict[str, Any]:
        match value:
            case {"prompt_tokens": int(read), "completion_tokens": int(written)} as usage:
                total = usage.get("total_tokens")
                return {
                    **usage,
                    "total_tokens": total if isinstance(total, int) else read + written,
                }
        prompt = self.sent.get("messages" if self.kind is Kind.CHAT else "prompt")
        texts = [choice.get("message") or choice.get("text") for choice in choices]
        read, written = (-(-len(written_answer(part)) // USUAL_BYTES) for part in (prompt, texts))
        usage_fields = {"prompt_tokens": read, "completion_tokens": written}
        return {**usage_fields, "total_tokens": read + written, "estimated": True}


def _choices(fields: Mapping[str, Any]) -> list[Choice]:
    choices = fields.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict)]


def _calls(message: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return calls of tools, each with its index."""
    value = message.get("tool_calls")
    # TGI's own streams have one call in each event.
    calls = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [
        (_index(call, index), call) for index, call in enumerate(calls) if isinstance(call, dict)
    ]


def _likely(value: object) -> object:
    """Return the log probabilities of a chat's tokens, with the empty lists that workers omit."""
    if not isinstance(value, dict):
        return None
    content = value.get("content")
    tokens = content if isinstance(content, list) else []
    return value | {
        "content": [
            {**token, "top_logprobs": token.get("top_logprobs") or []}
            for token in tokens
            if isinstance(token, dict)
        ]
    }


def _index(fields: Mapping[str, Any], otherwise: int) -> int:
    index = fields.get("index")
    if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
        return index
    return otherwise


def _text(value: object) -> str:
    """Return a text; some workers send it in parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


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


def fields_of(fields: Mapping[str, object], model: str) -> dict[str, object]:
    """Return OpenAI's fields for a model; fields with other names in TGI's form are renamed. Raise `BadRequest`."""
    body = {name: value for name, value in _told(fields).items() if name not in _NAMING}
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [_told(m) if isinstance(m, dict) else m for m in messages]
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [_tool(tool) for tool in tools]
    match body.get("tool_choice"):
        case str(name) if name not in _CHOICES:
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"function": dict(function)}:
            body["tool_choice"] = {"type": "function", "function": function}
    match body.get("response_format"):
        case {"type": "json" | "regex"} as form:
            del body["response_format"]
            body |= grammar(form, "response_format")
    return {"model": model, **{k: v for k, v in body.items() if k not in dropped(fields)}}


def check(fields: Mapping[str, object], kind: Kind) -> None:
    """Raise `BadRequest` where a field of TGI's has a value that its specification does not allow."""
    for name in _PENALTIES:
        read_number(fields, name, -2, 2)
    for name in _NUMBERS:
        read_number(fields, name, 0, _MOST)
    for name, limit in _COUNTS.items():
        read_integer(fields, name, 0, limit - 1)
    read_flag(fields, "stream")
    read_text(fields, "suffix", _LONGEST_TEXT)
    read_text(fields, "tool_prompt", _LONGEST_TEXT)
    if kind is Kind.CHAT:
        read_flag(fields, "logprobs")


def dropped(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields without an equivalent in OpenAI's form: `tool_prompt`, and a `logit_bias` that names no tokens."""
    bias = isinstance(fields.get("logit_bias"), list)
    unheard = {"tool_prompt": fields.get("tool_prompt") is not None, "logit_bias": bias}
    return tuple(name for name, is_present in unheard.items() if is_present)


def own_words(fields: Mapping[str, object]) -> Verbatim | None:
    """Return the fields that only a worker of TGI's protocol understands as the caller means them, `None` for none."""
    own_fields = {name: fields[name] for name in OWN if fields.get(name) is not None}
    if not isinstance(own_fields.get("logit_bias"), list):
        own_fields.pop("logit_bias", None)
    return Verbatim(TGI, "chat", encode_json(own_fields)) if own_fields else None


def spelt(fields: Mapping[str, object]) -> bool:
    """Return whether a caller offers tools in TGI's form (`arguments`); other callers get calls in OpenAI's form."""
    tools = fields.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        match tool:
            case {"function": {"arguments": _}}:
                return True
    return False


def _told(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that are not null: some servers refuse null."""
    return {name: value for name, value in fields.items() if value is not None}


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

    def encode_whole(self, body: bytes) -> tuple[str, bytes]:
        """Return an answer in one piece; raise `WorkerFailed`."""
        if self.streams:
            raise WorkerFailed("the worker does not stream")
        return JSON, written_answer(self._forms.whole(answer_object(body)))

    def encode_events(self, events: bytes) -> bytes:
        """Return a piece of a stream; raise `WorkerFailed`."""
        try:
            split = self._splitter.feed(events)
        except EventTooLarge as error:
            raise WorkerFailed(str(error)) from error
        return b"".join(map(self._event, split))

    def encode_end(self) -> bytes:
        """Return the rest of a stream."""
        return b"".join(map(self._event, self._splitter.finish()))

    def encode_failure(self, refused: Refusal) -> bytes:
        """Return the event for a stream that broke off."""
        error = refused.body["error"]
        return self._fail(TextFailure(error["message"], error["type"], error["code"]))

    def _event(self, event: Event) -> bytes:
        data = event.data
        if self._failed:
            return b""
        if not data or data == _DONE:
            return event.raw
        payload = answer_object(data)
        if error := payload.get("error"):
            return self._fail(_failure(error))
        chunks = self._forms.chunks(payload)
        if chunks == [payload]:
            return event.raw
        *before, last = map(written_answer, chunks)
        return b"".join(b"data: " + line + b"\n\n" for line in before) + with_data(event, last)

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
