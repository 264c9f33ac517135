"""How does aiohttp serve an application here? One place for its options, and for what it would answer by itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler

from node.faces.errors import Unparseable, of_http, refusal

SERVER = "modelvine"
"""What this program calls itself in the `Server` header; versions are nobody's business."""

log = logging.getLogger("modelvine.http")

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
        log.debug("answered %d to what is no request: %s", status, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        error = Unparseable("these bytes are no HTTP request") if status == 400 else exc
        response = refusal(error if isinstance(error, Exception) else Exception()).response()
        response.headers[hdrs.SERVER] = SERVER
        response.force_close()
        return response


def _in_our_words(handler: _Answerer) -> _Answerer:
    """Cover what aiohttp raises before any middleware runs: an `Expect` header that it does not know."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return refusal(of_http(error, request.path)).response()

    return answer
