"""`/api/v1/topology`: the connections between the nodes of the mesh, as each node reports them on request.

They are in no record and in no gossip. Nodes are asked over the link, as for `/api/v0/host/info`, only on request.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from node.faces import Context
from node.faces.request_ids import ID
from node.faces.request_reader import done, json_answer
from node.faces.v1.examination import each
from registry.members.liveness import Presence
from registry.records import PeerId
from registry.service import Registry
from router.errors import WorkerError
from router.peers.links import Links

CONNECTIONS = "/api/v1/connections"
"""Path at which a node reports its own connections, to its callers and, over the link, to other nodes."""

MAX_QUERIED = 50
"""Size of the largest mesh whose nodes are asked, and drawn. Of a larger mesh only this node's own connections are shown."""

MAX_LISTED = 64
"""The most connections that a node reports, and that are read from another node's report."""

MAX_ANSWER_BYTES = 16 * 1024
SECONDS = 1.0
"""Seconds that a node may take to answer; a slower one is left out of the picture."""

FRESH = 9.0
"""Seconds for which the topology is cached, for all callers."""

RelayedByPeer = Mapping[PeerId, bool]
"""The peers that a node is connected to, each with whether that is through a relay only."""

_ANSWERING = frozenset({Presence.ALIVE, Presence.DRAINING})


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def connections(_: web.Request) -> web.Response:
        return _shown(context.registry)

    async def all_links(request: web.Request) -> web.Response:
        return done(**await context.topology.seen(time.monotonic(), request[ID]))

    return [web.get(CONNECTIONS, connections), web.get("/api/v1/topology", all_links)]


def own_link_routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for other nodes that only the process with the mesh connections answers."""

    async def connections(_: web.Request) -> web.Response:
        return _shown(context.registry)

    return [web.get(CONNECTIONS, connections)]


class Topology:
    """Cache of what the nodes reported when they were last asked."""

    def __init__(self, registry: Registry, links: Links) -> None:
        self._registry = registry
        self._links = links
        self._lock = asyncio.Lock()
        self._cached: dict[str, Any] = {}
        self._until = 0.0

    async def seen(self, now: float, request_id: str) -> dict[str, Any]:
        """Return each connection once, and the nodes that reported theirs; ask them again if the cache is too old."""
        async with self._lock:
            if now >= self._until:
                self._cached = await self._asked(request_id)
                self._until = now + FRESH
            return self._cached

    async def seen_within(self, seconds: float, now: float, request_id: str) -> dict[str, Any]:
        """Return the same, or after `seconds` the previous, possibly empty, result; asking the nodes goes on."""
        asking = self._links.tasks.spawn(self.seen(now, request_id))
        await asyncio.wait({asking}, timeout=seconds)
        return self._cached

    async def _asked(self, request_id: str) -> dict[str, Any]:
        registry = self._registry
        held = registry.catalog.held
        other_nodes = [
            node for node in held if node != registry.peer and registry.presence(node) in _ANSWERING
        ]

        async def one(node: PeerId) -> tuple[PeerId, RelayedByPeer | None]:
            return node, await self._told_by(node, request_id)

        answers = await each(one, other_nodes if len(other_nodes) < MAX_QUERIED else [])
        reports = {registry.peer: _own(registry)}
        reports |= {node: reported for node, reported in answers if reported is not None}
        links: dict[tuple[PeerId, PeerId], bool] = {}
        for node, peers in reports.items():
            for peer, relayed in peers.items():
                pair = (min(node, peer), max(node, peer))
                # Where two nodes disagree, there is a direct connection beside the relayed one.
                links[pair] = links.get(pair, True) and relayed
        return {
            "links": [
                {"one": one, "other": other, "relayed": relayed}
                for (one, other), relayed in sorted(links.items())
            ],
            "told": sorted(reports),
        }

    async def _told_by(self, node: PeerId, request_id: str) -> RelayedByPeer | None:
        """Ask a node for its connections; return `None` where its version is older, or it does not answer."""
        try:
            status, body = await self._links.ask(
                node,
                CONNECTIONS,
                request_id,
                within=SECONDS,
                at_most=MAX_ANSWER_BYTES,
            )
        except (OSError, WorkerError):
            return None
        if status != HTTPStatus.OK:
            return None
        return read(body, node, self._registry.catalog.held)


def _own(registry: Registry) -> RelayedByPeer:
    held = registry.catalog.held
    connections = (c for c in registry.mesh.connections() if c.peer in held)
    return {c.peer: c.relayed for c, _ in zip(connections, range(MAX_LISTED), strict=False)}


def _shown(registry: Registry) -> web.Response:
    rows = [{"node": node, "relayed": relayed} for node, relayed in _own(registry).items()]
    return json_answer({"connections": rows})


def read(body: bytes, node: PeerId, known_peers: Collection[PeerId]) -> RelayedByPeer | None:
    """Return a node's connections to nodes that are `known_peers` here from its answer; `None` for an invalid answer."""
    try:
        rows = orjson.loads(body)["connections"][:MAX_LISTED]
        pairs = [(row["node"], row["relayed"] is True) for row in rows]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return {
        PeerId(peer): relayed
        for peer, relayed in pairs
        if isinstance(peer, str) and peer != node and peer in known_peers
    }
