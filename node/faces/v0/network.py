"""`/api/v0` on the network: this node's identity, the nodes it knows, its connections, its bootstrap addresses, and its machine.

A question about another node's machine is sent to that node, over the link.
"""

from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from node import __version__
from node.faces import Context, Serving
from node.faces.errors import UnknownNode, WrongParameter
from node.faces.model_list import LIVE
from node.faces.openai import find_node
from node.faces.request_ids import ID
from node.faces.request_reader import done, json_answer, read_object, text_of
from node.observe.host import without_serials
from node.peers.bootstrap import peer_at
from registry.errors import PeerUnreachable
from registry.mesh import PeerConnection
from registry.records import PeerId, Standing
from router.errors import WorkerError

PROTOCOL = "modelvine/1"


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    return [*_machine(context), *_identities(context), *_connections(context), *_bootstrap(context)]


def _identities(context: Context) -> list[web.RouteDef]:
    registry = context.registry

    async def own_id(_: web.Request) -> web.Response:
        agent = f"modelvine/{__version__}"
        spoken = await registry.mesh.protocols(context.peer)
        return done(**_identity(context.peer, agent, registry.mesh.addresses(), spoken))

    async def peer(request: web.Request) -> web.Response:
        fields = await read_object(request, idle=context.settings.router.idle_timeout)
        node = find_node(context, text_of(fields, "node_id"))
        if node == context.peer:
            return await own_id(request)
        held = registry.catalog.held.get(node)
        if held is None:
            raise UnknownNode(f"this node's registry does not contain {node}")
        spoken = await registry.mesh.protocols(node)
        return done(**_identity(node, held.record.agent, held.record.reach.mesh, spoken))

    async def peers(_: web.Request) -> web.Response:
        return done(data=[n for n in registry.catalog.held if registry.presence(n) in LIVE])

    async def discovered(_: web.Request) -> web.Response:
        discovered_peers = (
            node
            for node, signed in registry.catalog.held.items()
            if node != context.peer and signed.record.standing is not Standing.LEFT
        )
        return done(data=[*discovered_peers])

    return [
        web.get("/api/v0/id", own_id),
        web.get("/api/v0/peers", peers),
        web.post("/api/v0/peer", peer),
        web.get("/api/v0/rendezvous/peers", discovered),
    ]


def _identity(
    node: PeerId, agent: str, addresses: tuple[str, ...], protocols: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "peer_id": node,
        "protocol_version": PROTOCOL,
        "agent_version": agent,
        "addresses": list(addresses),
        "protocols": list(protocols),
    }


def _connections(context: Context) -> list[web.RouteDef]:
    mesh, idle = context.registry.mesh, context.settings.router.idle_timeout

    async def swarm_peers(_: web.Request) -> web.Response:
        return json_answer([_connection(connection) for connection in mesh.connections()])

    async def swarm_addresses(_: web.Request) -> web.Response:
        return json_answer([{"peer": c.peer, "addrs": [c.address]} for c in mesh.connections()])

    async def pubsub_peers(_: web.Request) -> web.Response:
        return json_answer([connection.peer for connection in mesh.connections()])

    async def connect(request: web.Request) -> web.Response:
        context.access.check_change(request)
        address = _address(await read_object(request, idle=idle))
        await mesh.connect(address, timeout=context.settings.mesh.dial_timeout)
        await context.audited(request, "connect", address)
        return done()

    async def disconnect(request: web.Request) -> web.Response:
        context.access.check_change(request)
        peer = _peer_of(_address(await read_object(request, idle=idle)))
        if all(connection.peer != peer for connection in mesh.connections()):
            raise WrongParameter(f"this node is not connected to {peer}", param="node_addr")
        await mesh.disconnect(peer)
        await context.audited(request, "disconnect", peer)
        return done()

    return [
        web.get("/api/v0/swarm/peers", swarm_peers),
        web.get("/api/v0/swarm/addrs", swarm_addresses),
        web.get("/api/v0/pubsub/peers", pubsub_peers),
        web.post("/api/v0/swarm/connect", connect),
        web.post("/api/v0/swarm/disconnect", disconnect),
    ]


