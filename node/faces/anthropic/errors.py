"""Errors in Anthropic's form: its own body, and its own statuses where it has any.

Its SDK retries 408, 409, 429 and 5xx, after `Retry-After` if present, unless `x-should-retry` forbids it.

It also checks values in Anthropic requests: errors name the place as a caller would write it.
"""

from collections.abc import Iterator, Mapping

import orjson

from node.faces.errors import TABLE, Refusal
from router.errors import BadRequest, Looped
from router.openai.text_parser import TextFailure


def field_error(path: str, message: str) -> BadRequest:
    """Return the error for the value at a place; `message` continues a sentence that begins with its name."""
    return BadRequest(f"`{path}` {message}", param=path)


def mapping(fields: Mapping[str, object], name: str, path: str) -> Mapping[str, object]:
    """Return a field that is an object, an empty one where it is missing; raise `BadRequest`."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise field_error(path, "must be an object")
    return value


def fields_of(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return an object's fields under their full names, such as `metadata.user_id`; raise `BadRequest`."""
    return {f"{name}.{key}": value for key, value in mapping(fields, name, name).items()}


def required_text(
    fields: Mapping[str, object], name: str, path: str, *, most: int, least: int = 1
) -> str:
    """Return a required text of `least` to `most` characters; raise `BadRequest`."""
    value = fields.get(name)
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise field_error(f"{path}.{name}", f"must be a text of {least} to {most:,} characters")
    return value


def rows(value: object, path: str, limit: int) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the objects of a list, each with its place; raise `BadRequest`."""
    if not isinstance(value, list):
        raise field_error(path, "must be a list")
    if len(value) > limit:
        raise field_error(path, f"lists at most {limit:,}")
    for index, row in enumerate(value):
        if not isinstance(row, dict):
            raise field_error(f"{path}[{index}]", "must be an object")
        yield f"{path}[{index}]", row


_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Its clients expect 529 instead of 503, and know neither 502 nor 508.
_STATUSES: Mapping[int, int] = {422: 400, 503: 529, 504: 504}
_STATUS_OF: Mapping[str, int] = {row.reason: row.status for row in TABLE.values()}
_TYPES_OF_OPENAI = frozenset(
    {"invalid_request_error", "authentication_error", "permission_error", "rate_limit_error"}
)


def status_of(status: int) -> int:
    """Return Anthropic's status for one of this node's."""
    return _STATUSES.get(status, min(status, 500))


def type_of(status: int) -> str:
    """Return Anthropic's error type for one of this node's statuses."""
    own_type = status_of(status)
    return _TYPES.get(own_type, "invalid_request_error" if own_type < 500 else "api_error")


def refused(refusal: Refusal, request_id: str) -> Refusal:
    """Return a refusal in Anthropic's form."""
    error = refusal.body["error"]
    headers = {**refusal.headers, "request-id": request_id}
    if error["code"] == TABLE[Looped].reason:
        headers["x-should-retry"] = "false"
    body = _body(type_of(refusal.status), error["message"], request_id)
    return Refusal(status_of(refusal.status), body, headers)


def broken(failure: TextFailure, request_id: str) -> bytes:
    """Return the last event of a stream that broke off."""
    if (status := _STATUS_OF.get(failure.code)) is not None:
        kind = type_of(status)
    else:
        kind = failure.type if failure.type in _TYPES_OF_OPENAI else "api_error"
    body = _body(kind, failure.message, request_id)
    return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"


def _body(kind: str, message: str, request_id: str) -> dict[str, object]:
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }
