"""Errors as callers see them, in one table: exception → status, code and body.

Every body carries both shapes: api-v0's `code` and `message`, and OpenAI's `error` object.

FaceError
├── Unparseable            these bytes are not what they claim to be
├── BadHead                the request line or a header is malformed, or could be read in two ways
├── HeadTooLarge           the headers are longer or more than the limit
├── UrlTooLong             the URL is longer than the limit
├── HeadTooSlow            the request's headers did not arrive in time
├── TooManyConnections     all connections are in use
├── NoRoomForBody          the bodies of all requests in flight reach their limit
├── WrongParameter         well-formed, but a value is invalid; `param` names it
├── NotAllowed             this caller may not do this, or not from its address
├── UnknownPath            no endpoint has this path
├── WrongMethod            the path exists, for other methods
├── UnknownNode            the registry knows no such node
├── UnknownRequest         no request with this id is in flight here
├── BodyTooLarge           the body is longer than the limit
├── BodyTooSlow            the body did not arrive in time
├── UnsupportedMediaType   a content type or encoding that this path does not read
└── UnsupportedExpectation an `Expect` header that the node cannot meet
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson
from aiohttp import web

from node.auth import errors as auth_errors
from registry import errors as registry_errors
from registry.errors import StoreUnavailable
from router import errors as router_errors

MAX_REJECTION_BYTES = 64 * 1024
"""The longest refusal of a worker that is passed on, in bytes; a longer one is replaced by the error's own message."""

# Seconds. An unreachable worker may be back once its supervisor has restarted it.
_UNREACHABLE_RETRY = 2.0

# Seconds in `retry-after` while a model is loading: without an estimate, and at most, since waiting requests are held here.
_LOADING_RETRY, _LONGEST_LOADING_RETRY = 5.0, 30.0


class FaceError(Exception):
    """The root of the errors that a face detects itself."""


class Unparseable(FaceError):
    """The body cannot be parsed as its content type."""


class BadHead(FaceError):
    """The request line or a header is malformed or ambiguous; the connection is closed."""


class HeadTooLarge(FaceError):
    """The headers are too long or too many; the connection is closed."""


class UrlTooLong(FaceError):
    """The URL is too long; the connection is closed."""


class HeadTooSlow(FaceError):
    """The request's headers did not arrive in time; the connection is closed."""


class TooManyConnections(FaceError):
    """All connections are in use by requests in flight."""


class NoRoomForBody(FaceError):
    """The bodies of all requests in flight reach their memory limit (`web.max_bodies_bytes`)."""


class WrongParameter(FaceError):
    """A value is invalid; `param` names the field if it is known."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NotAllowed(FaceError):
    """The caller may not do this, or not from its address."""


class UnknownPath(FaceError):
    """No endpoint has this path."""


class WrongMethod(FaceError):
    """The path exists, but only for the methods in `allowed`."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method} is not allowed here; use {' or '.join(allowed)}")
        self.allowed = allowed


class UnknownNode(FaceError):
    """The registry knows no such node."""


class UnknownRequest(FaceError):
    """No request with this id is in flight here, or it cannot be cancelled."""


class BodyTooLarge(FaceError):
    """The body is longer than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes")


class BodyTooSlow(FaceError):
    """The body did not arrive in time."""


class UnsupportedMediaType(FaceError):
    """This path does not accept this content type or content encoding."""


class UnsupportedExpectation(FaceError):
    """The node cannot meet the `Expect` header."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of errors looks from outside: HTTP status, api-v0 code, OpenAI `type` and `code`."""

    status: int
    code: int
    type: str
    reason: str


_BAD = "invalid_request_error"
_DENIED = "permission_error"
_FULL = "rate_limit_error"
_BROKEN = "server_error"

