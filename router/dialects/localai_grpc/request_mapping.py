"""Mapping of a request to the fields of LocalAI's `PredictOptions`.

A field that is not set is 0, which some backends take as a value and not as a default: so every field that shapes a text is
set.

Some parameters of llama.cpp's server exist in a backend too. None of them is OpenAI's; LocalAI's own clients use them.

A JSON schema becomes a grammar in GBNF, for the part of JSON Schema that a grammar can enforce. The rest is refused by name: a
text that only seems to match a schema is worse than none. Objects have all their properties, in the order of the schema, and
no others: such a text also matches a schema that requires less.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import orjson

from router.canonical import values
from router.canonical.text import Sampling, TextRequest
from router.canonical.values import read_flag, read_integer, read_number, read_text
from router.errors import BadRequest, WorkerUnable
from router.openai.text_writer import refused
from router.requests import Kind
from router.translate.request import MappedRequest, refuse_tool_calls
from router.translate.templates import rendered, text_of
from router.workers import Template, Worker

MAX_GRAMMAR = 256 * 1024
"""The most characters of a grammar."""

_MOST = 2**31 - 1

_READ: Mapping[str, tuple[str, Callable[[Mapping[str, object], str], object]]] = {
    "grammar": ("Grammar", lambda fields, name: read_text(fields, name, MAX_GRAMMAR)),
    "ignore_eos": ("IgnoreEOS", read_flag),
    "mirostat": ("Mirostat", lambda fields, name: read_integer(fields, name, 0, 2)),
    "mirostat_eta": ("MirostatETA", lambda fields, name: read_number(fields, name, 0, 1)),
    "mirostat_tau": ("MirostatTAU", lambda fields, name: read_number(fields, name, 0, 100)),
    "n_keep": ("NKeep", lambda fields, name: read_integer(fields, name, -1, _MOST)),
    "repeat_last_n": ("Repeat", lambda fields, name: read_integer(fields, name, -1, _MOST)),
}

LLAMA_CPP_NAMES = frozenset(_READ)
"""The fields of llama.cpp's server that are read here."""


def llama_cpp_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Translate llama.cpp's parameters to fields of `PredictOptions`; raise `WorkerRejected` for a wrong value."""
    try:
        return {
            field: read(fields, name) for name, (field, read) in _READ.items() if name in fields
        }
    except BadRequest as error:
        raise refused(str(error), error.param or "") from error


MAX_RULES = 500
"""The most rules of one grammar: each object, list and choice takes one."""

MAX_DEPTH = 32

_JSON = r"""
value ::= object | array | string | number | boolean | null
object ::= "{" ws ( string ws ":" ws value ( "," ws string ws ":" ws value )* )? "}" ws
array ::= "[" ws ( value ( "," ws value )* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" hex hex hex hex ) )* "\"" ws
hex ::= [0-9a-fA-F]
integer ::= "-"? ( "0" | [1-9] [0-9]* ) ws
number ::= "-"? ( "0" | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )? ws
boolean ::= ( "true" | "false" ) ws
null ::= "null" ws
ws ::= [ \t\n]?
"""
"""The rules of every grammar: JSON itself (RFC 8259), with little white space, since some models never stop writing it."""

_BASIC = {"string", "integer", "number", "boolean", "null"}
# Keywords that do not restrict a value.
_WORDS = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "strict"}


def grammar_of(schema: Mapping[str, object]) -> str:
    """Return a schema as a grammar, `{}` as any object; raise `WorkerUnable` for what a grammar cannot enforce."""
    if not schema:
        return f"root ::= object\n{_JSON}"
    rules = _Rules()
    root = rules.rule_for(schema, 0)
    return "\n".join((f"root ::= {root}", *rules.lines, _JSON))


