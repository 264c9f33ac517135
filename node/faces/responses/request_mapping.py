"""Mapping of Responses requests to OpenAI's chats: every field is checked, and an error names the field.

Fields without effect are named, never silently dropped. An unsupported field that would change the answer is refused.

It also maps the tools of a request. Tools that a server runs are refused, since none runs here, except web search, which the
model can do without: Codex offers it with each request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from node.faces.responses import items
from node.faces.responses.items import MAX_ITEM_ID_CHARACTERS, MAX_TEXT_CHARACTERS, in_chat
from router.canonical import values
from router.canonical.text import MAX_TOOLS
from router.canonical.values import read_flag, read_required_text, read_text
from router.errors import BadRequest, WorkerUnable
from router.openai.body import encode_json

_PARTS = ("name", "description", "parameters", "strict")
_SPACE = {"type", "name", "tools"}
_SEARCH = "web_search"
"""Prefix of the types of web search tools. An answer without a search is still an answer: the offer has no effect."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is offered: its name, its namespace or `""`, its form in a chat (`said`), and parts without effect."""

    name: str
    namespace: str
    said: Mapping[str, object]
    unheard: Mapping[str, object]

    @property
    def called(self) -> Mapping[str, str]:
        """The names that identify the function in a call of it."""
        space = {"namespace": self.namespace} if self.namespace else {}
        return {"name": self.name, **space}


def functions_of(fields: Mapping[str, object]) -> Mapping[str, Function]:
    """Return the offered functions by their names in a chat; raise `BadRequest` or `WorkerUnable`."""
    functions: dict[str, Function] = {}
    for function, path in _functions(fields.get("tools"), "tools", ""):
        name = in_chat(function.name, function.namespace)
        if name in functions:
            raise BadRequest("two tools have this name", param=f"{path}.name")
        if len(functions) >= MAX_TOOLS:
            raise BadRequest(f"at most {MAX_TOOLS} functions", param="tools")
        functions[name] = function
    return functions


def offered(
    fields: Mapping[str, object], functions: Mapping[str, Function]
) -> Mapping[str, object]:
    """Return the fields of a chat that offer the functions, following `tool_choice`; raise `BadRequest` or `WorkerUnable`."""
    match fields.get("tool_choice"):
        case {"type": "allowed_tools", "mode": "auto" | "required" as choice, "tools": [*some]}:
            names = [
                _name(o, f"tool_choice.tools[{index}]", functions) for index, o in enumerate(some)
            ]
            functions = {name: functions[name] for name in names}
        case {"type": "function"} as function:
            name = _name(function, "tool_choice", functions)
            choice = {"type": "function", "function": {"name": name}}
        case {"type": str(kind)} if kind != "allowed_tools":
            raise WorkerUnable(f"{kind[:64]!r} cannot be chosen", param="tool_choice.type")
        case None | "auto" | "none" | "required" as choice:
            if choice == "required" and not functions:
                raise BadRequest("there are no tools to call", param="tool_choice")
        case _:
            message = "auto, none, required, or an object with a type"
            raise BadRequest(f"`tool_choice` must be {message}", param="tool_choice")
    parallel = read_flag(fields, "parallel_tool_calls")
    if not functions:
        return {}
    tools = [{"type": "function", "function": function.said} for function in functions.values()]
    chosen = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    return {name: value for name, value in chosen.items() if value is not None}


def _functions(value: object, path: str, namespace: str) -> Iterator[tuple[Function, str]]:
    """Yield the functions of a list of tools, each with its place; namespaces do not nest."""
    if value is None:
        return
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise BadRequest(f"this must be a list of at most {MAX_TOOLS} tools", param=path)
    for number, tool in enumerate(value):
        item_path = f"{path}[{number}]"
        if not isinstance(tool, dict) or not isinstance(kind := tool.get("type"), str):
            raise BadRequest("a tool must be an object with a type", param=item_path)
        if kind == "namespace" and not namespace:
            name, inside = _checked(tool, item_path), f"{item_path}.tools"
            unheard = {f"tools.{part}": tool[part] for part in tool.keys() - _SPACE}
            for function, inner_path in _functions(tool.get("tools"), inside, name):
                yield replace(function, unheard={**function.unheard, **unheard}), inner_path
        elif kind == "function":
            yield _function(tool, item_path, namespace), item_path
        elif namespace or not kind.startswith(_SEARCH):
            runs = f"tools of type {kind[:64]!r} do not run here; define functions"
            raise WorkerUnable(runs, param=f"{item_path}.type")


def _function(tool: Mapping[str, object], path: str, namespace: str) -> Function:
    name = _checked(tool, path)
    if not isinstance(tool.get("parameters"), dict | None):
        raise BadRequest("`parameters` must be a JSON schema", param=f"{path}.parameters")
    function_fields = {part: tool[part] for part in _PARTS if tool.get(part) is not None}
    unheard = {f"tools.{part}": tool[part] for part in tool.keys() - {*_PARTS, "type"}}
    return Function(name, namespace, {**function_fields, "name": in_chat(name, namespace)}, unheard)


