"""What does a request's body say, and how is one name in it replaced with every other byte left as it came?

A body is hostile until read: `read` answers for its shape, and turns whatever is wrong into `BadRequest`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from router import multipart
from router.errors import BadRequest

MAX_MODEL_CHARACTERS = 513
"""`PROJECT/MODEL`, each at most 256 bytes."""

MAX_VALUES = 2_000_000
"""Values in one JSON body: more would cost hundreds of megabytes once parsed. A million tokens of text have far fewer."""

_SMALL = 1024 * 1024
_KEY = b'"model"'
_SPACE = b" \t\r\n"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOTABLE = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body says that routing needs. `fields` are its other top-level fields; of a form, the short text ones."""

    model: str
    stream: bool
    fields: Mapping[str, object]


def read(body: bytes, content_type: str) -> Asked:
    """Read a JSON object or a multipart form; raise `BadRequest` for everything else."""
    kind = _kind(content_type)
    if kind == multipart.CONTENT_TYPE:
        form = multipart.fields(body, content_type)
        stream = form.get("stream", "").lower() in ("true", "1")
        return Asked(_model(form.get("model")), stream, form)
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadRequest(
            f"send application/json or {multipart.CONTENT_TYPE}, not {kind[:100]!r}", status=415
        )
    fields = _parsed(body)
    wanted = fields.get("stream")
    if wanted is not None and not isinstance(wanted, bool):
        raise BadRequest("`stream` must be true or false", param="stream")
    return Asked(_model(fields.get("model")), bool(wanted), fields)


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    """Return a body that `read` has accepted with its model named `model`, all other bytes as they were."""
    if _kind(content_type) == multipart.CONTENT_TYPE:
        return multipart.with_model(body, content_type, model)
    return splice_model(body, model)


def splice_model(body: bytes, model: str) -> bytes:
    """Replace the text of every top-level `model` of a JSON object; a `model` that is no text is left alone.

    `body` must be valid JSON. Of doubled keys every one is replaced: readers disagree on which of them counts.
    """
    only = _only_value(body)
    spans = _values(body) if only is None else [only]
    if not spans:
        return body
    name = orjson.dumps(model)
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += (body[at:start], name)
        at = end
    return b"".join((*pieces, body[at:]))


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _parsed(body: bytes) -> Mapping[str, object]:
    if len(body) > _SMALL and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise BadRequest(f"the body holds more than {MAX_VALUES:,} values", status=413)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg}") from error
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object")
    return parsed


def _model(model: object) -> str:
    if not isinstance(model, str) or not model:
        raise BadRequest("`model` must name a model", param="model")
    if len(model) > MAX_MODEL_CHARACTERS:
        raise BadRequest(f"`model` has at most {MAX_MODEL_CHARACTERS} characters", param="model")
    return model


def _only_value(body: bytes) -> tuple[int, int] | None:
    """Find the value of `model` in the common case, at the speed of `bytes.find`; `None` when that does not settle it.

    The key stands once, is spelt without escapes, and nothing was opened before it or is closed after its value but
    the object itself: so it is the top-level one.
    """
    key = body.find(_KEY)
    if key < 1 or body[key - 1] not in b"{," + _SPACE or body.find(_KEY, key + 1) >= 0:
        return None
    colon = _COLON.match(body, key + len(_KEY))
    value = _STRING.match(body, colon.end()) if colon else None
    if (
        value is None or b"\\u006" in body
    ):  # \u006d is an m: every letter of the key could be spelt so
        return None
    if body.count(b"{", 0, key) == 1 and body.find(b"[", 0, key) < 0:
        return value.span()
    if body.count(b"}", value.end()) == 1 and body.find(b"]", value.end()) < 0:
        return value.span()
    return None


def _values(body: bytes) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    depth = at = 0
    while (notable := _NOTABLE.search(body, at)) is not None:
        at = notable.end()
        match notable[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case _:
                text = _STRING.match(body, notable.start())
                if text is None:
                    break
                at = text.end()
                colon = _COLON.match(body, at) if depth == 1 else None
                if colon is None or not _is_key(text[0]):
                    continue
                at = colon.end()
                value = _STRING.match(body, at)
                if value is not None:
                    spans.append(value.span())
                    at = value.end()
    return spans


def _is_key(text: bytes) -> bool:
    return text == _KEY or (b"\\" in text and json.loads(text) == "model")
