"""Parser for request bodies, which can also replace the model's name with every other byte unchanged.

A body is untrusted until it is read: `read` checks its shape, and raises `BadRequest` for anything wrong.
"""

import json
import re
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from itertools import product

import orjson

from registry.values import value_class
from router.errors import BadRequest, TooManyParts, UnsupportedContentType
from router.openai import large_json, multipart
from router.openai.large_json import SMALL_BYTES, count_of
from router.openai.media_type import media_of
from router.openai.members import members, wanted
from router.openai.prefixes import CONVERSATION

MAX_MODEL_CHARACTERS = 513
"""`PROJECT/MODEL`, each at most 256 bytes."""

MAX_NAMES = 8
"""The most names that a body may list in `models`: each may cost `router.attempts` attempts."""

MAX_VALUES = 2_000_000
"""The most values in one JSON body: more would take hundreds of megabytes parsed. A million tokens of text have far fewer."""

MAX_DEPTH = large_json.MAX_DEPTH
"""The deepest nesting of arrays and objects; schemas of tools take a dozen levels. Parsers in C give up at 250 to 1,000."""

MAX_ESCAPED_BYTES = 256 * 1024
"""The longest body that may write ASCII letters as escapes, which no program does; each of its keys must be read."""

OURS = frozenset({"project", "models"})
"""Fields of a body that only nodes understand: some workers refuse unknown fields."""

MAX_WALKED = 200_000
"""The most quotes and brackets of a body that is edited member by member; a body with more is serialised anew."""

_FIELDS = ("model", "stream", "prompt_cache_key", "service_tier")
_NOT_PLAIN = ("models", "project")
ROUTED = wanted(_FIELDS, (), _NOT_PLAIN, (), None)
"""The fields that routing reads."""

WITH_CONVERSATION = wanted(_FIELDS, CONVERSATION, _NOT_PLAIN, (), None)
"""The same, and the conversation as JSON."""

_PARTS = (b"[", b"{", b",")
_MODEL = frozenset({"model"})
_KEY = b'"model"'
_OTHER_CASES = frozenset(map("".join, product(*zip("model", "MODEL", strict=True)))) - {"model"}
_OURS_OR_OTHER_CASES = OURS | _OTHER_CASES
_ESCAPE = b"\\u006"
# \u006d is an m: each letter of the key may be written so. A backslash that is escaped itself begins no escape.
_ESCAPED_LETTER = re.compile(rb"(?<!\\)(?:\\\\)*+\\u006")
_ANY_ESCAPED_LETTER = re.compile(rb"(?<!\\)(?:\\\\)*+\\u00[67]")
_SPACE = b" \t\r\n"
_PLAIN = re.compile(rb"[^,}\]\s]++")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOTABLE = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


@value_class
class ParsedBody:
    """The parts of a body that routing needs. `fields` are its top-level fields; of a form, the short text ones.

    `names` are the models to be tried in turn if the body lists several (`models`), or the one that it names in another field;
    `model` is then the first of them, see `with_one_model`. A `plain` body has no fields that only nodes understand.
    """

    model: str
    stream: bool
    fields: Mapping[str, object]
    names: tuple[str, ...] = ()
    plain: bool = False


def read(body: bytes, content_type: str, *, named_by: str = "", few: object = None) -> ParsedBody:
    """Read a JSON object or a multipart form; raise `BadRequest` for everything else.

    `named_by` is the field that names the model if `model` is missing. With `few`, fields may be only those.
    """
    kind = media_of(content_type).kind
    if kind != "application/json" and not kind.endswith("+json"):
        return _read_form(body, content_type, kind)
    found = None if few is None else _find_fields(body, few)
    if found is not None:
        name, streamed = found.get("model"), found.get("stream", False)
        if isinstance(name, str) and isinstance(streamed, bool):
            return ParsedBody(_model(name), streamed, found, (), plain=True)
    fields, twice = _object_of(body)
    plain = _OURS_OR_OTHER_CASES.isdisjoint(fields)
    # If the key occurs once, and no letter can be written as an escape, the body cannot name the model twice.
    doubtful = body.find(_KEY) != body.rfind(_KEY) or _may_escape_letters(body)
    if twice is not None or not plain or doubtful:
        _check_named_once(body, fields, twice=twice)
        plain = OURS.isdisjoint(fields)
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequest("`stream` must be true or false", param="stream")
    if not plain and fields.get("models") is not None:
        names = _names(fields)
        return ParsedBody(names[0], bool(stream), fields, names)
    if named_by and fields.get("model") is None:
        name = _model(fields.get(named_by), named_by)
        return ParsedBody(name, bool(stream), fields, (name,))
    return ParsedBody(_model(fields.get("model")), bool(stream), fields, (), plain)


