"""How do TGI's own `/v1` paths differ from OpenAI's? In a few fields of the request, and in what no answer may lack.

What a worker says passes as it came where nothing is missing in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from node.faces.errors import Refusal
from node.faces.tgi import refusing
from node.faces.tgi.asked import grammar
from node.faces.voice import JSON
from router.errors import WorkerFailed
from router.fitness import USUAL_BYTES
from router.hearing import Failure
from router.requests import Kind
from router.sse import Event, EventTooLarge, Splitter, with_data

_NAMING = frozenset({"model", "models", "project"})
_CHOICES = frozenset({"auto", "none", "required"})
_DONE = b"[DONE]"
_COMPLETE = (b'"system_fingerprint":"', b'"logprobs":', b'"created":', b'"object":"', b'"id":"')


def fields_of(given: Mapping[str, object], model: str) -> dict[str, object]:
    """Return OpenAI's fields for a model; what TGI calls otherwise is renamed. Raise `BadRequest`."""
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


def dropped(given: Mapping[str, object]) -> tuple[str, ...]:
    """Name what OpenAI's form has no word for: the text between a chat and its tools, and biases that name no tokens."""
    bias = isinstance(given.get("logit_bias"), list)
    unheard = {"tool_prompt": given.get("tool_prompt") is not None, "logit_bias": bias}
    return tuple(name for name, there in unheard.items() if there)


def _told(given: Mapping[str, object]) -> dict[str, object]:
    """Leave out what is null: some servers mind."""
    return {name: value for name, value in given.items() if value is not None}


def _tool(tool: object) -> object:
    match tool:
        case {"function": {"arguments": arguments, **rest}} if "parameters" not in rest:
            return {"type": "function", "function": {**rest, "parameters": arguments}}
    return tool


class Completed:
    """Passes an answer of `/v1` on, with the fields that clients of TGI insist on; errors are TGI's."""

    def __init__(
        self,
        kind: Kind,
        sent: Mapping[str, object],
        *,
        id_: str,
        created: int,
        max_event_bytes: int,
    ) -> None:
        """`sent` are the fields that were sent on; `created` is Unix time."""
        self._kind = kind
        self._sent = sent
        self._id = id_
        self._created = created
        self._splitter = Splitter(max_event_bytes=max_event_bytes)
        self._failed = False

    @property
    def streams(self) -> bool:
        """Whether the caller hears a stream."""
        return self._sent.get("stream") is True

    @property
    def headers(self) -> Mapping[str, str]:
        """Nothing besides."""
        return {}

    def whole(self, body: bytes) -> tuple[str, bytes]:
        """Say an answer in one piece."""
        if self.streams:
            raise WorkerFailed("the worker does not stream")
        said = _object(body)
        self._complete(said, chunk=False)
        for choice in _choices(said):
            choice["finish_reason"] = choice.get("finish_reason") or "stop"
        if not isinstance(said.get("usage"), dict):
            said["usage"] = self._estimate(_choices(said))
        return JSON, _written(said)

    def stream(self, events: bytes) -> bytes:
        """Say a piece of a stream."""
        try:
            found = self._splitter.feed(events)
        except EventTooLarge as error:
            raise WorkerFailed(str(error)) from error
        return b"".join(map(self._event, found))

    def end(self) -> bytes:
        """Say what is left."""
        return b"".join(map(self._event, self._splitter.finish()))

    def broken(self, refused: Refusal) -> bytes:
        """Say that a stream broke off."""
        error = refused.body["error"]
        return self._fail(Failure(error["message"], error["type"], error["code"]))

    def _event(self, event: Event) -> bytes:
        data = event.data
        if self._failed:
            return b""
        if not data or data == _DONE:
            return event.raw
        failing = b'"error"' in data
        if not failing and all(word in data for word in _COMPLETE):
            return event.raw
        said = _object(data)
        if failing and (error := said.get("error")):
            return self._fail(_failure(error))
        self._complete(said, chunk=True)
        return with_data(event, _written(said))

    def _fail(self, failure: Failure) -> bytes:
        if self._failed:
            return b""
        self._failed = True
        return refusing.event(failure)

    def _complete(self, said: dict[str, Any], *, chunk: bool) -> None:
        chat = self._kind is Kind.CHAT
        form = "chat.completion.chunk" if chat and chunk else "chat.completion"
        usual = {
            "id": self._id,
            "object": form if chat else "text_completion",
            "created": self._created,
            "model": self._sent["model"],
            "system_fingerprint": "",
        }
        for name, value in usual.items():
            if said.get(name) is None:
                said[name] = value
        for choice in _choices(said):
            choice.setdefault("logprobs", None)

    def _estimate(self, choices: Sequence[Mapping[str, object]]) -> dict[str, object]:
        asked = self._sent.get("messages" if self._kind is Kind.CHAT else "prompt")
        texts = [choice.get("message") or choice.get("text") for choice in choices]
        read, written = (
            -(-len(_written({"said": part})) // USUAL_BYTES) for part in (asked, texts)
        )
        spent = {"prompt_tokens": read, "completion_tokens": written}
        return {**spent, "total_tokens": read + written, "estimated": True}


def _choices(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = said.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict)]


def _failure(error: object) -> Failure:
    match error:
        case {"message": str(message), "type": str(kind), "code": str(code)}:
            return Failure(message, kind, code)
        case {"message": str(message)} | str(message):
            return Failure(message, "", "")
    return Failure("the stream broke off", "", "")


def _object(data: bytes) -> dict[str, Any]:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WorkerFailed("the answer calls itself JSON and is not") from error
    if not isinstance(said, dict):
        raise WorkerFailed("the answer is no JSON object")
    return said


def _written(said: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(said)
    except orjson.JSONEncodeError as error:
        raise WorkerFailed("the answer is nested too deep") from error
