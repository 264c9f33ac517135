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
        context.access.change(request)
        found = await context.receipt_log.totals()
        rows = [
            {"peer": peer, "side": side, "answers": answers, "tokens": tokens}
            for peer, sides in sorted(found.items())
            for side, (answers, tokens) in sorted(sides.items())
        ]
        return done(receipts=rows)

    async def pages(request: web.Request) -> web.Response:
        context.access.change(request)
        return await _pages(context, request.match_info["peer"])

    async def comparison(request: web.Request) -> web.Response:
        context.access.change(request)
        peer = PeerId(request.match_info["peer"])
        ours = await context.receipt_log.pages(peer)
        theirs = await _of_other(context, peer, request[ID])
        wrong = [
            *(f"here: {fault}" for fault in faults(ours, node=context.peer, peer=peer)),
            *(f"there: {fault}" for fault in faults(theirs, node=peer, peer=context.peer)),
        ]
        found = compare(ours, theirs)
        told: dict[str, Any] = {
            "answers": found.answers,
            "tokens": found.tokens,
            "counts": {
                "differ": len(found.differ),
                "only_here": len(found.only_here),
                "only_there": len(found.only_there),
            },
            "differ": [asdict(one) for one in found.differ[:SHOWN]],
            "only_here": found.only_here[:SHOWN],
            "only_there": found.only_there[:SHOWN],
        }

        return done(peer=peer, faults=wrong[:SHOWN], **told)

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
    found = await context.receipt_log.pages(peer)
    return done(pages=[page.model_dump(mode="json") for page in found])


async def _of_other(context: Context, node: PeerId, request_id: str) -> tuple[Page, ...]:
    """Ask another node for its chain with this one; raise `UnknownNode` or `PeerUnreachable`."""
    if node not in context.registry.catalog.held:
        raise UnknownNode(f"this node's registry does not contain {node}")
    seconds = context.settings.registry.ask_timeout
    try:
        status, said = await context.links.ask(
            node, OF_ASKER, request_id, within=seconds, at_most=MAX_ANSWER_BYTES
        )
    except (OSError, WorkerError) as error:
        raise PeerUnreachable(f"{node} did not answer within {seconds:g} s") from error
    if status == HTTPStatus.NOT_FOUND:
        raise PeerUnreachable(f"{node} keeps no receipts, because its version is older")
    told: Any = None
    try:
        told = orjson.loads(said) if status == HTTPStatus.OK else None
        return tuple(receipts.read(told["pages"] if isinstance(told, dict) else None))
    except (ValueError, KeyError) as error:
        raise PeerUnreachable(f"{node} gave no receipts") from error
