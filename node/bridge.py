"""Bridge between one client protocol and one worker, without a mesh.

The face, the router and the dialect are those of a node, so a bridge waits, retries, queues and breaks off as a node does.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module

import uvloop
from aiohttp import web

from node.auth.access import Access, is_own_address
from node.auth.books import ReceiptBook, UsageBook
from node.auth.quotas import Quotas, limits_of_addresses
from node.config.addresses import HostPort
from node.config.settings import KeylessAccess, Settings
from node.errors import CommandFailed, WrongUsage
from node.faces import Serving, grpc
from node.faces.app import application
from node.faces.errors import FaceError
from node.faces.model_list import listing_routes
from node.faces.v0.registration import read_worker
from node.inspection import WATCH
from node.listeners import Listener, bind, listening_address, serve
from node.observe.host import Host
from node.observe.metrics import Metrics
from node.runtime import Signals
from registry.catalog import Offer
from registry.records import Service
from registry.signing import Identity
from router import dialects, policies
from router.dispatch import Router
from router.errors import RouterError
from router.peers.links import Links
from router.peers.pipes import NoMesh
from router.ssrf_guard import SsrfGuard, networks_of
from router.translate.verbatim import protocol_bit
from router.workers import Worker, Workers
from router.world import LoneWorld

log = logging.getLogger("modelvine.bridge")

PROJECT = "bridge"

HTTP: Mapping[str, str] = {
    "anthropic": "anthropic",
    "llamastack": "llama_stack",
    "openai": "openai",
    "responses": "responses",
    "tgi": "tgi",
}
"""Protocols over HTTP, and the faces that speak them. Those over gRPC are `grpc.NAMES`."""

_LISTING = frozenset({"anthropic", "openai", "responses"})
"""Protocols whose clients may request a list of models."""

NAMES = tuple(sorted((*HTTP, *grpc.NAMES)))
"""Every protocol that a bridge can speak."""

# Polled, as in `node.run`: an event on the path of every request would cost every request.
_DRAIN_POLL = 0.05


@dataclass(frozen=True, slots=True)
class BridgePlan:
    """What to bridge: the protocol that clients speak, the address to listen on, and the upstream with its models.

    Without `models`, all that the upstream lists are served. The first is the default of clients that name none.
    """

    dialect: str
    upstream: str
    place: HostPort
    models: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None


def run(plan: BridgePlan, settings: Settings, ready: Callable[[str], None]) -> int:
    """Bridge until a signal comes; return the exit code. `ready` is called with the ready line once it serves.

    Raise `WrongUsage` for an upstream that cannot be used, or `CommandFailed`.
    """
    try:
        uvloop.run(_run_bridge(plan, settings, ready))
    except FaceError as error:
        raise WrongUsage(f"--upstream {plan.upstream}: {error}") from error
    except (RouterError, OSError) as error:
        raise CommandFailed(str(error)) from error
    return 0


async def _run_bridge(plan: BridgePlan, settings: Settings, ready: Callable[[str], None]) -> None:
    signals = Signals()
    async with AsyncExitStack() as closing:
        bridge = Bridge(plan, settings)
        address = await bridge.open(closing)
        models = ",".join(bridge.models)
        ready(f"ready {plan.dialect}={address} upstream={plan.upstream} models={models}")
        await signals.first.wait()
        log.info("finishing %d requests", bridge.in_flight)
        await bridge.stop_accepting()
        ends = time.monotonic() + settings.node.drain_timeout
        while bridge.in_flight and not signals.second.is_set() and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL)


class Bridge:
    """One face over one upstream. Lives on one event loop."""

    def __init__(self, plan: BridgePlan, settings: Settings) -> None:
        self._plan = plan
        self._settings = settings
        networks = networks_of(settings.router.worker_networks)
        self._guard = SsrfGuard(is_own_address, lambda: (plan.place.port,), networks)
        identity = Identity(secrets.token_bytes(32))
        self._links = Links(
            identity=identity,
            peers=NoMesh(),
            settings=settings.router,
            guard=self._guard,
        )
        self._world = LoneWorld(identity.peer)
        self._router = self._routing()
        self._peer = identity.peer
        self._usage = UsageBook(time.time)
        self._listener: Listener | None = None
        self._leaving = asyncio.Event()

    @property
    def models(self) -> Sequence[str]:
        """The models that are served; the first is the default."""
        return [worker.service.model for worker in self._world.workers]

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self._router.in_flight.total()

    async def open(self, closing: AsyncExitStack) -> HostPort:
        """Query the upstream's models and open the face until `closing` closes; return the address on which it listens.

        Raise `OSError`, `FaceError` or `RouterError` with a message for the operator.
        """
        closing.push_async_callback(self._links.close)
        self._world.workers = Workers.of(await self._find_workers())
        if not await self._probe_upstream():
            upstream = self._plan.upstream.partition("?")[0]
            reason = await dialects.explain_silence(
                self._router.dialects, next(iter(self._world.workers))
            )
            log.warning("no answer from %s: %s; requests fail until it comes", upstream, reason)
        self._links.tasks.spawn(self._watch())
        context = self._serving()
        plan = self._plan
        if plan.dialect in grpc.NAMES:
            return await grpc.open_face(plan.dialect, context, plan.place, closing, self._leaving)
        face = import_module(f"node.faces.{HTTP[plan.dialect]}")
        routes = face.bridging_routes if plan.dialect == "tgi" else face.asking_routes
        [listener] = map(closing.enter_context, bind(plan.place, "--listen"))
        listed = self._listing_routes() if plan.dialect in _LISTING else []
        limits, counts = self._settings.web, context.metrics.connections
        app = application(
            [*routes(context), *listed], context.access.admit, leaving=self._leaving.is_set
        )
        self._listener = await serve(app, listener, closing, limits, counts)
        return listening_address(listener)

    async def stop_accepting(self) -> None:
        """Accept no more connections, and close the others with their next answer: callers would keep coming."""
        self._leaving.set()
        if self._listener is not None:
            await self._listener.stop_accepting()

    async def _probe_upstream(self) -> bool:
        """Return whether the upstream answers a small probe: its last answer decides whether callers wait while it is away."""
        with suppress(RouterError):
            return await self._router.check_alive(next(iter(self._world.workers)))
        return False

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            # A bridge does not report usage, so the counts are discarded.
            self._usage.take()
            await self._probe_upstream()

    def _listing_routes(self) -> list[web.RouteDef]:
        offers = {w.service.model: (Offer(self._peer, w.service),) for w in self._world.workers}
        return listing_routes(
            lambda: (o for some in offers.values() for o in some), lambda name: offers.get(name, ())
        )

    async def _find_workers(self) -> list[Worker]:
        """Return a worker for each model of the upstream; raise `OSError` if it has none."""
        plan = self._plan
        fields = {"model": "upstream", "api": plan.upstream, "headers": dict(plan.headers or {})}
        worker = read_worker(PROJECT, fields, self._guard)
        names = plan.models
        if not names:
            described = await self._router.describe(worker)
            names = tuple(model.name for model in described.models) if described else ()
        if not names:
            raise OSError(
                f"{plan.upstream} lists no models: start it first, or name one with --model"
            )
        abilities = protocol_bit(worker.dialect)
        return [
            replace(worker, service=Service(PROJECT, name, abilities=abilities)) for name in names
        ]

    def _serving(self) -> Serving:
        faces = self._settings.faces.model_copy(update={"default_model": self.models[0]})
        return Serving(
            peer=self._peer,
            settings=self._settings.model_copy(update={"faces": faces}),
            router=self._router,
            metrics=Metrics(),
            host=Host(),
            access=Access(token="", settings=self._settings.web, keyless=KeylessAccess.EVERYBODY),
            quotas=Quotas(time.monotonic, time.time, limits_of_addresses(self._settings.web)),
            usage=self._usage,
            receipts=ReceiptBook(time.time),
            loads=self._router,
        )

    def _routing(self) -> Router:
        settings = self._settings.router
        return Router(
            self._world,
            dialects.LazyDialects(self._links),
            policies.load(settings.policy),
            settings,
            time.monotonic,
            random=random.random,
            tasks=self._links.tasks,
        )
