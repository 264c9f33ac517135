"""Console: the page at `/` with which people see their mesh and work with it, and the files that it loads.

The page contains no secret, so it needs no key. It gets what it shows from the API, with the rights of the person who uses it.
Without JavaScript it shows tables to those who may see them: nodes, connections, models, the last hour. Names come from other
machines, and are escaped.
"""

import gzip
import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from aiohttp import web

from node.faces import Context
from node.faces.errors import UnknownPath
from node.faces.model_list import live_offers
from node.faces.request_ids import ID
from node.faces.v1.network import node_rows
from registry.records import PeerId

FOLDER = Path(__file__).parent / "static"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types of the files that are served; others in the folder, such as licences, are not."""

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


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed by gzip."""

    content: bytes
    packed: bytes
    content_type: str
    etag: str


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def page(request: web.Request) -> web.Response:
        shown = b""
        if context.access.may_view(request):
            topology = context.topology.seen_within(PATIENCE, time.monotonic(), request[ID])
            shown = tables(context, await topology)
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


@cache
def assets() -> Mapping[str, Asset]:
    """Return all files by their paths below the folder: requests are looked up here, and never on the disk."""
    return {
        path.relative_to(FOLDER).as_posix(): _read(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }


def _read(path: Path) -> Asset:
    return asset_of(path.read_bytes(), TYPES[path.suffix])


def asset_of(content: bytes, content_type: str) -> Asset:
    """Return the asset of a file's content."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, gzip.compress(content, mtime=0), content_type, etag)


MAX_ROWS = 1_000
"""The most rows of one table; a line below it counts the others."""

Row = tuple[object, ...]


def tables(context: Context, topology: Mapping[str, Any], *, limit: int = MAX_ROWS) -> bytes:
    """Return the tables as UTF-8, with `limit` rows each; `topology` is empty until nodes have reported."""
    names = {node: signed.record.name for node, signed in context.registry.catalog.held.items()}

    def name_of(node: str) -> str:
        return names.get(PeerId(node)) or f"{node[:14]}…"

    nodes = [
        (
            name_of(row["node"]),
            row["state"],
            row["why"],
            row["connection"],
            row["agent"],
            row["models"],
        )
        for row in node_rows(context)
    ]
    links = [
        (name_of(link["one"]), name_of(link["other"]), "relayed" if link["relayed"] else "direct")
        for link in topology.get("links", ())
    ]
    models = sorted(
        (
            offer.service.project,
            offer.service.model,
            offer.service.type.name.lower().replace("_", " "),
            name_of(offer.node),
        )
        for offer in live_offers(context)
    )
    history = context.usage_log.history
    pairs = ((*pair, history.total(*pair)) for pair in history.pairs())
    last_hour = [
        (model, name_of(node), total.requests, total.failed, total.refused, total.queued)
        for model, node, total in pairs
    ]
    parts = [
        *_table(
            "Nodes", ("Node", "State", "Reason", "Connection", "Version", "Models"), nodes, limit
        ),
        *_table(
            "Connections", ("Node", "Node", "Route"), links, limit, _told(topology, len(nodes))
        ),
        *_table("Models", ("Project", "Model", "Type", "Node"), models, limit),
        *_table(
            "Last hour",
            ("Model", "Node", "Requests", "Failed", "Refused", "Longest queue"),
            last_hour,
            limit,
        ),
    ]
    # A name may contain a lone surrogate, which UTF-8 cannot encode.
    return "\n".join(parts).encode(errors="replace")


def _told(topology: Mapping[str, Any], nodes: int) -> str:
    if not topology:
        return "The other nodes have not reported yet; reload the page."
    return f"{len(topology['told']):,} of {nodes:,} nodes reported their connections."


def _table(
    title: str, columns: tuple[str, ...], rows: Iterable[Row], limit: int, note: str = ""
) -> Iterable[str]:
    rows = list(rows)
    yield f"<section class='pane'><h2>{title}</h2><div class='scroll'><table><thead><tr>"
    yield from (f"<th scope='col'>{column}</th>" for column in columns)
    yield "</tr></thead><tbody>"
    for row in rows[:limit]:
        yield f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>"
    yield "</tbody></table></div>"
    if not rows:
        yield "<p>None.</p>"
    if len(rows) > limit:
        yield f"<p>And {len(rows) - limit:,} more.</p>"
    if note:
        yield f"<p>{note}</p>"
    yield "</section>"
