"""Description of this node's API at `/openapi.json`, and the page that shows it at `/docs`, which loads nothing from other hosts.

Both contain no secret, so they need no key. They are made when they are first requested.
"""

import asyncio
from html import escape

import orjson
from aiohttp import web

from node.faces import Context
from node.faces.console import Asset, asset_of, assets, sent

PLACE = b"<!-- paths -->"
"""The place in the page of the list for browsers without JavaScript."""


class Pages:
    """The document and the page of one application, each made once."""

    def __init__(self) -> None:
        self._document: Asset | None = None
        self._page: Asset | None = None

    async def document(self, request: web.Request) -> web.Response:
        """Answer with the document."""
        return sent(await self._document_of(request.app), request)

    async def page(self, request: web.Request) -> web.Response:
        """Answer with the page."""
        if self._page is None:
            self._page = _page(await self._document_of(request.app))
        return sent(self._page, request)

    async def _document_of(self, app: web.Application) -> Asset:
        if self._document is None:
            # In a thread: it takes as long as a hundred requests, which need not wait for it.
            self._document = await asyncio.to_thread(_document, app)
        return self._document


def routes(_: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    pages = Pages()
    return [web.get("/openapi.json", pages.document), web.get("/docs", pages.page)]


def _document(app: web.Application) -> Asset:
    from node.faces.openapi.document import document  # noqa: PLC0415 (few ask for it)

    return asset_of(orjson.dumps(document(app)), "application/json")


def _page(document: Asset) -> Asset:
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
        f"<td class='wide'>{escape(operation['summary'])}</td></tr>"
        for path, methods in orjson.loads(document.content)["paths"].items()
        for method, operation in methods.items()
    )
    page = assets()["docs.html"]
    return asset_of(page.content.replace(PLACE, rows.encode()), page.content_type)
