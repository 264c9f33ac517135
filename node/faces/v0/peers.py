"""`/api/v0` on the network: this node's identity, the nodes it knows, its connections, and its bootstrap addresses."""

from typing import Any

from aiohttp import web

from node import __version__
from node.faces import Context
from node.faces.errors import UnknownNode, WrongParameter
from node.faces.model_list import LIVE
from node.faces.openai import find_node
from node.faces.request_reader import done, json_answer, read_object, text_of
from node.peers.bootstrap import peer_at
from registry.mesh import PeerConnection
from registry.records import PeerId, Standing

PROTOCOL = "modelvine/1"


def routes(context: Context) -> list[web.RouteDef]:
    """Return the routes of this face."""
    return [*_identities(context), *_connections(context), *_bootstrap(context)]


def _identities(context: Context) -> list[web.RouteDef]:
    registry = context.registry

    async def own_id(_: web.Request) -> web.Response:
        agent = f"modelvine/{__version__}"
        spoken = await registry.mesh.protocols(context.peer)
        return done(**_identity(context.peer, agent, registry.mesh.addresses(), spoken))

    async def peer(request: web.Request) -> web.Response:
        given = await read_object(request, idle=context.settings.router.idle_timeout)
        node = find_node(context, text_of(given, "node_id"))
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
        found = (
            node
            for node, signed in registry.catalog.held.items()
            if node != context.peer and signed.record.standing is not Standing.LEFT
        )
        return done(data=[*found])

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
        context.access.change(request)
        address = _address(await read_object(request, idle=idle))
        await mesh.connect(address, timeout=context.settings.mesh.dial_timeout)
        await context.audited(request, "connect", address)
        return done()

    async def disconnect(request: web.Request) -> web.Response:
        context.access.change(request)
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
        context.access.change(request)
        address = _address(await read_object(request, idle=idle))
        await bootstrap.add(address)
        await context.audited(request, "add bootstrap address", address)
        return done()

    async def remove(request: web.Request) -> web.Response:
        context.access.change(request)
        address = _address(await read_object(request, idle=idle))
        existed = await bootstrap.remove(address)
        await context.audited(request, "remove bootstrap address", address)
        return done("ok" if existed else "not existed")

    return [
        web.get("/api/v0/bootstrap/list", listing),
        web.post("/api/v0/bootstrap/add", add),
        web.post("/api/v0/bootstrap/rm", remove),
    ]


def _address(given: dict[str, Any]) -> str:
    """Return `node_addr`; raise `WrongParameter` for an address that cannot be dialled, or `Unparseable`."""
    address = text_of(given, "node_addr")
    _peer_of(address)
    return address


def _peer_of(address: str) -> PeerId:
    try:
        return peer_at(address)
    except ValueError as error:
        raise WrongParameter(str(error), param="node_addr") from error
