"""Heads of HTTP messages: checks beyond the parser's rules, and the head of responses that aiohttp does not write.

Two servers in a row that disagree on where a request ends may take a part of its body for another request (request smuggling). So
requests are framed anew when they are sent on, and refused where parsers are known to disagree.
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
from router.http.heads import header_lines
from router.peers.headers import HOP

NAME = "modelvine"
"""Value of the `Server` header; it does not reveal the version."""

MAX_URL_BYTES = 8 * 1024
"""The longest URL."""

MAX_FIELD_BYTES = 16 * 1024
"""The longest header, including its name; tokens of some identity providers take a dozen kilobytes."""

MAX_FIELDS = 128
"""The most headers of one request, and the most trailers."""

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of all headers together."""

CONTINUE = "100-continue"
"""The only `Expect` header that the node can meet."""

_HSTS_SECONDS = 365 * 86_400
_BESIDES = len(": \r\n")
# RFC 9112 3.2.2: a client that takes the node for a proxy sends a whole URL.
_TARGET = re.compile(r"(?:http://([^/?#]+))?/[!-\"$-~]*", re.IGNORECASE)
# Duplicates of these would be ambiguous. The parser itself refuses duplicates of some other headers.
_ONCE = frozenset({b"authorization", b"expect", b"origin", HOP.encode()})
# What aiohttp's parser calls these faults.
_TOO_MANY, _DUPLICATE, _NO_HOST = "Too many headers", "Duplicate ", "Missing 'Host' header"
_TWICE = "a header that may occur only once occurs twice"


@dataclass(frozen=True, slots=True)
class FixedHeaders:
    """The headers that all answers of a listener have, as a mapping and as the lines that are sent."""

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
            # RFC 6797 8.1: browsers ignore it for IP addresses, and where they do not trust the certificate.
            fields["Strict-Transport-Security"] = f"max-age={_HSTS_SECONDS}"
    return FixedHeaders(MappingProxyType(fields), header_lines(fields))


def check(request: web.BaseRequest) -> None:
    """Raise a `FaceError` if a head that the parser has accepted is not acceptable here."""
    if request.version not in (HttpVersion10, HttpVersion11):
        raise BadHead("this version of HTTP is not supported; send HTTP/1.1")
    lines = request.raw_headers
    if sum(len(name) + len(value) + _BESIDES for name, value in lines) > MAX_HEAD_BYTES:
        raise HeadTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes together")
    once = [lowered for name, _ in lines if (lowered := name.lower()) in _ONCE]
    if len(once) != len(set(once)):
        raise BadHead(_TWICE)
    _check_target(request)
    if request.headers.get("expect", CONTINUE).lower() != CONTINUE:
        raise UnsupportedExpectation("this Expect header cannot be met")
    coding = request.headers.get("transfer-encoding")
    if coding is None:
        return
    if coding.strip(" \t").lower() != "chunked":
        raise BadHead("this Transfer-Encoding is not supported; send chunked, or a Content-Length")
    # RFC 9112 6.1: an HTTP/1.0 sender may have forwarded the header without understanding it.
    if request.version == HttpVersion10 or "content-length" in request.headers:
        raise BadHead("Transfer-Encoding requires HTTP/1.1, and excludes Content-Length")


def _check_target(request: web.BaseRequest) -> None:
    target = _TARGET.fullmatch(request.raw_path)
    if target is None and (request.method, request.raw_path) != ("OPTIONS", "*"):
        raise BadHead("the URL is not a path; send only the path")
    if target and target[1] not in (None, request.headers.get("host")):
        raise BadHead("the URL's host is not that of the Host header; send only the path")


def fault_of(error: BaseException | None) -> FaceError:
    """Return this project's error for an error of the parser."""
    match error:
        case LineTooLong(args=(_, limit, *_)) if limit == MAX_URL_BYTES:
            return UrlTooLong(f"the URL has more than {MAX_URL_BYTES} bytes")
        case LineTooLong():
            return HeadTooLarge(f"a header has more than {MAX_FIELD_BYTES} bytes")
        case _ if _TOO_MANY in str(error):
            return HeadTooLarge(f"there are more than {MAX_FIELDS} headers")
        case _ if _DUPLICATE in str(error):
            return BadHead(_TWICE)
        case _ if _NO_HOST in str(error):
            return BadHead("HTTP/1.1 requires a Host header")
    return BadHead("these bytes are not an HTTP request; send HTTP/1.1, without TLS on this port")


def encode_refusal(error: FaceError, id_: str, fixed: FixedHeaders) -> bytes:
    """Return the bytes of an error response after which the connection ends."""
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
