"""Request for text.

Fields that are not read here are in `others`: a dialect maps one, drops it and names it, or refuses it if the answer would be of
another kind without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from router.canonical.values import read_flag, read_integer, read_number, unread_fields
from router.errors import BadRequest
from router.openai.body import parse_json_object
from router.openai.logprobs import MAX_LIKELIEST
from router.requests import Kind, Request

MAX_CHOICES = 128
"""The most texts that one request may ask for: `n` for each of its prompts."""

MAX_STOPS = 64
"""The most stop strings of one request."""

MAX_STOP_CHARACTERS = 1_024
"""The longest stop string: that much of a stream may be held back."""

MAX_MESSAGES = 10_000
"""The most messages of one chat."""

MAX_TOOLS = 512
"""The most tools that one chat may offer."""

READ = frozenset({
    "model", "models", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
    "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed", "stop", "n",
    "echo", "response_format", "tools", "tool_choice",
})  # fmt: skip
"""Fields that are read here."""

SHAPING = frozenset({
    "suffix", "functions", "function_call", "audio", "modalities", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "grammar", "json_schema", "regex", "ebnf", "web_search_options",
})  # fmt: skip
"""Other fields without which the answer would be of another kind: they must not be dropped."""

_USUAL: Mapping[str, object] = {"modalities": ["text"], "best_of": 1}
_MOST_TOKENS = 2**31 - 1
_ROLES = 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters for sampling; `None` if the caller leaves one to the worker, or gives a value that changes nothing."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A chat or a completion. `schema` is the JSON schema that the text must match, `{}` for any object.

    `logprobs` requests the log probability of each token, and is the number of alternatives at its position. Its fields are also
    in `others`, for the dialects that cannot request it.

    `tool_choice` is `auto`, `none`, `required`, or `named`: then `tool_name` is the one tool that must be called.
    """

    kind: Kind
    prompts: tuple[str, ...]
    messages: tuple[Mapping[str, object], ...]
    sampling: Sampling
    stop: tuple[str, ...]
    n: int
    stream: bool
    include_usage: bool
    echo: bool
    logprobs: int | None
    schema: Mapping[str, object] | None
    tools: tuple[Mapping[str, object], ...]
    tool_choice: str
    tool_name: str
    others: Mapping[str, object]

    @property
    def choices(self) -> int:
        """The number of texts that are requested."""
        return self.n * max(1, len(self.prompts))


def read(request: Request) -> TextRequest:
    """Read a request for text; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    chat = request.kind is Kind.CHAT
    tools = _tools(fields) if chat else ()
    choice, name = _tool_choice(fields, tools)
    text_request = TextRequest(
        kind=request.kind,
        prompts=() if chat else _prompts(fields),
        messages=_messages(fields) if chat else (),
        sampling=_sampling(fields),
        stop=_stop(fields),
        n=read_integer(fields, "n", 1, MAX_CHOICES) or 1,
        stream=request.stream,
        include_usage=_include_usage(fields),
        echo=not chat and fields.get("echo") is True,
        logprobs=_logprobs(fields, chat=chat),
        schema=_schema(fields),
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        others=unread_fields(fields, READ, _USUAL),
    )
    if text_request.choices > MAX_CHOICES:
        raise BadRequest(f"at most {MAX_CHOICES} texts for one request", param="n")
    return text_request


def _sampling(fields: Mapping[str, object]) -> Sampling:
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") else "max_tokens"
    top_k = read_integer(fields, "top_k", -1, _MOST_TOKENS)
    return Sampling(
        max_tokens=read_integer(fields, limit, 1, _MOST_TOKENS),
        temperature=read_number(fields, "temperature", 0, 2),
        top_p=read_number(fields, "top_p", 0, 1, usual=1),
        top_k=top_k if top_k and top_k > 0 else None,
        min_p=read_number(fields, "min_p", 0, 1, usual=0),
        typical_p=read_number(fields, "typical_p", 0, 1, usual=1),
        repetition_penalty=read_number(fields, "repetition_penalty", 0.01, 100, usual=1),
        frequency_penalty=read_number(fields, "frequency_penalty", -2, 2, usual=0),
        presence_penalty=read_number(fields, "presence_penalty", -2, 2, usual=0),
        seed=read_integer(fields, "seed", -(2**63), 2**63 - 1),
    )


def _prompts(fields: Mapping[str, object]) -> tuple[str, ...]:
    match fields.get("prompt"):
        case str(text):
            return (text,)
        case [*texts] if texts and all(isinstance(text, str) for text in texts):
            return tuple(map(str, texts))
    raise BadRequest("`prompt` must be a text or a list of texts", param="prompt")


def _messages(fields: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a list of messages", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"at most {MAX_MESSAGES:,} messages", param="messages")
    for index, message in enumerate(messages):
        match message:
            case {"role": str(role), **rest} if 0 < len(role) <= _ROLES:
                _check_content(rest.get("content"), f"messages[{index}].content")
            case _:
                raise BadRequest("a message must have a role", param=f"messages[{index}].role")
    return tuple(messages)


def _check_content(content: object, param: str) -> None:
    match content:
        case None | str():
            return
        case [*parts] if all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in parts):
            return
    raise BadRequest("the content of a message must be a text or a list of parts", param=param)


def _stop(fields: Mapping[str, object]) -> tuple[str, ...]:
    value = fields.get("stop")
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise BadRequest("`stop` must be a text or a list of texts", param="stop")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        many = f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS:,} characters each"
        raise BadRequest(many, param="stop")
    return tuple(stop for stop in stops if stop)


def _include_usage(fields: Mapping[str, object]) -> bool:
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("`stream_options` must be an object", param="stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _logprobs(fields: Mapping[str, object], *, chat: bool) -> int | None:
    if not chat:
        return read_integer(fields, "logprobs", 0, MAX_LIKELIEST)
    likeliest = read_integer(fields, "top_logprobs", 0, MAX_LIKELIEST)
    return likeliest or 0 if read_flag(fields, "logprobs") else None


def _schema(fields: Mapping[str, object]) -> Mapping[str, object] | None:
    match fields.get("response_format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise BadRequest(
        "`response_format` must be text, json_object, or json_schema with its schema",
        param="response_format",
    )


def _tools(fields: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise BadRequest(f"`tools` must be a list of at most {MAX_TOOLS} tools", param="tools")
    functions: list[Mapping[str, object]] = []
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(), **_rest}}:
                functions.append(tool["function"])
            case _:
                raise BadRequest("a tool must be a function with a name", param=f"tools[{index}]")
    return tuple(functions)


def _tool_choice(
    fields: Mapping[str, object], tools: tuple[Mapping[str, object], ...]
) -> tuple[str, str]:
    if not tools:
        return "none", ""
    match fields.get("tool_choice"):
        case None:
            return "auto", ""
        case "auto" | "none" | "required" as choice:
            return str(choice), ""
        case {"type": "function", "function": {"name": str(name)}} if any(
            tool["name"] == name for tool in tools
        ):
            return "named", name
    raise BadRequest(
        "`tool_choice` must be auto, none, required, or name one of the tools", param="tool_choice"
    )
