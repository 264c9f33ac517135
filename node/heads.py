"""HTTP head checks beyond the parser's rules, and the head of responses that aiohttp does not write.

Two servers in a row that disagree on where a request ends can be made to take a part of its body for another request.
What is sent on from here is framed anew; what comes in is refused wherever readers are known to disagree.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from types import MappingProxyType
from typing import cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong

from node.config.web import WebSettings
from node.faces.errors import (
    BadHead,
    FaceError,
    HeadTooLarge,
    UnsupportedExpectation,
    UrlTooLong,
    refusal,
)
from node.lane.request import LaneRequest
from router.http.heads import header_lines
from router.peers.headers import HOP

NAME = "modelvine"
"""What this program calls itself in the `Server` header; versions are nobody's business."""

MAX_URL_BYTES = 8 * 1024
"""The longest URL."""

MAX_FIELD_BYTES = 16 * 1024
"""The longest header, its name included; tokens of some identity providers take a dozen kilobytes."""

MAX_FIELDS = 128
"""The most headers of one request, and the most trailers."""

MAX_HEAD_BYTES = 64 * 1024
"""All headers together."""

_HSTS_SECONDS = 365 * 86_400
_BESIDES = len(": \r\n")
_PATH = re.compile(r"/[!-\"$-~]*")
# Of these, two could mean two things. The parser itself refuses two of some others.
_ONCE = frozenset({b"authorization", b"expect", b"origin", HOP.encode()})
_CONTINUE = "100-continue"
_TOO_MANY = "Too many headers"


@dataclass(frozen=True, slots=True)
class FixedHeaders:
    """The headers that all answers of a listener have, and the same as they are sent."""

    fields: Mapping[str, str]
    lines: str


def fixed_headers(settings: WebSettings, *, secured: bool, peers: bool) -> FixedHeaders:
    """Return the headers of answers to callers or to peers; `secured` says that callers speak TLS."""
    fields = {"Server": NAME}
    if not peers:
        fields |= {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        if not settings.origins:
            fields["Cross-Origin-Resource-Policy"] = "same-origin"
        if secured:
            # RFC 6797 8.1: browsers pass over it at addresses, and where they do not trust the certificate.
            fields["Strict-Transport-Security"] = f"max-age={_HSTS_SECONDS}"
    return FixedHeaders(MappingProxyType(fields), header_lines(fields))


def check(request: web.BaseRequest) -> None:
    """Look at a head that the parser has accepted; raise what makes it unfit."""
    lines = request.raw_headers
    if sum(len(name) + len(value) + _BESIDES for name, value in lines) > MAX_HEAD_BYTES:
        raise HeadTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes together")
    once = [known for name, _ in lines if (known := name.lower()) in _ONCE]
    if len(once) != len(set(once)):
        raise BadHead("a header that may occur only once occurs twice")
    if _PATH.fullmatch(request.raw_path) is None and (request.method, request.raw_path) != (
        "OPTIONS",
        "*",
    ):
        raise BadHead("the URL is not a path; send only the path")
    if request.headers.get("expect", _CONTINUE).lower() != _CONTINUE:
        raise UnsupportedExpectation("this Expect header cannot be met")
    coding = request.headers.get("transfer-encoding")
    if coding is None:
        return
    if coding.strip(" \t").lower() != "chunked":
        raise BadHead("this Transfer-Encoding is not supported; send chunked, or a Content-Length")
    # RFC 9112 6.1: whoever speaks 1.0 may have passed the header on without knowing it.
    if request.version == HttpVersion10 or "content-length" in request.headers:
        raise BadHead("Transfer-Encoding requires HTTP/1.1, and excludes Content-Length")


def is_read(request: web.BaseRequest | LaneRequest) -> bool:
    """Whether what comes now is behind the request; all of a WebSocket belongs to it."""
    return request.content.is_eof() and ("upgrade" not in request.headers or offers(request))


def offers(request: web.BaseRequest | LaneRequest) -> bool:
    """Whether another protocol than WebSockets is offered."""
    return request.headers.get("upgrade", "websocket").lower() != "websocket"


def is_spoken(request: web.BaseRequest) -> bool:
    """Whether this is a version of HTTP whose answers we know how to write."""
    return request.version in (HttpVersion10, HttpVersion11)


def fault_of(error: BaseException | None) -> FaceError:
    """Say in our words what the parser finds wrong."""
    match error:
        case LineTooLong(args=(_, limit, *_)) if limit == MAX_URL_BYTES:
            return UrlTooLong(f"the URL has more than {MAX_URL_BYTES} bytes")
        case LineTooLong():
            return HeadTooLarge(f"a header has more than {MAX_FIELD_BYTES} bytes")
        case _ if _TOO_MANY in str(error):
            return HeadTooLarge(f"there are more than {MAX_FIELDS} headers")
    return BadHead("these bytes are not an HTTP request; send HTTP/1.1, without TLS on this port")


def spelt(error: FaceError, id_: str, fixed: FixedHeaders) -> bytes:
    """Return the bytes of a refusal after which the connection ends."""
    response = refusal(error).response()
    body = cast("bytes", response.body)
    headers = {
        **response.headers,
        "x-request-id": id_,
        **fixed.fields,
        "Date": formatdate(usegmt=True),
        "Connection": "close",
        "Content-Length": str(len(body)),
    }
    return (
        f"HTTP/1.1 {response.status} {response.reason}\r\n{header_lines(headers)}\r\n".encode()
        + body
    )