TABLE: Mapping[type[Exception], Row] = MappingProxyType(
    {
        FaceError: Row(400, 1001, _BAD, "invalid_request"),
        Unparseable: Row(400, 1002, _BAD, "invalid_body"),
        BadHead: Row(400, 1002, _BAD, "invalid_head"),
        HeadTooLarge: Row(431, 1001, _BAD, "head_too_large"),
        UrlTooLong: Row(414, 1001, _BAD, "url_too_long"),
        HeadTooSlow: Row(408, 1005, _BAD, "head_too_slow"),
        TooManyConnections: Row(503, 1017, _FULL, "too_many_connections"),
        NoRoomForBody: Row(503, 1017, _FULL, "no_room_for_body"),
        WrongParameter: Row(400, 1001, _BAD, "invalid_parameter"),
        NotAllowed: Row(403, 1010, _DENIED, "not_allowed"),
        UnknownPath: Row(404, 1011, _BAD, "unknown_path"),
        WrongMethod: Row(405, 1011, _BAD, "method_not_allowed"),
        UnknownNode: Row(404, 1001, _BAD, "node_not_found"),
        UnknownRequest: Row(404, 1001, _BAD, "request_not_found"),
        BodyTooLarge: Row(413, 1001, _BAD, "body_too_large"),
        BodyTooSlow: Row(408, 1005, _BAD, "body_too_slow"),
        UnsupportedMediaType: Row(415, 1011, _BAD, "unsupported_media_type"),
        UnsupportedExpectation: Row(417, 1011, _BAD, "unsupported_expectation"),
        auth_errors.AuthError: Row(403, 1010, _DENIED, "not_allowed"),
        auth_errors.KeyMissing: Row(401, 1010, _BAD, "key_missing"),
        auth_errors.KeyUnknown: Row(401, 1010, _BAD, "invalid_api_key"),
        auth_errors.GrantRefused: Row(401, 1010, _BAD, "invalid_api_key"),
        auth_errors.KeyExpired: Row(401, 1010, _BAD, "key_expired"),
        auth_errors.KeyRevoked: Row(401, 1010, _BAD, "key_revoked"),
        auth_errors.RoleNotAllowed: Row(403, 1010, _DENIED, "role_not_allowed"),
        auth_errors.ModelNotAllowed: Row(403, 1010, _DENIED, "model_not_allowed"),
        auth_errors.Limited: Row(429, 1017, _FULL, "rate_limit_exceeded"),
        auth_errors.RateExceeded: Row(429, 1017, _FULL, "rate_limit_exceeded"),
        auth_errors.TooManyAtOnce: Row(429, 1017, _FULL, "concurrency_limit_exceeded"),
        auth_errors.DaySpent: Row(429, 1017, _FULL, "insufficient_quota"),
        auth_errors.KeyExists: Row(409, 1001, _BAD, "key_exists"),
        auth_errors.NoSuchKey: Row(404, 1001, _BAD, "key_not_found"),
        router_errors.RouterError: Row(500, 5000, _BROKEN, "router_error"),
        router_errors.BadRequest: Row(400, 1001, _BAD, "invalid_request"),
        router_errors.UnsupportedContentType: Row(415, 1011, _BAD, "unsupported_media_type"),
        router_errors.TooManyParts: Row(413, 1001, _BAD, "body_too_large"),
        router_errors.UnknownModel: Row(404, 1017, _BAD, "model_not_found"),
        router_errors.NoProvider: Row(501, 1011, _BROKEN, "no_provider"),
        router_errors.NobodyServes: Row(503, 1017, _BROKEN, "nobody_serves"),
        router_errors.NoCapacity: Row(429, 1017, _FULL, "no_capacity"),
        router_errors.WorkerError: Row(502, 1007, _BROKEN, "worker_error"),
        router_errors.WorkerUnreachable: Row(503, 1017, _BROKEN, "worker_unreachable"),
        router_errors.WorkerTimeout: Row(504, 1005, _BROKEN, "worker_timeout"),
        router_errors.WorkerBusy: Row(429, 1017, _FULL, "worker_busy"),
        router_errors.WorkerLoading: Row(503, 1017, _BROKEN, "model_loading"),
        router_errors.WorkerAway: Row(503, 1017, _BROKEN, "worker_away"),
        router_errors.WorkerFailed: Row(502, 1007, _BROKEN, "worker_failed"),
        router_errors.WorkerIncomplete: Row(502, 1007, _BROKEN, "incomplete_generation"),
        router_errors.WorkerDied: Row(502, 1007, _BROKEN, "worker_died"),
        router_errors.PoisonousRequest: Row(502, 1007, _BROKEN, "poisonous_request"),
        router_errors.WorkerStale: Row(503, 1017, _BROKEN, "worker_stale"),
        router_errors.Looped: Row(508, 1017, _BROKEN, "loop"),  # RFC 5842 7.2
        router_errors.WorkerUnable: Row(400, 1007, _BAD, router_errors.WorkerUnable.code),
        router_errors.WorkerRejected: Row(400, 1007, _BAD, "rejected_by_worker"),
        router_errors.WorkerTooSmall: Row(413, 1007, _BAD, "rejected_by_worker"),
        router_errors.AnswerBroken: Row(502, 1018, _BROKEN, "answer_broken"),
        registry_errors.RegistryError: Row(500, 5000, _BROKEN, "registry_error"),
        registry_errors.InvalidFrame: Row(500, 5000, _BROKEN, "invalid_frame"),
        registry_errors.UnknownKind: Row(500, 5000, _BROKEN, "unknown_kind"),
        registry_errors.InvalidSignature: Row(400, 1001, _BAD, "invalid_peer_id"),
        registry_errors.LimitReached: Row(400, 1001, _BAD, "limit_reached"),
        # api-v0 has a code for databases (1016), but its registration table wants 5000 for "cannot be saved".
        StoreUnavailable: Row(500, 5000, _BROKEN, "not_saved"),
        registry_errors.MeshError: Row(502, 1007, _BROKEN, "mesh_error"),
        registry_errors.MeshDown: Row(503, 1007, _BROKEN, "mesh_down"),
        registry_errors.PeerUnreachable: Row(502, 1007, _BROKEN, "peer_unreachable"),
        registry_errors.ProtocolViolation: Row(502, 1007, _BROKEN, "peer_broke_rules"),
    }
)
"""The outside form of every error class of the project; a test fails when a class has no row."""

