"""Lines of a batch: parser of requests, and writer of rows for the files of results. No I/O.

In OpenAI's Batch API, a line is a JSON object with `custom_id`, `method`, `url` and `body`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from router.openai.prefixes import MIN_BYTES

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Bytes of the longest line."""

MAX_ID_CHARACTERS = 512

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""Endpoints that a batch may use."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request: `number` counts the lines of the file from 1; lines with a common beginning have the same `prefix`."""

    number: int
    custom_id: str
    body: bytes
    prefix: bytes


class BadLine(Exception):
    """A line is not a valid request; it becomes an error row. `custom_id` is the line's own if it could be read."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


def read(number: int, raw: bytes, endpoint: str) -> BatchLine:
    """Parse one line; raise `BadLine`."""
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine("line_too_long", f"line {number} has more than {MAX_LINE_BYTES:,} bytes")
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadLine("invalid_json_line", f"line {number} is not JSON: {error.msg}") from error
    if not isinstance(fields, dict):
        raise BadLine("invalid_json_line", f"line {number} is not a JSON object")
    id_ = fields.get("custom_id")
    if not isinstance(id_, str) or not 0 < len(id_) <= MAX_ID_CHARACTERS or "\0" in id_:
        raise BadLine("missing_required_parameter", f"line {number} has no custom_id")
    if fields.get("method") != "POST" or fields.get("url") != endpoint:
        raise BadLine(
            "invalid_url",
            f"line {number} is not a POST to {endpoint}, the endpoint of its batch",
            id_,
        )
    body = fields.get("body")
    if not isinstance(body, dict) or (
        endpoint in ENDPOINTS and not isinstance(body.get("model"), str)
    ):
        raise BadLine("invalid_request", f"line {number} has no body that names a model", id_)
    if body.get("stream"):
        raise BadLine("invalid_request", f"line {number} requests a stream", id_)
    try:
        return BatchLine(number, id_, orjson.dumps(body), _prefix(body))
    except orjson.JSONEncodeError as error:
        raise BadLine("invalid_json_line", f"line {number} is nested too deeply", id_) from error


def model_with_cache(endpoint: str, body: bytes) -> str:
    """Return the line's model if the line begins with a part long enough to be kept in a cache; otherwise ""."""
    if endpoint not in ENDPOINTS or len(body) < MIN_BYTES:
        return ""
    fields = orjson.loads(body)
    return str(fields["model"]) if len(orjson.dumps(_first(fields))) >= MIN_BYTES else ""


def _prefix(body: Mapping[str, object]) -> bytes:
    """Return a short hash of the request's beginning: its model, and its first message or 256 characters."""
    first = _first(body)
    if isinstance(first, str):
        first = first[:256]
    return hashlib.sha256(orjson.dumps([body.get("model"), first])).digest()[:8]


def _first(body: Mapping[str, object]) -> object:
    messages = body.get("messages") or body.get("prompt_with_response")
    if isinstance(messages, list) and messages:
        return messages[0]
    return body.get("prompt", body.get("input"))


def answered(id_: str, custom_id: str, status: int, request_id: str, body: object) -> bytes:
    """Return the row of a line that was answered, with any status."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _row(id_, custom_id, response=response)


def failed(id_: str, custom_id: str | None, code: str, message: str) -> bytes:
    """Return the row of a line without an answer."""
    return _row(id_, custom_id, error={"code": code, "message": message})


def _row(id_: str, custom_id: str | None, **fields: object) -> bytes:
    row = {
        "id": f"batch_req_{id_}",
        "custom_id": custom_id,
        "response": None,
        "error": None,
        **fields,
    }
    return orjson.dumps(row) + b"\n"