class _Rules:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def rule_for(self, schema: object, depth: int) -> str:
        """Return the name of the rule for a schema."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            raise _cannot("a schema of this shape or depth")
        keywords = {name: value for name, value in schema.items() if name not in _WORDS}
        match keywords:
            case {"type": str(kind)} if kind in _BASIC and len(keywords) == 1:
                return kind
            case {"type": "array", **rest} if not set(rest) - {"items"}:
                return self._list(rest.get("items", True), depth)
            case {"type": "object", **rest}:
                return self._object(rest, depth)
        return self._rule(" | ".join(self._alternatives(keywords, depth)))

    def _alternatives(self, keywords: Mapping[str, object], depth: int) -> Iterator[str]:
        match keywords:
            case {"const": value, **rest} if not set(rest) - {"type"}:
                yield _literal(value)
            case {"enum": [_, *_] as values, **rest} if not set(rest) - {"type"}:
                yield from map(_literal, values)
            case {"anyOf": [_, *_] as some} if len(keywords) == 1:
                yield from (self.rule_for(schema, depth + 1) for schema in some)
            case {"type": [_, *_] as kinds, **rest}:
                yield from (self.rule_for({**rest, "type": kind}, depth + 1) for kind in kinds)
            case _:
                raise _cannot(", ".join(sorted(map(str, keywords))) or "nothing")

    def _list(self, items: object, depth: int) -> str:
        item = self.rule_for(items, depth + 1)
        return self._rule(f'"[" ws ( {item} ( "," ws {item} )* )? "]" ws')

    def _object(self, keywords: Mapping[str, object], depth: int) -> str:
        unknown = set(keywords) - {"properties", "required", "additionalProperties"}
        properties, required = keywords.get("properties", {}), keywords.get("required", [])
        if unknown or not isinstance(properties, Mapping) or not isinstance(required, list):
            raise _cannot(", ".join(sorted(map(str, unknown))) or "such an object")
        if keywords.get("additionalProperties") not in (None, False, True):
            raise _cannot("additionalProperties")
        if not all(name in properties for name in required):
            raise _cannot("a required property without a schema")
        if not properties and keywords.get("additionalProperties") is not False:
            return "object"
        pairs = [
            f'{_literal(name)} ":" ws {self.rule_for(schema, depth + 1)}'
            for name, schema in properties.items()
        ]
        return self._rule(f'"{{" ws {""" "," ws """.join(pairs)} "}}" ws')

    def _rule(self, body: str) -> str:
        if len(self.lines) >= MAX_RULES:
            raise _cannot(f"more than {MAX_RULES} parts")
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name} ::= {body}")
        return name


def _literal(value: object) -> str:
    try:
        text = orjson.dumps(value).decode()
    except TypeError as error:
        raise _cannot("such a value") from error
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" ws'


def _cannot(part: str) -> WorkerUnable:
    return WorkerUnable(
        f"LocalAI's grammars cannot enforce this schema: {part[:200]}", param="response_format"
    )


PREDICT, STREAM, STATUS = "Predict", "PredictStream", "Status"

COMPLETION_TOKENS = 16
"""Token limit of a completion without one, OpenAI's own default; a chat without one has the worker's own limit."""

MOST_SEED = 2**31 - 1
MAX_IMAGES = 64
MAX_BIASES = 1_024
"""The most tokens whose probability one request may change."""

# LocalAI's own defaults. A penalty of 1 changes nothing, and the last 64 tokens are those that count as repeated.
TOP_P, TOP_K, TEMPERATURE, REPEAT = 0.95, 40, 0.9, 64

_BASE64 = re.compile(r"[A-Za-z0-9+/=]+")
_VIDEO = re.compile(r"data:video/[a-z0-9.+-]{1,32};base64,([A-Za-z0-9+/=]+)")
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,([A-Za-z0-9+/=]+)")


def mapped(request: TextRequest, _: Worker) -> MappedRequest:
    """Translate a request to LocalAI; raise `WorkerUnable` if that would change the answer."""
    others = dict(request.others)
    shared: dict[str, object] = _sampling(request)
    if (bias := _bias(others.pop("logit_bias", None))) is not None:
        shared["LogitBias"] = bias
    shared |= llama_cpp_fields(others)
    others = {name: value for name, value in others.items() if name not in LLAMA_CPP_NAMES}
    if request.schema is not None:
        if "Grammar" in shared:
            raise WorkerUnable("use a schema or a grammar, not both", param="grammar")
        shared["Grammar"] = grammar_of(request.schema)
    bodies = _chats(request) if request.kind is Kind.CHAT else _completions(request)
    unheard: tuple[str, ...] = ("min_p",) if request.sampling.min_p is not None else ()
    # A greater seed is cut to 31 bits: it is the same each time, but not the caller's.
    unheard += ("seed",) if (request.sampling.seed or 0) > MOST_SEED else ()
    # A text that must be JSON is checked before it is passed on: backends without grammars ignore one silently.
    streamed = request.stream and request.schema is None
    return MappedRequest(
        STREAM if streamed else PREDICT,
        tuple(body | shared | _seeded(request, choice) for choice, body in enumerate(bodies)),
        (*unheard, *values.dropped_names(replace(request, others=others))),
        streamed,
    )


def uses_own_template(body: Mapping[str, object]) -> bool:
    """Return whether the worker is to render the chat by its own template."""
    return body.get("UseTokenizerTemplate") is True


def render_chat(
    request: TextRequest, body: Mapping[str, object], template: Template
) -> tuple[TextRequest, Mapping[str, object]]:
    """Return the request and the body of a chat rendered as one text, which stops where another message would begin."""
    chat = rendered(template, [_message(message) for message in request.messages])
    stops = (*request.stop, *chat.stops)
    rest = {k: v for k, v in body.items() if k not in ("UseTokenizerTemplate", "Messages")}
    return replace(request, stop=stops), {**rest, "Prompt": chat.prompt, "StopPrompts": list(stops)}


def _sampling(request: TextRequest) -> dict[str, object]:
    sampling: Sampling = request.sampling
    unlimited = 0 if request.kind is Kind.CHAT else COMPLETION_TOKENS
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    return {
        "Tokens": sampling.max_tokens or unlimited,
        "Temperature": 0.0 if greedy else _or(sampling.temperature, TEMPERATURE),
        "TopP": TOP_P if greedy else _or(sampling.top_p, TOP_P),
        "TopK": sampling.top_k or TOP_K,
        "TypicalP": sampling.typical_p or 1.0,
        "TailFreeSamplingZ": 1.0,
        "Penalty": _or(sampling.repetition_penalty, 1.0),
        "Repeat": REPEAT,
        "FrequencyPenalty": _or(sampling.frequency_penalty, 0.0),
        "PresencePenalty": _or(sampling.presence_penalty, 0.0),
        "StopPrompts": list(request.stop),
    }


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else value


def _seeded(request: TextRequest, choice: int) -> dict[str, object]:
    """Return the seed of one choice: with the same seed all would be the same text. Without one, each call draws its own."""
    seed = request.sampling.seed
    return {} if seed is None else {"Seed": (seed + choice) & MOST_SEED}


def _completions(request: TextRequest) -> list[dict[str, object]]:
    return [{"Prompt": request.prompts[choice // request.n]} for choice in range(request.choices)]


def _chats(request: TextRequest) -> list[dict[str, object]]:
    media: dict[str, object] = {}
    for kind, (name, read) in _FILES.items():
        files = [read(part) for message in request.messages for part in _parts(message, kind)]
        if len(files) > MAX_IMAGES:
            raise WorkerUnable(f"at most {MAX_IMAGES} files of a kind", param="messages")
        media |= {name: files} if files else {}
    messages = [_message(message) for message in request.messages]
    body = media | {"UseTokenizerTemplate": True, "Messages": messages}
    # The long parts are shared between the choices, of which there may be many.
    return [body] * request.choices


def _message(message: Mapping[str, object]) -> dict[str, object]:
    role = message.get("role")
    # Templates do not know `developer`, OpenAI's newer name for the system role.
    target_role = "system" if role == "developer" else role
    return {"role": target_role, "content": text_of(_texts_only(message))}


def _texts_only(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message without images, audio and videos, which have fields of their own."""
    refuse_tool_calls("LocalAI", message)
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part for part in content if part.get("type") not in _FILES]
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in texts):
        raise WorkerUnable("LocalAI supports only texts, images, audio and video", param="messages")
    return {**message, "content": texts}