INNER = frozenset(
    {
        FaceError,
        auth_errors.AuthError,
        auth_errors.Limited,
        router_errors.RouterError,
        router_errors.WorkerError,
        registry_errors.RegistryError,
        registry_errors.InvalidFrame,
        registry_errors.UnknownKind,
        registry_errors.InvalidSignature,
        registry_errors.MeshError,
    }
)
"""Roots, and errors that are handled where they arise: no caller sees these; their rows exist in case one slips through."""

_BY_REASON: Mapping[str, Row] = MappingProxyType(
    {row.reason: row for kind, row in TABLE.items() if issubclass(kind, router_errors.RouterError)}
)

INTERNAL = Row(500, 5000, _BROKEN, "internal_error")
KNOWN = (
    FaceError,
    auth_errors.AuthError,
    router_errors.RouterError,
    registry_errors.RegistryError,
)
"""The roots of the errors that have a row."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error, ready to be sent: in a response, or as an event of a stream that has begun."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        """Return it as a whole response."""
        return web.Response(
            status=self.status,
            body=orjson.dumps(self.body),
            content_type="application/json",
            headers=self.headers,
        )

    def event(self) -> bytes:
        """Return it as the last event of a stream; no `[DONE]` follows. A `retry-after` header becomes a field of the error."""
        error = dict(self.body["error"])
        if (seconds := self.headers.get("retry-after")) is not None:
            error["retry_after"] = int(seconds)
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def refusal(error: Exception) -> Refusal:
    """Return what a caller sees of an error; one that has no row shows nothing but an internal error."""
    if isinstance(error, router_errors.WorkerError) and error.peer_error is not None:
        return _as_reported(error, error.peer_error)
    return _of_known(error)


def _of_known(error: Exception) -> Refusal:
    match error:
        case router_errors.WorkerRejected():
            return _rejected(error)
        case WrongParameter() | router_errors.BadRequest() | router_errors.WorkerUnable():
            row = _row(error)
            return Refusal(row.status, _body(row, str(error), param=error.param))
        case router_errors.WorkerLoading():
            row = _row(error)
            # LocalAI's clients look for this object.
            state = {"state": "loading", "eta_seconds": error.eta and round(error.eta, 1)}
            body = {**_body(row, str(error)), "loading": state}
            return Refusal(row.status, body, _headers(error))
        case (
            FaceError()
            | auth_errors.AuthError()
            | router_errors.RouterError()
            | registry_errors.RegistryError()
        ):
            row = _row(error)
            # The location of the store is for the operator only.
            message = error.public_reason if isinstance(error, StoreUnavailable) else str(error)
            return Refusal(row.status, _body(row, message or row.reason), _headers(error))
        case _:
            return Refusal(INTERNAL.status, _body(INTERNAL, "internal error; see the log"))


def _row(error: Exception) -> Row:
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def _body(row: Row, message: str, *, param: str | None = None) -> dict[str, Any]:
    # The message may quote what a caller sent, and headers may hold bytes that are not UTF-8, which JSON cannot.
    message = message.encode(errors="replace").decode()
    error = {"message": message, "type": row.type, "param": param, "code": row.reason}
    return {"code": row.code, "message": message, "error": error}


_HEADERS: Mapping[type[Exception], Mapping[str, str]] = MappingProxyType(
    {
        TooManyConnections: {"retry-after": "1"},
        NoRoomForBody: {"retry-after": "1"},
        # RFC 9110 15.5.2.
        **{kind: {"www-authenticate": "Bearer"} for kind in auth_errors.OF_KEYS},
        # OpenAI's and Anthropic's clients obey this header before they look at the status.
        router_errors.PoisonousRequest: {"x-should-retry": "false"},
    }
)


def _headers(error: Exception) -> Mapping[str, str]:
    match error:
        case WrongMethod():
            return {"Allow": ", ".join(error.allowed)}
        case auth_errors.Limited():
            return {"retry-after": _seconds(error.retry_after), **error.headers}
        case router_errors.NobodyServes() | router_errors.NoCapacity() | router_errors.WorkerBusy():
            return {"retry-after": _seconds(error.retry_after)}
        case router_errors.WorkerLoading():
            return {
                "retry-after": _seconds(min(error.eta or _LOADING_RETRY, _LONGEST_LOADING_RETRY))
            }
        case (
            router_errors.WorkerUnreachable()
            | router_errors.WorkerStale()
            | router_errors.WorkerAway()
        ):
            return {"retry-after": _seconds(_UNREACHABLE_RETRY)}
        case _:
            return _HEADERS.get(type(error), {})


def _seconds(wait: float) -> str:
    # RFC 9110 10.2.3: whole seconds; zero would invite a caller to retry at once.
    return str(max(1, math.ceil(min(wait, 86_400))))


def _as_reported(error: router_errors.WorkerError, peer_error: router_errors.PeerError) -> Refusal:
    """Return a failure as the failed worker's node reported it; one within a stream has no status but that of its `code`."""
    row = _BY_REASON.get(str(peer_error.error.get("code")), _row(error))
    body = _body(row, peer_error.message)
    body["code"] = peer_error.code or row.code
    body["error"] |= peer_error.error
    headers = (
        {"retry-after": _seconds(peer_error.retry_after)}
        if peer_error.retry_after
        else _headers(error)
    )
    return Refusal(peer_error.status or row.status, body, headers)


