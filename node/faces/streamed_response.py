"""Streamed response for aiohttp, sent as its bytes arrive."""

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter


class StreamedResponse(web.StreamResponse):
    """An answer that is sent as its bytes arrive. Its headers leave together with the first of them."""

    _send_headers_immediately = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin the answer. HTTP/1.0 has no chunks: there, closing the connection ends an answer of unknown length."""
        if self.content_length is None and request.version < HttpVersion11:
            self.force_close()
        return await super().prepare(request)