def _read_form(body: bytes, content_type: str, kind: str) -> ParsedBody:
    if kind != multipart.CONTENT_TYPE:
        raise UnsupportedContentType(
            f"send application/json or {multipart.CONTENT_TYPE}, not {kind[:100]!r}"
        )
    parts = multipart.parts(body, content_type)
    form = multipart.fields(body, parts)
    stream = form.get("stream", "").lower() in ("true", "1")
    plain = OURS.isdisjoint([part.name.lower() for part in parts])
    return ParsedBody(_model(form.get("model")), stream, form, plain=plain)


def with_one_model(body: bytes, parsed: ParsedBody) -> bytes:
    """Return the body with the first of several names in `model`, the only field that workers know; other bytes stay."""
    if isinstance(parsed.fields.get("model"), str):
        return without_fields(body, {"models"})
    return with_field(without_fields(body, {"model", "models"}), "model", parsed.model)


def with_field(body: bytes, name: str, value: object) -> bytes:
    """Return a JSON object with a field that it lacks put before all others."""
    head, brace, rest = body.partition(b"{")
    comma = b"" if rest.lstrip(_SPACE).startswith(b"}") else b","
    return b"".join((head, brace, orjson.dumps(name), b":", orjson.dumps(value), comma, rest))


def without_node_fields(body: bytes, content_type: str) -> bytes:
    """Return a body that `read` has accepted without the fields that only nodes understand; all other bytes stay."""
    if media_of(content_type).kind != multipart.CONTENT_TYPE:
        return without_fields(body, OURS)
    return multipart.without(body, content_type, OURS)


def without_fields(body: bytes, names: Set[str]) -> bytes:
    """Return a JSON object without the top-level fields of these names, doubled ones too; all other bytes stay.

    `body` must be valid JSON, and the names ASCII letters.
    """
    if not _may_name(body, names):
        return body
    if len(body) > SMALL_BYTES and large_json.is_large(body):
        spans = large_json.parse(body, frozenset(names)).spans
        return _cut_out(body, [(span.start, span.end) for span in spans])
    fields = orjson.loads(body)
    if names.isdisjoint(fields):
        return body
    if sum(map(body.count, (b'"', b"{", b"["))) > MAX_WALKED:
        return orjson.dumps({name: value for name, value in fields.items() if name not in names})
    fields_at = ((at, value) for at, value, key in _top_level(body) if orjson.loads(key) in names)
    return _cut_out(body, [(at, _end_of(body, value)) for at, value in fields_at])


def _cut_out(body: bytes, members: list[tuple[int, int]]) -> bytes:
    for start, end in reversed(members):
        before, after = body[:start], body[end:].lstrip(_SPACE)
        if after.startswith(b","):
            after = after[1:].lstrip(_SPACE)
        else:
            before = before.rstrip(_SPACE).removesuffix(b",")
        body = before + after
    return body


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    """Return a body that `read` has accepted with its model named `model`, all other bytes unchanged."""
    if media_of(content_type).kind == multipart.CONTENT_TYPE:
        return multipart.with_model(body, content_type, model)
    return splice_model(body, model)


