"""Node of real parts in a small world: memory mesh and store, everything else as it runs in production."""

import asyncio
import random
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp
import openai

from node import __version__
from node.agent import Agent
from node.assembly import exchange_load
from node.auth.access import Access, is_own_address
from node.auth.audit import AuditLog
from node.auth.books import ReceiptBook, UsageBook
from node.auth.key_ring import KeyRing
from node.auth.quotas import Quotas, limits_of_addresses
from node.auth.receipts import ReceiptLog
from node.auth.usage import UsageLog
from node.config.settings import KeylessAccess, NodeSettings, Settings
from node.config.web import WebSettings
from node.faces import Context, Listening
from node.faces.app import link_app, public_app
from node.faces.v1 import own_link_routes
from node.faces.v1.topology import Topology
from node.inspection import Inspection
from node.listeners import serve
from node.observe import logs
from node.observe.aggregate import Aggregate
from node.observe.host import Host
from node.observe.metrics import Metrics
from node.observe.samples import LoopLag
from node.peers.bootstrap import Bootstrap
from node.peers.followers import NodeEvents, follow_revoked
from node.world import NodeWorld
from registry.mesh.memory import MemoryMesh, MemoryNet, address_of
from registry.persistence import next_epoch
from registry.records import PeerId, Reach
from registry.service import Registry
from registry.settings import RegistrySettings
from registry.signing import Identity
from registry.store.memory import MemoryStore
from router import dialects, policies
from router.dispatch import Router
from router.peers.links import Links
from router.peers.pipes import MeshPeers, serve_pipe
from router.peers.replica_question import ReplicaQuestions
from router.peers.tls import certificate_of, server_context, trust
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard
from tests.openai_client import openai_client

TOKEN = "the-control-token-of-this-test-node"


def bearer(key):
    """Return the header that shows a key."""
    return {"Authorization": f"Bearer {key}"}


@dataclass
class World:
    """State that the nodes of one test share."""

    net: MemoryNet
    first: PeerId | None = None


@dataclass
class Running:
    """A node that serves. `http` is a client session at its public address, `link` the port of its listener for nodes."""

    context: Context
    identity: Identity
    store: MemoryStore
    http: aiohttp.ClientSession
    link: int

    async def register(self, worker, *, project="p", model="tiny", **fields):
        row = {"project": project, "model": model, "api": worker.url, **fields}
        async with self.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200, await response.text()


def settings_of(
    *, web: WebSettings | None = None, keyless: KeylessAccess = KeylessAccess.EVERYBODY, **router
) -> Settings:
    """Return settings whose times suit tests on one machine."""
    return Settings(
        node=NodeSettings(open=keyless),
        web=web or WebSettings(),
        registry=RegistrySettings(heartbeat=0.5, lease=3, suspicion=1, sync=0.3),
        router=RouterSettings(
            **{"connect_timeout": 3.0, "idle_timeout": 5.0, "ready_timeout": 0.0, **router}
        ),
    )


@asynccontextmanager
async def node(
    world: World, settings: Settings | None = None, *, dialled: bool = False
) -> AsyncIterator[Running]:
    """Run a node in a world until the block is left. Other nodes reach it over pipes, or at its address if `dialled`."""
    settings = settings or settings_of()
    identity = Identity(random.randbytes(32))
    store = MemoryStore()
    async with AsyncExitStack() as closing:
        registry = await _registry(world, identity, settings, store)
        public, link = (closing.enter_context(_listener()) for _ in "ab")
        context = _context(registry, identity, settings, store, public, link)
        closing.push_async_callback(context.links.close)
        await serve(public_app(context), public, closing, settings.web, context.metrics.connections)
        await _open_link(context, identity, link, closing)
        await registry.start(partial(serve_pipe, port=link.getsockname()[1]))
        closing.push_async_callback(registry.stop)
        await registry.publish_first_record(
            services=(),
            reach=Reach(
                # A node that announces loopback addresses only is dialled by nodes on the same machine.
                mesh=() if dialled else registry.mesh.addresses(),
                links=(context.listening.link,),
                certificate=certificate_of(identity),
            ),
            agent=f"modelvine/{__version__}",
            name=settings.node.name,
        )
        session = aiohttp.ClientSession(f"http://{context.listening.http}")
        await closing.enter_async_context(session)
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(run()) for run in (registry.run, context.inspection.run)]
            yield Running(context, identity, store, session, link.getsockname()[1])
            for task in work:
                task.cancel()


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    # As uvloop, on which nodes run, does: else each small write may wait 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _registry(
    world: World, identity: Identity, settings: Settings, store: MemoryStore
) -> Registry:
    bootstrap = (address_of(world.first),) if world.first else ()
    world.first = world.first or identity.peer
    return Registry(
        identity,
        settings.registry,
        store=store,
        mesh=MemoryMesh(identity.peer, world.net, bootstrap=bootstrap),
        epoch=await next_epoch(store, time.time()),
        now=time.monotonic,
        random=random.random,
    )


