"""Baseline: a pass-through proxy on bare aiohttp and uvloop, without routing, checks or metrics.

python -m bench.bare PORT WORKER_HOST:PORT
"""

import logging
import sys

import orjson
import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host")
) | {"content-length", "proxy-authorization", "proxy-authenticate"}
SMALL = 65_536


def app(worker: str) -> web.Application:
    """Return an application that forwards every POST to one worker."""

    async def passed_on(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.content_type == "application/json":
            orjson.loads(body).get("model")
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP]
        url = f"http://{worker}{request.path}"
        async with request.app[session].post(url, data=body, headers=headers) as answer:
            kept_headers = {k: v for k, v in answer.headers.items() if k.lower() not in HOP}
            if answer.content_length is not None and answer.content_length < SMALL:
                return web.Response(
                    status=answer.status, headers=kept_headers, body=await answer.read()
                )
            response = web.StreamResponse(status=answer.status, headers=kept_headers)
            response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def hold(app: web.Application):
        connector = TCPConnector(limit=0, keepalive_timeout=300)
        timeout = ClientTimeout(total=None, sock_connect=5)
        app[session] = ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        yield
        await app[session].close()

    session = web.AppKey("session", ClientSession)
    application = web.Application(client_max_size=64 << 20)
    application.cleanup_ctx.append(hold)
    application.router.add_post("/{path:.*}", passed_on)
    return application


if __name__ == "__main__":
    # Silence its messages about callers that disconnect.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    web.run_app(
        app(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=None,
        loop=uvloop.new_event_loop(),
        print=None,
    )
