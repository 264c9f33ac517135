"""Chats of later versions of Llama Stack: `/inference/chat_completion`, then `/v1/inference/chat-completion`.

It maps their requests to the bodies of OpenAI's, and encodes their answers: a `completion_message`, or events.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from node.faces.encoder import TextEncoder
from router.canonical.values import read_flag, read_integer, read_list, read_number, read_text
from router.errors import BadRequest
from router.openai.text_parser import CallPart, Heard, TextFailure, arguments_object
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import Kind

PATHS = ("/inference/chat_completion", "/v1/inference/chat-completion")

MAX_MESSAGES = 10_000
_MOST = 2**31 - 1
_READ = frozenset({
    "model", "model_id", "messages", "sampling_params", "stream", "tools", "tool_choice", "tool_config", "response_format",
})  # fmt: skip
_ROLES: Mapping[str, str] = {
    "system": "system", "user": "user", "assistant": "assistant", "tool": "tool", "ipython": "tool",
}  # fmt: skip
_TYPES: Mapping[str, str] = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "list": "array",
}
_CHOICES = frozenset({"auto", "required", "none"})


def body_of(given: Mapping[str, object]) -> dict[str, object]:
    """Return a chat in OpenAI's form; raise `BadRequest`, which names the field."""
    name = given.get("model_id") or given.get("model")
    messages = read_list(given, "messages", MAX_MESSAGES)
    said = [_message(one, f"messages[{at}]") for at, one in enumerate(messages)]
    body: dict[str, object] = {"model": name, "messages": said, **_sampling(given)}
    if tools := _tools(given.get("tools")):
        body |= {"tools": tools, **_tool_choice(given)}
    match given.get("response_format"):
        case None:
            pass
        case {"type": "json_schema", "json_schema": dict(schema)}:
            named = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        case _:
            raise BadRequest("`response_format` must be a json_schema", param="response_format")
    if read_flag(given, "stream"):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def dropped_of(given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of fields without effect."""
    names = sorted(name for name, value in given.items() if name not in _READ and value is not None)
    return tuple(
        n for n in names if len(n) <= 64 and n.isascii() and n.isprintable() and "," not in n
    )[:32]


def _sampling(given: Mapping[str, object]) -> dict[str, object]:
    params = _object(given.get("sampling_params"), "sampling_params")
    strategy = params.get("strategy")
    # At first `strategy` was a word with the numbers beside it, later an object that contains them.
    chosen = {**params, **strategy} if isinstance(strategy, dict) else params
    kind = strategy.get("type") if isinstance(strategy, dict) else strategy
    if kind not in (None, "greedy", "top_p", "top_k"):
        raise BadRequest(
            "`strategy` must be greedy, top_p or top_k", param="sampling_params.strategy"
        )
    said: dict[str, object] = {
        "max_tokens": read_integer(params, "max_tokens", 0, _MOST) or None,
        "repetition_penalty": read_number(params, "repetition_penalty", 0, _MOST, usual=1),
        "stop": _stop(params),
        "temperature": read_number(chosen, "temperature", 0, _MOST),
        "top_p": read_number(chosen, "top_p", 0, 1) if kind != "top_k" else None,
        "top_k": read_integer(chosen, "top_k", 0, _MOST) or None if kind == "top_k" else None,
    }
    if kind == "greedy":
        said |= {"temperature": 0, "top_p": None}
    return {name: value for name, value in said.items() if value is not None}


def _stop(params: Mapping[str, object]) -> object:
    stop = params.get("stop") or None
    if stop is None or (isinstance(stop, list) and all(isinstance(one, str) for one in stop)):
        return stop
    raise BadRequest("`stop` must be a list of texts", param="sampling_params.stop")


def _message(given: object, where: str) -> dict[str, object]:
    message = _object(given, where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"the role must be one of: {', '.join(_ROLES)}", param=f"{where}.role")
    said: dict[str, object] = {"role": _ROLES[role], "content": _content(message, where)}
    if _ROLES[role] == "tool":
        said["tool_call_id"] = read_text(message, "call_id", 256)
    calls = message.get("tool_calls") or []
    if role == "assistant" and isinstance(calls, list) and calls:
        said |= {"content": said["content"] or None, "tool_calls": [_call(c, where) for c in calls]}
    return said


def _content(message: Mapping[str, object], where: str) -> object:
    given = message.get("content")
    if given is None or isinstance(given, str):
        return given or ""
    parts = given if isinstance(given, list) else [given]
    return [_part(part, f"{where}.content") for part in parts]


def _part(given: object, where: str) -> dict[str, object]:
    match given:
        case str(words) | {"type": "text", "text": str(words)}:
            return {"type": "text", "text": words}
        case {"type": "image", "image": {"url": {"uri": str(uri)}}} | {"image": {"uri": str(uri)}}:
            return {"type": "image_url", "image_url": {"url": uri}}
        case {"type": "image", "image": {"data": str(data)}}:
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    raise BadRequest("content must be texts and images", param=where)


def _call(given: object, where: str) -> dict[str, object]:
    match given:
        case {"call_id": str(id_), "tool_name": str(name), **rest}:
            arguments = rest.get("arguments_json") or rest.get("arguments") or {}
            said = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            return {"id": id_, "type": "function", "function": {"name": name, "arguments": said}}
    raise BadRequest("a call must have call_id and tool_name", param=f"{where}.tool_calls")


def _tools(given: object) -> list[dict[str, object]]:
    if given is not None and not isinstance(given, list):
        raise BadRequest("`tools` must be a list", param="tools")
    said: list[dict[str, object]] = []
    for at, tool in enumerate(given or []):
        match tool:
            case {"tool_name": str(name), **rest}:
                parameters = _object(rest.get("parameters"), f"tools[{at}].parameters")
                function = {"name": name, "parameters": _schema(parameters)}
                if isinstance(words := rest.get("description"), str):
                    function["description"] = words
                said.append({"type": "function", "function": function})
            case _:
                raise BadRequest("a tool must have a tool_name", param=f"tools[{at}]")
    return said


def _schema(parameters: Mapping[str, object]) -> dict[str, object]:
    properties: dict[str, object] = {}
    needed: list[str] = []
    for name, given in parameters.items():
        one = given if isinstance(given, dict) else {}
        kind = one.get("param_type")
        found: dict[str, object] = {}
        if isinstance(kind, str):
            found["type"] = _TYPES.get(kind, kind)
        if isinstance(words := one.get("description"), str):
            found["description"] = words
        properties[name] = found
        if one.get("required") is not False:
            needed.append(name)
    return {"type": "object", "properties": properties, "required": needed}


def _tool_choice(given: Mapping[str, object]) -> dict[str, object]:
    chosen = given.get("tool_choice") or _object(given.get("tool_config"), "tool_config").get(
        "tool_choice"
    )
    if chosen is None:
        return {}
    if not isinstance(chosen, str):
        raise BadRequest("`tool_choice` must be a text", param="tool_choice")
    if chosen in _CHOICES:
        return {"tool_choice": chosen}
    return {"tool_choice": {"type": "function", "function": {"name": chosen}}}


def _object(given: object, param: str) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise BadRequest(f"`{param}` must be an object", param=param)
    return given or {}


class PublishedEncoder(TextEncoder):
    """Encoder of an answer as a `completion_message`, or as events of one."""

    def __init__(self, *, streams: bool, plain: bool, max_event_bytes: int) -> None:
        """`plain` makes each piece of text a bare string, as at the first of the two paths."""
        super().__init__(Kind.CHAT, streams=streams, max_event_bytes=max_event_bytes)
        self._plain = plain
        self._texts: list[str] = []
        self._calls: dict[int, list[CallPart]] = {}
        self._reason: Reason = "stop"
        self._usage: Usage | None = None

    def opening(self) -> bytes:
        """Return the event with which the model begins."""
        return _event("start", self._text(""))

    def answer(self, heard: Sequence[Heard]) -> object:
        """Return a whole answer."""
        self._take(heard)
        message = {
            "role": "assistant",
            "content": "".join(self._texts),
            "stop_reason": self._stop_reason,
            "tool_calls": self._told_calls(),
        }
        return {"completion_message": message, "logprobs": None, **self._metrics}

    def events(self, heard: Sequence[Heard]) -> bytes:
        """Return events for pieces of text; calls follow at the end, each whole."""
        self._take(heard)
        said = [
            _event("progress", self._text(e.text))
            for e in heard
            if isinstance(e, Delta) and e.choice == 0
        ]
        self._texts.clear()
        return b"".join(said)

    def closing(self) -> bytes:
        """Return the events for calls of tools, and for the end."""
        calls = [
            _event(
                "progress", {"type": "tool_call", "tool_call": call, "parse_status": "succeeded"}
            )
            for call in self._told_calls()
        ]
        end = _event("complete", self._text(""), stop_reason=self._stop_reason, **self._metrics)
        return b"".join((*calls, end))

    def failure(self, failure: TextFailure) -> bytes:
        """Return the event for an answer that broke off."""
        error = {"message": failure.message, "type": failure.type, "code": failure.code}
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"

    def _text(self, words: str) -> object:
        return words if self._plain else {"type": "text", "text": words}

    @property
    def _stop_reason(self) -> str:
        return "out_of_tokens" if self._reason == "length" else "end_of_turn"

    @property
    def _metrics(self) -> dict[str, object]:
        if self._usage is None:
            return {}
        read, written = self._usage.prompt, self._usage.completion
        told = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {"metrics": [{"metric": name, "value": count} for name, count in told.items()]}

    def _take(self, heard: Sequence[Heard]) -> None:
        for event in heard:
            match event:
                case Delta(words, 0):
                    self._texts.append(words)
                case CallPart(choice=0):
                    self._calls.setdefault(event.index, []).append(event)
                case End(reason, 0):
                    self._reason = reason
                case Usage():
                    self._usage = event

    def _told_calls(self) -> list[dict[str, object]]:
        told: list[dict[str, object]] = []
        for _, parts in sorted(self._calls.items()):
            written = "".join(part.arguments for part in parts)
            arguments = arguments_object(written) or {}
            id_ = next((part.id for part in parts if part.id), "")
            name = next((part.name for part in parts if part.name), "")
            told.append({
                "call_id": id_, "tool_name": name, "arguments": arguments, "arguments_json": written,
            })  # fmt: skip
        return told


def _event(kind: str, delta: object, **rest: object) -> bytes:
    metrics = {name: rest.pop(name) for name in ("metrics",) if name in rest}
    said = {"event": {"event_type": kind, "delta": delta, **rest}, **metrics}
    return b"data: " + orjson.dumps(said) + b"\n\n"