def _context(registry, identity, settings, store, public, link) -> Context:
    agent, metrics = Agent(registry, store), Metrics()
    trusted = map(PeerId, settings.node.trusted_issuers)
    keys = KeyRing(store, time.time, token=TOKEN, identity=identity, trusted=trusted)
    registry.on_change(follow_revoked(keys, registry))
    usage = UsageLog(UsageBook(time.time), store, identity.peer, days=35)
    receipts = ReceiptLog(ReceiptBook(time.time), store, identity, time.time, days=35)
    links = Links(
        identity=identity,
        peers=MeshPeers(registry.mesh, registry, timeout=1, now=time.monotonic),
        settings=settings.router,
        guard=SsrfGuard(
            own_ports=lambda: (int(s.getsockname()[1]) for s in (public, link)),
            is_own=is_own_address,
        ),
    )

    router = Router(
        NodeWorld(registry, agent, metrics, links),
        dialects.LazyDialects(links),
        policies.load(settings.router.policy),
        settings.router,
        time.monotonic,
        random=random.random,
        tasks=links.tasks,
        lingering=links.lingering,
        replica_asker=ReplicaQuestions(links, time.monotonic),
    )
    exchange_load(registry, router)
    node_events = NodeEvents(registry, time.time)
    registry.on_change(node_events.note_changed)
    loop_lag = LoopLag()
    return Context(
        peer=identity.peer,
        settings=settings,
        registry=registry,
        router=router,
        agent=agent,
        inspection=Inspection(agent, router, time.monotonic),
        access=Access(token=TOKEN, keys=keys, keyless=settings.node.open, settings=settings.web),
        keys=keys,
        quotas=Quotas(time.monotonic, time.time, limits_of_addresses(settings.web)),
        usage=usage.book,
        usage_log=usage,
        audit=AuditLog(store, identity.peer, time.time),
        receipts=receipts.book,
        receipt_log=receipts,
        node_events=node_events,
        metrics=metrics,
        loop_lag=loop_lag,
        aggregate=Aggregate(router, metrics, loop_lag, logs.recent()),
        loads=router,
        links=links,
        topology=Topology(registry, links),
        bootstrap=Bootstrap(store, registry.persistence, registry.mesh, configured=()),
        host=Host(),
        listening=Listening(http=_name(public), link=_name(link)),
        swarm_key="",
        started=time.monotonic(),
    )


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


async def _open_link(context, identity, listener, closing) -> None:
    tls = server_context(identity)
    met: set[bytes] = set()

    def meet(nodes) -> None:
        for peer in nodes:
            held = context.registry.catalog.held.get(peer)
            certificate = held.record.reach.certificate if held else b""
            if certificate and certificate not in met:
                met.add(certificate)
                trust(tls, certificate)

    context.registry.on_change(meet)
    routes = own_link_routes(context)
    app = link_app(context, context.registry.replica, context.keys, routes)
    limits, counts = context.settings.web, context.metrics.connections
    await serve(app, listener, closing, limits, counts, tls=tls)


async def until(holds, *, seconds=45.0):
    """Wait until a condition holds; raise `TimeoutError` if it does not in time."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 (whatever is waited for signals nobody)
            await asyncio.sleep(0.01)


@dataclass
class Pair:
    """Two nodes that have met."""

    one: Running
    two: Running

    async def knows(self, running: Running, name: str):
        """Wait until a node knows a replica of a model."""
        await until(lambda: name in running.context.registry.catalog.offers)

    async def offers(self, place: str, worker, **registered) -> Running:
        """Register a worker at the first node; return that node if `serving`, or the second, a hop away, if `asked`."""
        await self.one.register(worker, **registered)
        await self.knows(self.two, "tiny")
        return self.one if place == "serving" else self.two


def openai_at(running: Running, prefix: str = "/v1", *, timeout: float = 60) -> openai.AsyncOpenAI:
    """Return a client of OpenAI's own library for a node."""
    return openai_client(f"http://{running.context.listening.http}{prefix}", timeout=timeout)


async def told(call):
    """Return the status and the JSON body of an answer."""
    async with call as response:
        return response.status, await response.json()


async def raw(running: Running, sent: bytes) -> bytes:
    """Send bytes over a bare connection and return the answer to them."""
    host, port = running.context.listening.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            return head + await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()