def splice_model(body: bytes, model: str) -> bytes:
    """Return a JSON object with the string of every top-level `model` replaced; a `model` that is no string stays.

    `body` must be valid JSON. Every one of doubled keys is replaced: parsers disagree on which of them counts.
    """
    only = _model_span(body)
    spans = _values(body) if only is None else [only]
    if not spans:
        return body
    name = orjson.dumps(model)
    pieces: list[bytes] = []
    index = 0
    for start, end in spans:
        pieces += (body[index:start], name)
        index = end
    return b"".join((*pieces, body[index:]))


def parse_json_object(body: bytes) -> Mapping[str, object]:
    """Return a body as a JSON object; raise `BadRequest` if it is none, or has too many values or levels."""
    return _object_of(body)[0]


_Object = tuple[Mapping[str, object], bool | None]
"""A JSON object; for a large one also whether the parser saw `model` twice."""


def _find_fields(body: bytes, few: object) -> dict[str, object] | None:
    """Return these fields of a body; `None` if it has to be parsed."""
    parts = sum(count_of(mark, body) for mark in _PARTS) if len(body) > SMALL_BYTES else 0
    is_long = parts > MAX_VALUES or len(body) > large_json.LONG_BYTES
    return None if is_long else members(body, few)


def _object_of(body: bytes) -> _Object:
    # A level takes at least two bytes.
    brackets = 0
    if len(body) > 2 * MAX_DEPTH:
        brackets = count_of(b"[", body) + count_of(b"{", body)
    if len(body) > SMALL_BYTES:
        # The commas are counted once, since that scans the whole body.
        commas = count_of(b",", body)
        if commas + brackets > MAX_VALUES:
            raise TooManyParts(f"the body has more than {MAX_VALUES:,} values")
        if large_json.is_large(body, commas):
            return _parse_large(body)
    parsed = _parsed(body)
    if brackets > MAX_DEPTH:
        encode_json(parsed)
    return parsed, None


def _parsed(body: bytes) -> Mapping[str, object]:
    if not body:
        raise BadRequest("the request has no body; send a JSON object")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg}") from error
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object")
    return parsed


def _parse_large(body: bytes) -> _Object:
    """Parse a large body, and find out whether it names `model` twice; raise `BadRequest`."""
    try:
        parsed = large_json.parse(body, _MODEL)
    except large_json.NotJson as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(parsed.value, dict):
        raise BadRequest("the body must be a JSON object")
    return parsed.value, len(parsed.spans) > 1


def _may_name(body: bytes, names: Set[str]) -> bool:
    """Return whether a body may have one of these fields; most bodies do not, and are not searched any further."""
    if _name_pattern(frozenset(names)).search(body):
        return True
    escaped = body.rfind(b"\\u006") >= 0 or body.rfind(b"\\u007") >= 0
    return escaped and len(body) <= MAX_ESCAPED_BYTES and bool(_ANY_ESCAPED_LETTER.search(body))


@lru_cache(maxsize=64)
def _name_pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    # One pass for all names: a body with an image is long.
    return re.compile(b'"(?:%b)"' % b"|".join(re.escape(name.encode()) for name in names))


def encode_json(parsed: object) -> bytes:
    """Return JSON without doubled keys or needless escapes; raise `BadRequest` if it is nested too deeply."""
    try:
        return orjson.dumps(parsed)
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"the body is nested too deeply; at most {MAX_DEPTH} levels") from error


def _check_named_once(body: bytes, fields: Mapping[str, object], *, twice: bool | None) -> None:
    """Refuse a body in which a worker could find another model than the node: parsers disagree on which of two keys counts.

    Some parsers, Go's among them, take `Model` for `model`.
    """
    escaped = _has_escaped_letters(body)
    if escaped and len(body) > MAX_ESCAPED_BYTES:
        raise BadRequest("a long body contains escaped ASCII letters; send them unescaped")
    if twice is None and escaped:
        twice = sum(1 for _ in _keys(body)) > 1
    # Finding the same key from both ends is faster than searching all of the body for another.
    elif twice is None and body.find(_KEY) != body.rfind(_KEY):
        # Serialised anew, an object has each key once. Quotes inside strings are escaped, so they are counted in neither.
        twice = body.count(_KEY) > encode_json(fields).count(_KEY)
    if twice or not _OTHER_CASES.isdisjoint(fields):
        raise BadRequest("the body names `model` twice", param="model")


