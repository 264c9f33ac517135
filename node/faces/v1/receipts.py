"""`/api/v1/receipts`: receipts of requests between this node and others, for operators; a peer reads its chain over the link."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from node.auth import receipts
from node.auth.receipts import Page, compare, faults
from node.faces import Context
from node.faces.errors import UnknownNode
from node.faces.peer_access import asking_peer
from node.faces.request_ids import ID
from node.faces.request_reader import done
from registry.errors import PeerUnreachable
from registry.records import PeerId
from router.errors import WorkerError

PATH = "/api/v1/receipts"
OF_ASKER = f"{PATH}/yours"
"""Path at which a peer reads, over the link, the receipts that this node keeps of the two."""

MAX_ANSWER_BYTES = 32 * 1024 * 1024
SHOWN = 50
"""The most requests of each sort, and the most faults, that a comparison names."""


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def totals(request: web.Request) -> web.Response:
        context.access.check_change(request)
        by_peer = await context.receipt_log.totals()
        rows = [
            {"peer": peer, "side": side, "answers": answers, "tokens": tokens}
            for peer, sides in sorted(by_peer.items())
            for side, (answers, tokens) in sorted(sides.items())
        ]
        return done(receipts=rows)

    async def pages(request: web.Request) -> web.Response:
        context.access.check_change(request)
        return await _pages(context, request.match_info["peer"])

    async def comparison(request: web.Request) -> web.Response:
        context.access.check_change(request)
        peer = PeerId(request.match_info["peer"])
        our_pages = await context.receipt_log.pages(peer)
        their_pages = await _of_other(context, peer, request[ID])
        wrong = [
            *(f"here: {fault}" for fault in faults(our_pages, node=context.peer, peer=peer)),
            *(f"there: {fault}" for fault in faults(their_pages, node=peer, peer=context.peer)),
        ]
        result = compare(our_pages, their_pages)
        fields: dict[str, Any] = {
            "answers": result.answers,
            "tokens": result.tokens,
            "counts": {
                "differ": len(result.differ),
                "only_here": len(result.only_here),
                "only_there": len(result.only_there),
            },
            "differ": [asdict(difference) for difference in result.differ[:SHOWN]],
            "only_here": result.only_here[:SHOWN],
            "only_there": result.only_there[:SHOWN],
        }

        return done(peer=peer, faults=wrong[:SHOWN], **fields)

    return [
        web.get(PATH, totals),
        web.get(f"{PATH}/{{peer}}", pages),
        web.get(f"{PATH}/{{peer}}/comparison", comparison),
    ]


def own_link_routes(context: Context) -> list[web.RouteDef]:
    """Return the routes for other nodes that only the process with the receipts answers."""

    async def yours(request: web.Request) -> web.Response:
        return await _pages(context, asking_peer(request))

    return [web.get(OF_ASKER, yours)]


async def _pages(context: Context, peer: str) -> web.Response:
    pages = await context.receipt_log.pages(peer)
    return done(pages=[page.model_dump(mode="json") for page in pages])


async def _of_other(context: Context, node: PeerId, request_id: str) -> tuple[Page, ...]:
    """Ask another node for its chain with this one; raise `UnknownNode` or `PeerUnreachable`."""
    if node not in context.registry.catalog.held:
        raise UnknownNode(f"this node's registry does not contain {node}")
    seconds = context.settings.registry.ask_timeout
    try:
        status, body = await context.links.ask(
            node, OF_ASKER, request_id, within=seconds, at_most=MAX_ANSWER_BYTES
        )
    except (OSError, WorkerError) as error:
        raise PeerUnreachable(f"{node} did not answer within {seconds:g} s") from error
    if status == HTTPStatus.NOT_FOUND:
        raise PeerUnreachable(f"{node} keeps no receipts, because its version is older")
    payload: Any = None
    try:
        payload = orjson.loads(body) if status == HTTPStatus.OK else None
        return tuple(receipts.read(payload["pages"] if isinstance(payload, dict) else None))
    except (ValueError, KeyError) as error:
        raise PeerUnreachable(f"{node} gave no receipts") from error
