"""May this request's head be believed? Limits of its size, and rules under which everybody reads it alike.

Two servers in a row that disagree on where a request ends can be made to take a part of its body for another request.
What is sent on from here is framed anew; what comes in is refused wherever readers are known to disagree.
"""

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web

from node.faces.errors import BadHead, HeadTooLarge

MAX_LINE_BYTES = 8 * 1024
"""The longest URL."""

MAX_FIELD_BYTES = 16 * 1024
"""The longest header, its name included; tokens of some identity providers take a dozen kilobytes."""

MAX_FIELDS = 128
"""The most headers of one request, and the most trailers."""

MAX_HEAD_BYTES = 64 * 1024
"""All headers together."""

_SPOKEN = (HttpVersion11, HttpVersion10)
_BESIDES = len(": \r\n")


def check_head(request: web.BaseRequest) -> None:
    """Refuse what is too large or could be read in two ways; raise `BadHead` or `HeadTooLarge`.

    A request of a version that we do not speak raises `ConnectionError`: what could answer it would not be understood.
    """
    if request.version not in _SPOKEN:
        raise ConnectionError("not HTTP/1.0 or HTTP/1.1")
    size = 0
    for name, value in request.raw_headers:
        size += len(name) + len(value) + _BESIDES
    if size > MAX_HEAD_BYTES:
        raise HeadTooLarge(f"the headers have more than {MAX_HEAD_BYTES} bytes together")
    coding = request.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None:
        _check_coding(request, coding)
    named = request.headers.get(hdrs.HOST, "")
    # RFC 9112 3.2.2: a URL as proxies get it. Of two names one reader takes the one, the next the other.
    if request.host != named and request.host.lower() != named.rpartition(":")[0].lower():
        raise BadHead("the URL and the Host header name different hosts; send the path alone")


def _check_coding(request: web.BaseRequest, coding: str) -> None:
    if coding.strip(" \t").lower() != "chunked":
        raise BadHead("this Transfer-Encoding is not read; send chunked, or a Content-Length")
    # RFC 9112 6.1: whoever speaks 1.0 may have passed the header on without knowing it.
    if request.version == HttpVersion10 or hdrs.CONTENT_LENGTH in request.headers:
        raise BadHead("a Transfer-Encoding goes with HTTP/1.1 and without a Content-Length")