def _has_escaped_letters(body: bytes) -> bool:
    return _may_escape_letters(body) and _ESCAPED_LETTER.search(body) is not None


def _may_escape_letters(body: bytes) -> bool:
    # In chats `rfind` takes a third of the time of `in`; an image has no backslash at all.
    return body.find(b"\\") >= 0 and body.rfind(_ESCAPE) >= 0


def _names(fields: Mapping[str, object]) -> tuple[str, ...]:
    listed, first = fields["models"], fields.get("model")
    if not isinstance(listed, list) or not listed or len(listed) > MAX_NAMES:
        raise BadRequest(f"`models` must list 1 to {MAX_NAMES} names", param="models")
    names = listed if first is None else [first, *listed]
    return tuple(dict.fromkeys(map(_model, names)))


def _model(model: object, also: str = "") -> str:
    if not isinstance(model, str) or not model:
        where = f"`model` or `{also}`" if also else "`model`"
        raise BadRequest(f"{where} must name a model", param="model")
    if len(model) > MAX_MODEL_CHARACTERS:
        raise BadRequest(f"`model` has at most {MAX_MODEL_CHARACTERS} characters", param="model")
    return model


def _model_span(body: bytes) -> tuple[int, int] | None:
    """Return the span of `model`'s value in the common case, at the speed of `bytes.find`; `None` if that does not settle it.

    In that case the key occurs once and is written without escapes, and either nothing except the object itself is opened
    before it, or nothing except the object is closed after its value: so it is at the top level.
    """
    key = body.find(_KEY)
    if key < 1 or body[key - 1] not in b"{," + _SPACE or body.rfind(_KEY) != key:
        return None
    colon = _COLON.match(body, key + len(_KEY))
    value = _STRING.match(body, colon.end()) if colon else None
    if value is None or _has_escaped_letters(body):
        return None
    if body.count(b"{", 0, key) == 1 and body.find(b"[", 0, key) < 0:
        return value.span()
    if body.count(b"}", value.end()) == 1 and body.find(b"]", value.end()) < 0:
        return value.span()
    return None


def _values(body: bytes) -> list[tuple[int, int]]:
    if len(body) > SMALL_BYTES and large_json.is_large(body):
        large = large_json.parse(body, _MODEL).spans
        return [(span.value, span.end) for span in large if body.startswith(b'"', span.value)]
    matches = (_STRING.match(body, at) for at in _keys(body))
    return [value.span() for value in matches if value is not None]


def _keys(body: bytes) -> Iterator[int]:
    """Yield where the value of each top-level `model` begins."""
    return (value for _, value, key in _top_level(body) if _is_key(key))


def _top_level(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield for each top-level field where it begins, where its value begins, and its name as written."""
    depth = index = 0
    while (notable := _NOTABLE.search(body, index)) is not None:
        index = notable.end()
        match notable[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case _:
                text = _STRING.match(body, notable.start())
                if text is None:
                    break
                index = text.end()
                colon = _COLON.match(body, index) if depth == 1 else None
                if colon is not None:
                    index = colon.end()
                    yield text.start(), index, text[0]


def _end_of(body: bytes, at: int) -> int:
    """Return where the value that begins at `at` ends."""
    if (plain := _STRING.match(body, at) or _PLAIN.match(body, at)) and body[at] not in b"{[":
        return plain.end()
    depth = 0
    while (notable := _NOTABLE.search(body, at)) is not None:
        at = notable.end()
        match notable[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case _:
                text = _STRING.match(body, notable.start())
                at = text.end() if text else at
        if not depth:
            break
    return at


def _is_key(text: bytes) -> bool:
    return text == _KEY or (b"\\" in text and json.loads(text) == "model")
