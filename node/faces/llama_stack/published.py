"""Chats of later versions of Llama Stack: `/inference/chat_completion`, then `/v1/inference/chat-completion`.

It maps their requests to the bodies of OpenAI's, and encodes their answers: a `completion_message`, or events.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from node.faces.encoder import TextEncoder
from router.canonical.values import read_flag, read_integer, read_list, read_number, read_text
from router.errors import BadRequest
from router.openai.text_parser import CallPart, TextEvent, TextFailure, arguments_object
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


def body_of(fields: Mapping[str, object]) -> dict[str, object]:
    """Return a chat in OpenAI's form; raise `BadRequest`, which names the field."""
    name = fields.get("model_id") or fields.get("model")
    messages = read_list(fields, "messages", MAX_MESSAGES)
    written = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    body: dict[str, object] = {"model": name, "messages": written, **_sampling(fields)}
    if tools := _tools(fields.get("tools")):
        body |= {"tools": tools, **_tool_choice(fields)}
    match fields.get("response_format"):
        case None:
            pass
        case {"type": "json_schema", "json_schema": dict(schema)}:
            named_schema = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named_schema}
        case _:
            raise BadRequest("`response_format` must be a json_schema", param="response_format")
    if read_flag(fields, "stream"):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def dropped_of(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of fields without effect."""
    names = sorted(
        name for name, value in fields.items() if name not in _READ and value is not None
    )
    return tuple(
        n for n in names if len(n) <= 64 and n.isascii() and n.isprintable() and "," not in n
    )[:32]


def _sampling(fields: Mapping[str, object]) -> dict[str, object]:
    params = _object(fields.get("sampling_params"), "sampling_params")
    strategy = params.get("strategy")
    # At first `strategy` was a word with the numbers beside it, later an object that contains them.
    chosen = {**params, **strategy} if isinstance(strategy, dict) else params
    kind = strategy.get("type") if isinstance(strategy, dict) else strategy
    if kind not in (None, "greedy", "top_p", "top_k"):
        raise BadRequest(
            "`strategy` must be greedy, top_p or top_k", param="sampling_params.strategy"
        )
    sampling: dict[str, object] = {
        "max_tokens": read_integer(params, "max_tokens", 0, _MOST) or None,
        "repetition_penalty": read_number(params, "repetition_penalty", 0, _MOST, usual=1),
        "stop": _stop(params),
        "temperature": read_number(chosen, "temperature", 0, _MOST),
        "top_p": read_number(chosen, "top_p", 0, 1) if kind != "top_k" else None,
        "top_k": read_integer(chosen, "top_k", 0, _MOST) or None if kind == "top_k" else None,
    }
    if kind == "greedy":
        sampling |= {"temperature": 0, "top_p": None}
    return {name: value for name, value in sampling.items() if value is not None}


def _stop(params: Mapping[str, object]) -> object:
    stop = params.get("stop") or None
    if stop is None or (isinstance(stop, list) and all(isinstance(text, str) for text in stop)):
        return stop
    raise BadRequest("`stop` must be a list of texts", param="sampling_params.stop")


def _message(value: object, path: str) -> dict[str, object]:
    message = _object(value, path)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"the role must be one of: {', '.join(_ROLES)}", param=f"{path}.role")
    written: dict[str, object] = {"role": _ROLES[role], "content": _content(message, path)}
    if _ROLES[role] == "tool":
        written["tool_call_id"] = read_text(message, "call_id", 256)
    calls = message.get("tool_calls") or []
    if role == "assistant" and isinstance(calls, list) and calls:
        written |= {
            "content": written["content"] or None,
            "tool_calls": [_call(c, path) for c in calls],
        }
    return written


def _content(message: Mapping[str, object], path: str) -> object:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return [_part(part, f"{path}.content") for part in parts]


def _part(value: object, path: str) -> dict[str, object]:
    match value:
        case str(text) | {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "image": {"url": {"uri": str(uri)}}} | {"image": {"uri": str(uri)}}:
            return {"type": "image_url", "image_url": {"url": uri}}
        case {"type": "image", "image": {"data": str(data)}}:
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    raise BadRequest("content must be texts and images", param=path)


def _call(value: object, path: str) -> dict[str, object]:
    match value:
        case {"call_id": str(id_), "tool_name": str(name), **rest}:
            arguments = rest.get("arguments_json") or rest.get("arguments") or {}
            arguments_text = (
                arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            )
            return {
                "id": id_,
                "type": "function",
                "function": {"name": name, "arguments": arguments_text},
            }
    raise BadRequest("a call must have call_id and tool_name", param=f"{path}.tool_calls")


def _tools(value: object) -> list[dict[str, object]]:
    if value is not None and not isinstance(value, list):
        raise BadRequest("`tools` must be a list", param="tools")
    tools: list[dict[str, object]] = []
    for index, tool in enumerate(value or []):
        match tool:
            case {"tool_name": str(name), **rest}:
                parameters = _object(rest.get("parameters"), f"tools[{index}].parameters")
                function = {"name": name, "parameters": _schema(parameters)}
                if isinstance(description := rest.get("description"), str):
                    function["description"] = description
                tools.append({"type": "function", "function": function})
            case _:
                raise BadRequest("a tool must have a tool_name", param=f"tools[{index}]")
    return tools


def _schema(parameters: Mapping[str, object]) -> dict[str, object]:
    properties: dict[str, object] = {}
    needed: list[str] = []
    for name, value in parameters.items():
        parameter = value if isinstance(value, dict) else {}
        kind = parameter.get("param_type")
        schema: dict[str, object] = {}
        if isinstance(kind, str):
            schema["type"] = _TYPES.get(kind, kind)
        if isinstance(description := parameter.get("description"), str):
            schema["description"] = description
        properties[name] = schema
        if parameter.get("required") is not False:
            needed.append(name)
    return {"type": "object", "properties": properties, "required": needed}


def _tool_choice(fields: Mapping[str, object]) -> dict[str, object]:
    chosen = fields.get("tool_choice") or _object(fields.get("tool_config"), "tool_config").get(
        "tool_choice"
    )
    if chosen is None:
        return {}
    if not isinstance(chosen, str):
        raise BadRequest("`tool_choice` must be a text", param="tool_choice")
    if chosen in _CHOICES:
        return {"tool_choice": chosen}
    return {"tool_choice": {"type": "function", "function": {"name": chosen}}}


def _object(value: object, param: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"`{param}` must be an object", param=param)
    return value or {}


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

    def answer(self, events: Sequence[TextEvent]) -> object:
        """Return a whole answer."""
        self._take(events)
        message = {
            "role": "assistant",
            "content": "".join(self._texts),
            "stop_reason": self._stop_reason,
            "tool_calls": self._told_calls(),
        }
        return {"completion_message": message, "logprobs": None, **self._metrics}

    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return events for pieces of text; calls follow at the end, each whole."""
        self._take(events)
        written = [
            _event("progress", self._text(e.text))
            for e in events
            if isinstance(e, Delta) and e.choice == 0
        ]
        self._texts.clear()
        return b"".join(written)

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

    def _text(self, text: str) -> object:
        return text if self._plain else {"type": "text", "text": text}

    @property
    def _stop_reason(self) -> str:
        return "out_of_tokens" if self._reason == "length" else "end_of_turn"

    @property
    def _metrics(self) -> dict[str, object]:
        if self._usage is None:
            return {}
        read, written = self._usage.prompt, self._usage.completion
        counts = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        return {"metrics": [{"metric": name, "value": count} for name, count in counts.items()]}

    def _take(self, events: Sequence[TextEvent]) -> None:
        for event in events:
            match event:
                case Delta(text, 0):
                    self._texts.append(text)
                case CallPart(choice=0):
                    self._calls.setdefault(event.index, []).append(event)
                case End(reason, 0):
                    self._reason = reason
                case Usage():
                    self._usage = event

    def _told_calls(self) -> list[dict[str, object]]:
        calls: list[dict[str, object]] = []
        for _, parts in sorted(self._calls.items()):
            written = "".join(part.arguments for part in parts)
            arguments = arguments_object(written) or {}
            id_ = next((part.id for part in parts if part.id), "")
            name = next((part.name for part in parts if part.name), "")
            calls.append({
                "call_id": id_, "tool_name": name, "arguments": arguments, "arguments_json": written,
            })  # fmt: skip
        return calls


def _event(kind: str, delta: object, **rest: object) -> bytes:
    metrics = {name: rest.pop(name) for name in ("metrics",) if name in rest}
    event = {"event": {"event_type": kind, "delta": delta, **rest}, **metrics}
    return b"data: " + orjson.dumps(event) + b"\n\n"
