"""How are HTTP connections to workers and peers opened, kept and cut? Only this module knows aiohttp's connectors.

A connection that closes under a request that had waited in the pool is opened anew once: the worker had let go of it
while it lay idle, and has seen nothing of the request. A request that is given up cuts its connection at once, so that
whoever works on it notices.
"""

from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.payload import BytesPayload

from router.settings import RouterSettings

_IDLE_SECONDS = 15.0
_DNS_SECONDS = 60

_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding")


class Asking(aiohttp.ClientRequest):
    """A request that knows whether it travels on a fresh connection."""

    fresh = False


class Connecting(aiohttp.BaseConnector):
    """Marks requests that open a connection, and cuts a connection that is given up."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,
    ) -> ResponseHandler:
        if isinstance(req, Asking):
            req.fresh = True
        return await super()._create_connection(req, traces, timeout)

    def _release(
        self,
        key: aiohttp.client_reqrep.ConnectionKey,
        protocol: ResponseHandler,
        *,
        should_close: bool = False,
    ) -> None:
        # Closing politely waits until the other side has read what we wrote; a hung one never does.
        if should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


class TcpConnector(Connecting, aiohttp.TCPConnector):
    """Connections over TCP."""


class Body(BytesPayload):
    """A request's body, written as it is; `BytesPayload` warns of those beyond a MiB, which images are."""

    def __init__(self, body: bytes) -> None:
        super().__init__(b"")
        self._value = body
        self._size = len(body)

    async def write_with_length(
        self,
        writer: AbstractStreamWriter,
        content_length: int | None,  # noqa: ARG002 (always the body's own)
    ) -> None:
        """Write the body, in one piece."""
        await writer.write(self._value)


def session(connector: Connecting, settings: RouterSettings) -> aiohttp.ClientSession:
    """Make a session that adds nothing of its own to a request, follows nothing and remembers nothing."""
    return aiohttp.ClientSession(
        connector=connector,
        request_class=Asking,
        middlewares=(_once_more,),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
        skip_auto_headers=_SKIPPED,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout),
    )


def worker_session(settings: RouterSettings) -> aiohttp.ClientSession:
    """Make the session for this machine's workers."""
    connector = TcpConnector(
        limit=0,
        limit_per_host=settings.connections_per_worker,
        keepalive_timeout=_IDLE_SECONDS,
        ttl_dns_cache=_DNS_SECONDS,
    )
    return session(connector, settings)


async def _once_more(
    request: aiohttp.ClientRequest,
    send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        if not isinstance(request, Asking) or request.fresh:
            raise
    await request.close()
    return await send(request)