def _parts(message: Mapping[str, object], kind: str) -> list[Mapping[str, object]]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [part for part in parts if part.get("type") == kind]


def _sound(part: Mapping[str, object]) -> str:
    match part:
        case {"input_audio": {"data": str(data)}} if _BASE64.fullmatch(data):
            return data
    raise WorkerUnable("a sound must have `data` in base64", param="messages")


def _film(part: Mapping[str, object]) -> str:
    match part:
        case {"video_url": {"url": str(url)}} if data_uri := _VIDEO.fullmatch(url):
            return data_uri[1]
    raise WorkerUnable("LocalAI accepts videos only as `data:` URLs in base64", param="messages")


def _image(part: Mapping[str, object]) -> str:
    match part:
        case {"image_url": {"url": str(url)}}:
            pass
        case _:
            raise WorkerUnable("an image must have a `url`", param="messages")
    data_uri = _IMAGE.fullmatch(url)
    if data_uri is None:
        # A URL is not fetched: that would let a stranger send requests from inside the network.
        raise WorkerUnable(
            "LocalAI accepts images only as `data:` URLs in base64", param="messages"
        )
    return data_uri[1]


_FILES: Mapping[str, tuple[str, Callable[[Mapping[str, object]], str]]] = {
    "image_url": ("Images", _image),
    "input_audio": ("Audios", _sound),
    "video_url": ("Videos", _film),
}
"""By type, the parts of messages that are files: their field in `PredictOptions`, and the function that reads them."""


def _bias(value: object) -> str | None:
    """Return `logit_bias` as JSON text, `None` if there is none."""
    if not value:
        return None
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise refused("`logit_bias` must be an object of numbers", "logit_bias")
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in value.values()):
        raise refused("`logit_bias` must be an object of numbers", "logit_bias")
    return orjson.dumps(value).decode()