def _connection(connection: PeerConnection) -> dict[str, Any]:
    return {
        "id": connection.peer,
        "peer": connection.peer,
        "addr": connection.address,
        # Clients of this interface read `0s` as unmeasured.
        "latency": f"{connection.round_trip * 1000:.3g}ms" if connection.round_trip else "0s",
        "direction": connection.direction,
    }


def _bootstrap(context: Context) -> list[web.RouteDef]:
    bootstrap, idle = context.bootstrap, context.settings.router.idle_timeout

    async def listing(_: web.Request) -> web.Response:
        return done(data=list(bootstrap.addresses))

    async def add(request: web.Request) -> web.Response:
        context.access.check_change(request)
        address = _address(await read_object(request, idle=idle))
        await bootstrap.add(address)
        await context.audited(request, "add bootstrap address", address)
        return done()

    async def remove(request: web.Request) -> web.Response:
        context.access.check_change(request)
        address = _address(await read_object(request, idle=idle))
        existed = await bootstrap.remove(address)
        await context.audited(request, "remove bootstrap address", address)
        return done("ok" if existed else "not existed")

    return [
        web.get("/api/v0/bootstrap/list", listing),
        web.post("/api/v0/bootstrap/add", add),
        web.post("/api/v0/bootstrap/rm", remove),
    ]


def _address(fields: dict[str, Any]) -> str:
    """Return `node_addr`; raise `WrongParameter` for an address that cannot be dialled, or `Unparseable`."""
    address = text_of(fields, "node_addr")
    _peer_of(address)
    return address


def _peer_of(address: str) -> PeerId:
    try:
        return peer_at(address)
    except ValueError as error:
        raise WrongParameter(str(error), param="node_addr") from error


HOST_PATH = "/api/v0/host/info"
MAX_ANSWER_BYTES = 256 * 1024


def _machine(context: Context) -> list[web.RouteDef]:
    async def info(request: web.Request) -> web.Response:
        given = await read_object(request, idle=context.settings.router.idle_timeout)
        node = find_node(context, text_of(given, "node_id") or context.peer)
        if node != context.peer:
            return done(**await _of_other(context, node, request[ID]))
        seen = await context.host.facts()
        return done(**(seen if context.access.is_own_user(request) else without_serials(seen)))

    return [web.post(HOST_PATH, info)]


def link_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for other nodes; they do not get serial numbers."""

    async def info(_: web.Request) -> web.Response:
        return json_answer(without_serials(await context.host.facts()))

    return [web.get(HOST_PATH, info)]


async def _of_other(context: Context, node: PeerId, request_id: str) -> dict[str, Any]:
    """Ask another node for the description of its machine; raise `UnknownNode` or `PeerUnreachable`."""
    if node not in context.registry.catalog.held:
        raise UnknownNode(f"this node's registry does not contain {node}")
    seconds = context.settings.registry.ask_timeout
    try:
        status, body = await context.links.ask(
            node, HOST_PATH, request_id, within=seconds, at_most=MAX_ANSWER_BYTES
        )
    except (OSError, WorkerError) as error:
        raise PeerUnreachable(f"{node} did not answer within {seconds:g} s") from error
    return _checked(node, status, body)


def _checked(node: PeerId, status: int, body: bytes) -> dict[str, Any]:
    """Return only the expected parts of another node's answer; raise `PeerUnreachable` for an invalid one."""
    try:
        facts = orjson.loads(body) if status == HTTPStatus.OK else None
    except orjson.JSONDecodeError:
        facts = None
    if not isinstance(facts, dict):
        raise PeerUnreachable(f"{node} gave no answer")
    return {part: facts[part] for part in ("os", "cpu", "memory", "disk", "gpu") if part in facts}
