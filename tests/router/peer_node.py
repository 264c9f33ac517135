"""Stub of another node, as a forwarded request meets it: TLS, the router, one worker, and a minimal face."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web
from multidict import CIMultiDictProxy

from registry.mesh import Mesh, Pipe
from registry.mesh.memory import MemoryMesh, MemoryNet
from registry.records import PeerId, Reach
from registry.signing import Identity
from router.dialects.openai_http import create
from router.dispatch import Router
from router.errors import (
    AnswerBroken,
    NobodyServes,
    RouterError,
    UnknownModel,
    WorkerBusy,
    WorkerDied,
    WorkerFailed,
    WorkerRejected,
    WorkerStale,
)
from router.openai.body import read
from router.peers.links import Links
from router.peers.pipes import NoMesh, serve_pipe
from router.peers.tls import certificate_of, peer_of_certificate, server_context, trust
from router.policies.p2c import FewChoices
from router.requests import Kind, Pin, Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from router.workers import Workers
from router.world import LoneWorld
from tests.router.world import OWN, QUICK, own

THERE = Identity(bytes([7]) * 32)
STATUSES: Mapping[type[RouterError], int] = {
    WorkerDied: 502,
    WorkerFailed: 502,
    WorkerStale: 503,
    NobodyServes: 503,
    WorkerBusy: 429,
    UnknownModel: 404,
}
CODES: Mapping[type[RouterError], str] = {
    UnknownModel: "model_not_found",
    WorkerDied: "worker_died",
}


@dataclass(frozen=True, slots=True)
class OverMesh:
    """Peers with the given records, and pipes of a mesh."""

    mesh: Mesh
    reaches: Mapping[PeerId, Reach]
    through_relays: bool = False
    version: int | None = None

    def reach(self, peer: PeerId) -> Reach | None:
        """Return the known record of a peer."""
        return self.reaches.get(peer)

    async def open_pipe(self, peer: PeerId) -> Pipe:
        """Open a pipe within five seconds."""
        return await self.mesh.open_pipe(peer, timeout=5)

    async def connects_through_relay(self, _: PeerId) -> bool:
        """Return the configured answer."""
        return self.through_relays

    def is_cut_off(self, _: PeerId) -> bool:
        """Return False: no peer is cut off."""
        return False


@dataclass(slots=True)
class PeerNode:
    """A node that serves `workers`, at `port` of loopback over HTTPS, and over pipes."""

    identity: Identity
    workers: Workers
    router: Router
    port: int = 0
    received: list[CIMultiDictProxy[str]] = field(default_factory=list)
    callers: list[PeerId] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)
    """Headers that the node adds to its answers."""
    lacks: tuple[str, ...] = ()
    """Paths that the node's version does not know."""
    murmurs: bool = False
    """Whether answers begin with comments, sent until the worker's first byte."""

    @property
    def reach(self) -> Reach:
        """The node's addresses and certificate, as in its record."""
        return Reach(links=(f"127.0.0.1:{self.port}",), certificate=certificate_of(self.identity))

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer a request that another node forwarded."""
        assert http.transport is not None
        der = http.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.callers.append(peer_of_certificate(der))
        self.received.append(http.headers)
        body = await http.read()
        if http.path in self.lacks:
            return web.json_response({"error": {"code": "unknown_path"}}, status=404)
        parsed = read(body, http.content_type)
        kind = Kind(http.path.removeprefix("/v1/"))
        pin = Pin(project=http.headers["x-modelvine-project"], cid=http.headers["x-modelvine-cid"])
        request = Request(
            http.headers["x-request-id"], kind, parsed.model, body, http.headers["Content-Type"],
            stream=parsed.stream, pin=pin, own_only="x-modelvine-hop" in http.headers,
        )  # fmt: skip
        if self.murmurs:
            return await self._murmured(http, request)
        try:
            return await self._answered(http, request)
        except WorkerRejected as error:
            return web.Response(status=error.status, body=error.body)
        except RouterError as error:
            status = STATUSES.get(type(error), 504)
            retry = {"Retry-After": str(error.retry_after)} if isinstance(error, WorkerBusy) else {}
            code = CODES.get(type(error), "x")
            return web.json_response({"error": {"code": code}}, status=status, headers=retry)

    async def _murmured(self, http: web.Request, request: Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        murmuring = asyncio.ensure_future(_murmur(response))
        try:
            async with self.router.answer(request) as routed:
                murmuring.cancel()
                await response.write(routed.answer.first)
                async for chunk in routed.answer.rest:
                    await response.write(chunk)
        except RouterError:
            await response.write(b'data: {"error":{"message":"no"}}\n\n')
        finally:
            murmuring.cancel()
        await response.write_eof()
        return response

    async def _answered(self, http: web.Request, request: Request) -> web.StreamResponse:
        async with self.router.answer(request) as routed:
            answer = routed.answer
            response = web.StreamResponse(
                headers={"Content-Type": answer.content_type, **self.says}
            )
            response.content_length = answer.length
            await response.prepare(http)
            await response.write(answer.first)
            try:
                async for chunk in answer.rest:
                    await response.write(chunk)
            except AnswerBroken:
                await response.write(b'data: {"error":{"message":"broken"}}\n\n')
            await response.write_eof()
            return response


async def _murmur(response: web.StreamResponse) -> None:
    while True:
        await response.write(b": wait\n\n")
        await asyncio.sleep(0.02)


@asynccontextmanager
async def peer_node(
    *candidates: Candidate, identity: Identity = THERE, settings: RouterSettings = QUICK
) -> AsyncIterator[PeerNode]:
    """Run a node that trusts `OWN`."""
    links = Links(
        identity=identity,
        peers=NoMesh(),
        settings=settings,
    )
    workers = Workers.of([c.worker for c in candidates if c.worker is not None])
    node = PeerNode(identity, workers, router_of(links, workers, identity))
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", node.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    context = server_context(identity)
    trust(context, certificate_of(OWN))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    node.port = runner.addresses[0][1]
    try:
        yield node
    finally:
        await runner.cleanup()
        await links.close()


def router_of(links: Links, workers: Workers, identity: Identity) -> Router:
    """Return a router that knows only its own workers."""
    return Router(
        LoneWorld(identity.peer, workers),
        {"openai_http": create(links)},
        FewChoices(),
        links.settings,
        lambda: 0.0,
        random=lambda: 0.5,
        tasks=links.tasks,
        lingering=links.lingering,
    )


@asynccontextmanager
async def way_to(
    node: PeerNode,
    *,
    direct: bool = True,
    relayed: bool = False,
    settings: RouterSettings = QUICK,
    reach: Mapping[PeerId, Reach] | None = None,
) -> AsyncIterator[Links]:
    """Yield links from `OWN` to `node`: at its address, or only over a pipe of a memory mesh."""

    async def answer(_: PeerId, question: bytes) -> bytes:
        return question

    async def refuse(pipe: Pipe) -> None:
        await pipe.reset()

    net = MemoryNet()
    here, there = MemoryMesh(OWN.peer, net), MemoryMesh(node.identity.peer, net)
    await here.start(answer, refuse)
    await there.start(answer, partial(serve_pipe, port=node.port))
    reaches = dict(reach or {})
    reaches.setdefault(OWN.peer, Reach(links=("127.0.0.1:1",)))
    node_reach = node.reach if direct else Reach(certificate=node.reach.certificate)
    reaches.setdefault(node.identity.peer, node_reach)
    links = Links(
        identity=OWN,
        peers=OverMesh(here, reaches, through_relays=relayed),
        settings=settings,
    )
    try:
        yield links
    finally:
        await links.close()
        await here.stop()
        await there.stop()


def at(node: PeerNode) -> Candidate:
    """Return the node's replica as a candidate."""
    return Candidate(node.identity.peer, own("").service)
