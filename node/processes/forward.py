"""Forwarding of requests that only the first process can answer: it passes the request on, and the answer back, as they come.

Who may do what is judged in the first process; whether the caller is on this machine only the helper can see, and says so in a
header. The first believes it of nobody but its helpers, whose connections nobody else can make.
"""

import asyncio

from node import web
from node.access import Access
from node.config.settings import Settings
from node.faces.request_reader import read_raw
from router.errors import WorkerUnreachable
from router.http.connection import HttpError, Reply, request_head
from router.http.pool import Place
from router.peers.headers import CALLER

_HERE, _ELSEWHERE = "here", "elsewhere"
# In `CALLER` a helper says so, or that the caller is none who may change the node without the token.
# RFC 9110 7.6.1: what concerns one connection alone; the length is counted anew.
_OF_A_CONNECTION = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_NOT_PASSED = _OF_A_CONNECTION | {"content-length", "expect", CALLER, "x-request-id"}
_NOT_SHOWN = _OF_A_CONNECTION | {
    "access-control-allow-origin",
    "access-control-expose-headers",
    "content-length",
    "date",
    "server",
    "vary",
    "x-accel-buffering",
}


class PassedOn(Access):
    """Judges requests that helpers pass on."""

    def local(self, request: web.Request) -> bool:
        """Whether the caller is a process on this machine."""
        return request.headers.get(CALLER) == _HERE


def routes(first: Place, access: Access, settings: Settings) -> list[web.RouteDef]:
    """Return what passes everything on that no other route answers."""
    limits = settings.router

    async def pass_on(http: web.Request) -> web.Answer:
        body = await read_raw(
            http,
            limit=limits.max_body_bytes,
            idle=limits.idle_timeout,
            rate=settings.web.min_body_rate,
        )
        reply = await _asked(first, http, body, local=access.local(http))
        try:
            async with asyncio.timeout(limits.total_timeout):
                return await _answer(http, reply, patience=limits.idle_timeout)
        finally:
            reply.close()

    return [web.RouteDef(method, path, pass_on) for path in ("/", "/*") for method in _METHODS]


async def _asked(first: Place, http: web.Request, body: bytes, *, local: bool) -> Reply:
    headers = {name: value for name, value in http.headers.items() if name not in _NOT_PASSED}
    headers["x-request-id"] = http.id
    headers[CALLER] = _HERE if local else _ELSEWHERE
    # The answer to HEAD has a length and no body, which only the connection that it goes to can know.
    method = "GET" if http.method == "HEAD" else http.method
    target = f"{http.path}?{http.query_string}" if http.query_string else http.path
    start = f"{method} {target} HTTP/1.1\r\n".encode()
    try:
        return await first.ask(request_head(start, headers, len(body)), body)
    except HttpError as error:
        raise WorkerUnreachable("the first process of this node does not answer") from error


async def _answer(http: web.Request, reply: Reply, *, patience: float) -> web.Answer:
    headers = {name: value for name, value in reply.headers.items() if name not in _NOT_SHOWN}
    if http.method == "HEAD":
        return web.Response(status=reply.status, headers=headers, body=await _whole(reply))
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.length = reply.length
    response.prepare(http)
    try:
        while piece := await reply.some():
            response.write(piece)
            async with asyncio.timeout(patience):
                await response.drain()
    except (HttpError, TimeoutError):
        # The answer broke off, or nobody reads it. Without its end it does not look like a whole one.
        return response
    response.end()
    return response


async def _whole(reply: Reply) -> bytes:
    pieces: list[bytes] = []
    while piece := await reply.some():
        pieces.append(piece)
    return b"".join(pieces)