def _rejected(error: router_errors.WorkerRejected) -> Refusal:
    """Keep the worker's own words: its status, and its `error` object where it sent one."""
    row = _row(error)
    payload: Any = None
    if len(error.body) <= MAX_REJECTION_BYTES:
        try:
            payload = orjson.loads(error.body)
            orjson.dumps(payload)
        except orjson.JSONEncodeError:
            # Nested too deeply to be serialized again.
            payload = None
        except orjson.JSONDecodeError:
            text = error.body.decode(errors="replace").strip()
            # A proxy's page is for browsers.
            payload = None if text.startswith("<") else text
    status = error.status if 400 <= error.status < 500 else row.status
    match payload:
        case {"error": {"message": str(message), **rest}}:
            fields = {
                "type": row.type,
                "param": None,
                "code": row.reason,
                **rest,
                "message": message,
            }
            if isinstance(fields["code"], int):
                # As vLLM and llama.cpp send it; OpenAI's is text or null, and typed clients read nothing else.
                fields["code"] = str(fields["code"])
            return Refusal(status, {"code": row.code, "message": message, "error": fields})
        case {"detail": [{"loc": loc}]}:
            return Refusal(status, _body(row, message_in(payload), param=place_of(loc) or None))
        case _:
            return Refusal(status, _body(row, message_in(payload) or str(error)))


MAX_FAULTS = 16
"""The most faults of one refusal that are shown, and the most steps in the path of each."""


def message_in(value: object, depth: int = 4) -> str:
    """Return the human-readable message of a worker's refusal in any of the usual shapes; `""` for any other shape."""
    match value:
        case str(text):
            return text.strip()
        case list(several) if depth:
            messages = (message_in(inner, depth - 1) for inner in several[:MAX_FAULTS])
            return "; ".join(text for text in messages if text)
        # FastAPI's shape: each fault names its place in the request.
        case {"msg": str(text), "loc": location}:
            return ": ".join(filter(None, (place_of(location), text)))
        case dict(fields) if depth:
            inner_values = (
                fields.get(name) for name in ("error", "message", "detail", "errors", "msg")
            )
            return next(filter(None, (message_in(inner, depth - 1) for inner in inner_values)), "")
    return ""


def place_of(location: object) -> str:
    """Return the place of a fault as a dotted path, starting below `body`."""
    steps = [str(step) for step in location[:MAX_FAULTS]] if isinstance(location, list) else []
    return ".".join(steps[1:] if steps[:1] == ["body"] else steps)
