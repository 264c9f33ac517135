"""`/api/v0/host/info`: the machine that a node runs on. A question about another node is sent to that node, over the link."""

from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from node.faces import Context, Serving
from node.faces.errors import UnknownNode
from node.faces.openai import find_node
from node.faces.request_ids import ID
from node.faces.request_reader import done, json_answer, read_object, text_of
from node.observe.host import without_serials
from registry.errors import PeerUnreachable
from registry.records import PeerId
from router.errors import WorkerError

PATH = "/api/v0/host/info"
MAX_ANSWER_BYTES = 256 * 1024


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""

    async def info(request: web.Request) -> web.Response:
        given = await read_object(request, idle=context.settings.router.idle_timeout)
        node = find_node(context, text_of(given, "node_id") or context.peer)
        if node != context.peer:
            return done(**await _of_other(context, node, request[ID]))
        seen = await context.host.look()
        return done(**(seen if context.access.local(request) else without_serials(seen)))

    return [web.post(PATH, info)]


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes; they do not get serial numbers."""

    async def info(_: web.Request) -> web.Response:
        return json_answer(without_serials(await context.host.look()))

    return [web.get(PATH, info)]


async def _of_other(context: Context, node: PeerId, request_id: str) -> dict[str, Any]:
    """Ask another node for the description of its machine; raise `UnknownNode` or `PeerUnreachable`."""
    if node not in context.registry.catalog.held:
        raise UnknownNode(f"this node's registry does not contain {node}")
    seconds = context.settings.registry.ask_timeout
    try:
        status, said = await context.links.ask(
            node, PATH, request_id, within=seconds, at_most=MAX_ANSWER_BYTES
        )
    except (OSError, WorkerError) as error:
        raise PeerUnreachable(f"{node} did not answer within {seconds:g} s") from error
    return _checked(node, status, said)


def _checked(node: PeerId, status: int, said: bytes) -> dict[str, Any]:
    """Return only the expected parts of another node's answer; raise `PeerUnreachable` for an invalid one."""
    try:
        seen = orjson.loads(said) if status == HTTPStatus.OK else None
    except orjson.JSONDecodeError:
        seen = None
    if not isinstance(seen, dict):
        raise PeerUnreachable(f"{node} gave no answer")
    return {part: seen[part] for part in ("os", "cpu", "memory", "disk", "gpu") if part in seen}
