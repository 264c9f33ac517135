"""Console: the page at `/` with which people see their mesh and work with it, and the files that it loads.

The page contains no secret, so it needs no key. It gets what it shows from the API, with the rights of the person who uses it.
Without JavaScript it shows tables to those who may see them: nodes, connections, models, the last hour.
"""

import time

from aiohttp import web

from node.faces import Context
from node.faces.console.assets import Asset, assets
from node.faces.console.plain import tables
from node.faces.errors import UnknownPath
from node.faces.request_ids import ID

PLACE = b"<!-- tables -->"
"""The place of the tables in the page."""

PATIENCE = 0.05
"""Seconds that the page waits for other nodes to report their connections: browsers with JavaScript wait as well."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer of the console."""


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def page(request: web.Request) -> web.Response:
        shown = b""
        if context.access.looks(request):
            asked = context.topology.seen_within(PATIENCE, time.monotonic(), request[ID])
            shown = tables(context, await asked)
        body = assets()["page.html"].content.replace(PLACE, shown)
        headers = {**HEADERS, "Content-Type": "text/html; charset=utf-8"}
        return web.Response(body=body, headers={**headers, "Cache-Control": "no-store"})

    async def file(request: web.Request) -> web.Response:
        asset = assets().get(request.match_info["name"])
        if asset is None:
            raise UnknownPath("the console has no such file")
        return sent(asset, request)

    return [web.get("/", page), web.get("/console/{name:.+}", file)]


def sent(asset: Asset, request: web.Request) -> web.Response:
    """Return a file as its caller accepts it: compressed, plain, or as status 304 where the caller has it already."""
    headers = {
        **HEADERS,
        "Content-Type": asset.content_type,
        "ETag": asset.etag,
        # Another version of the node has different files under the same names.
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
    }
    if asset.etag in request.headers.get("if-none-match", ""):
        return web.Response(status=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return web.Response(body=asset.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=asset.content, headers=headers)