def _checked(tool: Mapping[str, object], path: str) -> str:
    """Return the name of a tool, after checking it, `description` and `strict`; raise `BadRequest`."""
    try:
        read_text(tool, "description", MAX_TEXT_CHARACTERS)
        read_flag(tool, "strict")
        return read_required_text(tool, "name", MAX_ITEM_ID_CHARACTERS)
    except BadRequest as error:
        raise BadRequest(str(error), param=f"{path}.{error.param}") from error


def _searches(fields: Mapping[str, object]) -> Iterator[object]:
    """Yield the web search tools of a list of tools that was checked before."""
    tools = fields.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if tool["type"].startswith(_SEARCH):
            yield tool


def _name(value: object, path: str, functions: Mapping[str, object]) -> str:
    match value:
        case {"type": "function", "name": str(name)} if name in functions:
            return name
        case {"type": "function"}:
            raise BadRequest("no tool has this name", param=f"{path}.name")
        case {"type": str(kind)}:
            raise WorkerUnable(f"{kind[:64]!r} cannot be chosen", param=f"{path}.type")
    raise BadRequest("a tool must be an object with a type", param=path)


def repeated(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Return the fields about tools that a response repeats; they were checked before."""
    tools, parallel = fields.get("tools"), fields.get("parallel_tool_calls")
    listed: Sequence[object] = tools if isinstance(tools, list) else []
    return {
        "tools": listed,
        "tool_choice": fields.get("tool_choice") or "auto",
        "parallel_tool_calls": parallel is not False,
    }


MAX_ID_CHARACTERS = 1_024
"""The longest text by which a caller identifies itself or its cache."""

MAX_PAIRS = 16
"""The most pairs of `metadata`, with keys of 64 and values of 512 characters, as in OpenAI's API."""

MAX_REPEATED_BYTES = 256 * 1024
"""The most bytes of instructions, tools and format that an answer repeats, else it omits them. A stream has them three times."""

LIKELY = "message.output_text.logprobs"
"""Entry of `include` that requests the log probability of each token."""

MAX_INCLUDED = 64
MAX_TOP_LOGPROBS = 20

_MOST_TOKENS = 2**31 - 1
_MOST_CALLS = 2**31 - 1
_NOT_STORED = "this node stores nothing: send the earlier conversation as items of `input`"
_REFUSED: Mapping[str, str] = {
    "previous_response_id": _NOT_STORED,
    "conversation": _NOT_STORED,
    "background": "this node stores nothing, so no response can be fetched later: omit `background`",
    "prompt": "this node stores no prompts: send `instructions` and `input`",
    "moderation": "this node does not moderate responses",
}
"""Unsupported fields that would change the answer, with the error message for each."""

SAME_FIELDS = frozenset({
    "frequency_penalty", "presence_penalty", "seed", "stop", "logit_bias", "top_k", "min_p", "typical_p", "repetition_penalty",
    "chat_template_kwargs", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar",
    "json_schema", "regex", "ebnf", "project",
})  # fmt: skip
"""Fields that the Responses API lacks, but workers or this node know: a chat has them under the same names."""

_READ = SAME_FIELDS | _REFUSED.keys() | {
    "model", "input", "instructions", "stream", "max_output_tokens", "temperature", "top_p", "text", "reasoning", "tools",
    "tool_choice", "parallel_tool_calls",
}  # fmt: skip
_USUAL: Mapping[str, object] = {"truncation": "disabled", "stream_options": {"include_obfuscation": False}}  # fmt: skip
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request as the fields of a chat, and the fields that its answer `repeats`. `others` are fields without effect.

    `called` maps names in the chat to the caller's names, for functions where these differ.
    """

    chat: Mapping[str, object]
    stream: bool
    repeats: Mapping[str, object]
    others: Mapping[str, object]
    called: Mapping[str, Mapping[str, str]]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The names of the fields that have no effect."""
        return tuple(values.dropped_names(self))


def read(fields: Mapping[str, object]) -> ResponsesRequest:
    """Return a request; raise `BadRequest` or `WorkerUnable`, which name the field. The model is checked with the chat."""
    for name, reason in _REFUSED.items():
        if fields.get(name):
            raise WorkerUnable(reason, param=name)
    _check(fields)
    stream = values.read_flag(fields, "stream") or False
    text, reasoning = _object(fields, "text"), _object(fields, "reasoning")
    functions = functions_of(fields)
    body = {
        **{name: fields.get(name) for name in SAME_FIELDS},
        "messages": items.messages(fields),
        **offered(fields, functions),
        # Of its two names in a chat, this is the one that every worker knows.
        "max_tokens": values.read_integer(fields, "max_output_tokens", 1, _MOST_TOKENS),
        "temperature": values.read_number(fields, "temperature", 0, 2),
        "top_p": values.read_number(fields, "top_p", 0, 1),
        "response_format": _form(text.get("format")),
        "verbosity": _inner("text", text, "verbosity", "low", "medium", "high"),
        "reasoning_effort": _inner("reasoning", reasoning, "effort", *_EFFORTS),
        **{name: _id(fields, name) for name in ("user", "safety_identifier", "prompt_cache_key")},
        "service_tier": _id(fields, "service_tier"),
    }
    chat = {name: value for name, value in body.items() if value is not None}
    if LIKELY in _included(fields):
        chat |= {"logprobs": True, "top_logprobs": _likeliest(fields)}
    if stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    unheard = (
        *values.unread_fields(_without_likely(fields), _READ, _USUAL).items(),
        *(part for function in functions.values() for part in function.unheard.items()),
        *((f"tools.{_SEARCH}", offer) for offer in _searches(fields)),
        *((f"text.{name}", text[name]) for name in text.keys() - {"format", "verbosity"}),
        *((f"reasoning.{name}", reasoning[name]) for name in reasoning.keys() - {"effort"}),
    )
    return ResponsesRequest(
        chat={"model": fields.get("model"), **chat},
        stream=stream,
        repeats=_repeated(fields),
        others={name: value for name, value in unheard if value},
        called={name: one.called for name, one in functions.items() if one.namespace},
    )


def _check(fields: Mapping[str, object]) -> None:
    """Check the fields that are only repeated or dropped."""
    for name in ("background", "store"):
        values.read_flag(fields, name)
    values.read_integer(fields, "max_tool_calls", 0, _MOST_CALLS)
    values.read_integer(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    values.read_choice(fields, "truncation", "disabled", "auto")
    _object(fields, "stream_options")
    _included(fields)
    metadata = _object(fields, "metadata")
    if len(metadata) > MAX_PAIRS or not all(
        len(name) <= 64 and isinstance(value, str) and len(value) <= 512
        for name, value in metadata.items()
    ):
        message = f"`metadata` must have at most {MAX_PAIRS} keys of 64 and texts of 512 characters"
        raise BadRequest(message, param="metadata")


def _included(fields: Mapping[str, object]) -> list[object]:
    included = [] if fields.get("include") is None else fields["include"]
    if not isinstance(included, list) or len(included) > MAX_INCLUDED:
        raise BadRequest(f"`include` must be a list of at most {MAX_INCLUDED}", param="include")
    return included


def _likeliest(fields: Mapping[str, object]) -> int:
    # Some servers take 0 alternatives as no log probabilities at all.
    return values.read_integer(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS) or 1


def _without_likely(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Remove the request for log probabilities; if there is none, `top_logprobs` stays, as a field without effect."""
    included = _included(fields)
    if LIKELY not in included:
        return fields
    rest = [name for name in included if name != LIKELY]
    return {**fields, "include": rest, "top_logprobs": None}


def _repeated(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Return the settings that the answer repeats."""
    repeats = {name: fields.get(name) for name in ("instructions", "tools", "tool_choice", "text")}
    # Nested as deeply as in an event.
    if len(encode_json({"response": repeats})) > MAX_REPEATED_BYTES:
        fields = {name: value for name, value in fields.items() if name not in repeats}
    alike = ("instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "user")
    names = ("safety_identifier", "prompt_cache_key")
    reasoning = _object(fields, "reasoning")
    return {
        **{name: fields.get(name) for name in (*alike, *names)},
        **repeated(fields),
        "text": {"format": {"type": "text"}, **_given(_object(fields, "text"))},
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "metadata": _object(fields, "metadata"),
        "background": False,
        "store": False,
        "previous_response_id": None,
        "top_logprobs": _likeliest(fields) if LIKELY in _included(fields) else 0,
        "truncation": "disabled",
    }


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _object(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"`{name}` must be an object", param=name)
    return value or {}


def _id(fields: Mapping[str, object], name: str) -> str | None:
    return values.read_text(fields, name, MAX_ID_CHARACTERS) or None


def _inner(of: str, fields: Mapping[str, object], name: str, *choices: str) -> str | None:
    value = fields.get(name)
    if value is not None and value not in choices:
        raise BadRequest(f"`{name}` must be one of: {', '.join(choices)}", param=f"{of}.{name}")
    return str(value) if value else None


def _form(value: object) -> dict[str, object] | None:
    """Return the required form of the text as a chat's `response_format`, `None` for plain text; raise `BadRequest`."""
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "name": str(name), "schema": dict(schema), **rest}:
            strict, described = rest.get("strict"), rest.get("description")
            if isinstance(strict, bool | None) and isinstance(described, str | None):
                more = _given({"strict": strict, "description": described})
                return {
                    "type": "json_schema",
                    "json_schema": {"name": name, "schema": schema, **more},
                }
    message = "text, json_object, or json_schema with its name and schema"
    raise BadRequest(f"`text.format` must be {message}", param="text.format")
