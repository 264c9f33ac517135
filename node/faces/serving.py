"""How does aiohttp serve an application here? One place for its options, and for what it would answer by itself."""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import RequestHandler

from node.faces.errors import BadHead, FaceError, HeadTooLarge, UrlTooLong, of_http, refusal
from node.faces.heads import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_LINE_BYTES,
    check_head,
)

SERVER = "modelvine"
"""What this program calls itself in the `Server` header; versions are nobody's business."""

log = logging.getLogger("modelvine.http")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_Answerer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def runner(app: web.Application, *, shutdown_timeout: float = 60.0) -> web.AppRunner:
    """Return what serves an application; closing it waits `shutdown_timeout` seconds for requests in flight.

    A caller who hangs up cancels the handler. Bodies arrive packed as they were sent. There is no access log.
    """
    return _Runner(app, shutdown_timeout=shutdown_timeout)


class _Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            _in_our_words(made.request_handler),
            request_factory=made.request_factory,
            handler_cancellation=True,
        )


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        # aiohttp unpacks without a limit, and answers a badly packed body with 500: `reading` does neither.
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's documentation names this as the way to have none
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
        )


class _Connection(RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (quotes what the caller sent)
    ) -> web.StreamResponse:
        """Answer what never reached a handler: bytes that are no HTTP, mostly from scanners."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("an answer has begun already, or nobody could read one") from exc
        log.debug("answered %d to what is no request: %s", status, type(exc).__name__)
        error = _fault(exc) if status == 400 else exc
        return _refused(error if isinstance(error, Exception) else Exception())


def _in_our_words(handler: _Answerer) -> _Answerer:
    """Check heads, and cover what aiohttp raises before any middleware runs: an `Expect` header that it does not know."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            check_head(request)
            return await handler(request)
        except FaceError as error:
            response = _refused(error)
        except web.HTTPException as error:
            response = refusal(of_http(error, request.path)).response()
        response.headers["x-request-id"] = request_id_of(request)
        return response

    return answer


def request_id_of(request: web.BaseRequest) -> str:
    """Return the id that the caller gave a request, or a new one."""
    given = request.headers.get("x-request-id")
    return given if given is not None and _ID.fullmatch(given) else os.urandom(16).hex()


def _fault(error: BaseException | None) -> FaceError:
    """Say what is wrong with a head that aiohttp could not read, in words that quote nothing of it."""
    match error:
        case LineTooLong(args=(_, limit, *_)) if limit == MAX_LINE_BYTES:
            return UrlTooLong(f"the URL has more than {MAX_LINE_BYTES} bytes")
        case LineTooLong():
            return HeadTooLarge(f"a header has more than {MAX_FIELD_BYTES} bytes")
        case BadHttpMessage(message=str(said)) if said.startswith("Too many headers"):
            return HeadTooLarge(f"there are more than {MAX_FIELDS} headers")
        case BadHttpMessage(message=str(said)) if said.startswith("Missing 'Host'"):
            return BadHead("a request of HTTP/1.1 has a Host header")
        case BadHttpMessage(message=str(said)) if said.startswith("Duplicate"):
            return BadHead("a header that may stand once stands twice")
        case _:
            return BadHead(
                "these bytes are no HTTP request; send HTTP/1.1, without TLS on this port"
            )


def _refused(error: Exception) -> web.Response:
    response = refusal(error).response()
    response.headers[hdrs.SERVER] = SERVER
    # Nobody can tell where the request ends, so nothing after it is read.
    response.force_close()
    return response
