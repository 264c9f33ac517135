"""Response of aiohttp that is sent as it comes."""

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter


class Streaming(web.StreamResponse):
    """An answer that is sent as it comes. Its head leaves with its first bytes."""

    _send_headers_immediately = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin; where the caller's HTTP has no chunks, the connection's end is the end of the answer."""
        if self.content_length is None and request.version < HttpVersion11:
            self.force_close()
        return await super().prepare(request)
