"""Composition root of a helper: all parts are built here, from the first process's first message; nothing is started."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from node.auth.access import Access, is_own_address
from node.auth.books import ReceiptBook, UsageBook
from node.auth.key_table import KeyTable
from node.auth.keys import ApiKey
from node.auth.quotas import Quotas, limits_of_addresses
from node.config.settings import Settings
from node.faces import Serving
from node.observe.host import Host
from node.observe.measurements import measurements_of
from node.observe.metrics import Metrics
from node.observe.samples import LoopLag
from node.observe.tracing import SpanExporter, exporter_of, tracer_of
from node.peers.followers import follow_links, follow_loads
from node.peers.reach import host_of, own_ports
from node.processes.forward import DescriptorSender, borrow_pipe
from node.processes.protocol import (
    Hello,
    KeysHeld,
    LoadReport,
    QuotaStandings,
    Sender,
    ToFirst,
)
from node.processes.world import EvidenceReporter, SlotClient, WorldView
from registry.catalog import Catalog
from registry.members.liveness import Presence
from registry.mesh import Pipe
from registry.records import Load, PeerId, Reach, Service
from registry.signing import Identity
from router import dialects, policies
from router.dispatch import Router
from router.outcome import Outcome
from router.peers.links import Links
from router.peers.replica_question import ReplicaQuestions
from router.ssrf_guard import SsrfGuard, networks_of
from router.workers import Worker, Workers

Changed = Callable[[Iterable[PeerId]], None]


class HelperKeys:
    """The keys that the first process has sent."""

    def __init__(self) -> None:
        self.table = KeyTable()

    def find(self, secret: str) -> ApiKey | None:
        """Return the presented key, ended or not; raise `GrantRefused` for a grant that is not valid here."""
        return self.table.find(secret)

    def granted(self, text: str, holder: PeerId | None = None) -> ApiKey:
        """Return the key that a grant presented by `holder` stands for, ended or not; raise `GrantRefused`."""
        return self.table.granted(text, holder)


@dataclass(frozen=True, slots=True)
class HelperParts:
    """A helper's parts, wired but not started."""

    identity: Identity
    settings: Settings
    view: WorldView
    links: Links
    slots: SlotClient
    router: Router
    metrics: Metrics
    exporter: SpanExporter | None
    loop_lag: LoopLag
    keys: HelperKeys
    access: Access
    quotas: Quotas
    usage: UsageBook
    receipts: ReceiptBook
    listeners: list[Changed]
    """Functions that are called with the nodes whose record or presence has changed."""
    beside: dict[Service, int]
    """Requests of other processes in flight at each worker of this machine."""

    def serving(self) -> Serving:
        """Return the parts that a helper's faces use."""
        return Serving(
            peer=self.identity.peer,
            settings=self.settings,
            router=self.router,
            metrics=self.metrics,
            host=Host(),
            access=self.access,
            quotas=self.quotas,
            usage=self.usage,
            receipts=self.receipts,
            loads=self,
            tracer=tracer_of(
                self.exporter,
                self.settings.node,
                self.identity.peer,
                now=time.monotonic,
                wall=time.time,
                random=random.random,
            ),
        )

    def take_over(self, message: KeysHeld | QuotaStandings) -> None:
        """Take over the keys, or the standings of their quotas."""
        if isinstance(message, KeysHeld):
            self.keys.table = KeyTable(message.keys, message.rules)
            return
        for standing in message.standings:
            self.quotas.learn(standing)

    def load_of(self, worker: Worker) -> Load:
        """Return the load that all processes of this node put on one worker of this machine."""
        load = self.router.load_of(worker)
        return replace(load, in_flight=load.in_flight + self.beside.get(worker.service, 0))

    def load_report(self, number: int) -> LoadReport:
        """Return the state of this process, without its borrowed slots, which the lender counts."""
        now = time.monotonic()
        return LoadReport(
            number=number,
            in_flight=self.router.in_flight.total() - sum(self.router.borrowed_slots().values()),
            loads=tuple(self._loads()),
            counts=replace(self.metrics.counts(), routed=tuple(self.router.events.items())),
            loop_lag=self.loop_lag.lag.worst(now),
            loop_busy=self.loop_lag.busy.worst(now),
        )

    def _loads(self) -> Iterable[tuple[Service, Load]]:
        borrowed = self.router.borrowed_slots()
        for service, load in self.router.busy_loads().items():
            yield service, replace(load, in_flight=load.in_flight - borrowed.get(service, 0))


@dataclass(frozen=True, slots=True)
class HelperWorld:
    """World of a helper's router: it knows what the first process has sent, and reports to it what attempts show."""

    view: WorldView
    metrics: Metrics
    evidence: EvidenceReporter

    @property
    def own(self) -> PeerId:
        """The node whose helper this is."""
        return self.evidence.own

    @property
    def catalog(self) -> Catalog:
        """The newest record of every node."""
        return self.view.catalog

    @property
    def workers(self) -> Workers:
        """The workers of this machine."""
        return self.view.workers

    @property
    def draining(self) -> bool:
        """Whether the node takes no new requests."""
        return self.view.draining()

    def presence_of(self, node: PeerId) -> Presence:
        """Return whether a node is alive and reachable from here."""
        return self.view.presence(node)

    def absence_of(self, node: PeerId) -> float:  # noqa: ARG002 (only the first process knows)
        """Return 0: to a helper, a node that is gone has only just gone."""
        return 0.0

    def is_silent(self, node: PeerId) -> bool:
        """Return whether a node left the first process's probe unanswered."""
        return self.view.is_silent(node)

    def request_probe(self, node: PeerId) -> None:
        """Ask the first process to probe a node."""
        self.evidence.request_probe(node)

    def observe(self, outcome: Outcome) -> None:
        """Count an attempt's outcome, and report what it shows to the first process."""
        self.metrics.attempt(outcome)
        self.evidence.observe(outcome)


@dataclass(frozen=True, slots=True)
class HelperPeers:
    """Peers of a helper: the first process has the mesh, and opens their pipes."""

    view: WorldView
    doors: DescriptorSender
    slots: SlotClient

    @property
    def version(self) -> int:
        """The digest of the catalog."""
        return self.view.catalog.total

    def reach(self, peer: PeerId) -> Reach | None:
        """Return a peer's published addresses and certificate, `None` for an unknown peer."""
        return self.view.catalog.reach_of(peer)

    async def open_pipe(self, peer: PeerId) -> Pipe:
        """Ask the first process to open a pipe."""
        return await borrow_pipe(self.doors, peer)

    async def connects_through_relay(self, peer: PeerId) -> bool:
        """Ask the first process to connect to a peer, and return whether that is through a relay."""
        return await self.slots.connects_through_relay(peer)

    def is_cut_off(self, peer: PeerId) -> bool:
        """Return whether a peer is alive, but not reachable from the first process."""
        return self.view.presence(peer) is Presence.UNREACHABLE


def assemble(welcome: Hello, doors: DescriptorSender, first: Sender[ToFirst]) -> HelperParts:
    """Build a helper's parts."""
    identity, settings = Identity(welcome.seed), welcome.settings
    view = WorldView(identity.peer, settings.registry)
    slots = SlotClient(first)
    links = Links(
        identity=identity,
        peers=HelperPeers(view, doors, slots),
        settings=settings.router,
        guard=_ssrf_guard(welcome, view, identity.peer),
        grant=welcome.grant,
    )
    metrics = Metrics(measurements_of(settings.node))
    evidence = EvidenceReporter(identity.peer, first, time.monotonic)

    router = Router(
        HelperWorld(view, metrics, evidence),
        dialects.LazyDialects(links),
        policies.load(settings.router.policy),
        settings.router,
        time.monotonic,
        random=random.random,
        tasks=links.tasks,
        lingering=links.lingering,
        replica_asker=ReplicaQuestions(links, time.monotonic),
        lender=slots,
    )
    listeners: list[Changed] = [
        follow_links(links, view, forgive=lambda _: None),
        follow_loads(router, view.presence),
    ]
    keys = HelperKeys()
    access = Access(
        token="",
        names=map(host_of, settings.mesh.announce),
        settings=settings.web,
        keys=keys,
        keyless=settings.node.open,
    )
    return HelperParts(
        identity=identity,
        settings=settings,
        view=view,
        links=links,
        slots=slots,
        router=router,
        metrics=metrics,
        exporter=exporter_of(settings.node, identity.peer, metrics.spans),
        loop_lag=LoopLag(),
        keys=keys,
        access=access,
        quotas=Quotas(time.monotonic, time.time, limits_of_addresses(settings.web)),
        usage=UsageBook(time.time),
        receipts=ReceiptBook(time.time),
        listeners=listeners,
        beside={},
    )


def _ssrf_guard(welcome: Hello, view: WorldView, own_peer: PeerId) -> SsrfGuard:
    settings = welcome.settings

    def ports() -> frozenset[int]:
        reach = view.catalog.reach_of(own_peer)
        mesh = (*settings.mesh.listen, *(reach.mesh if reach else ()))
        return own_ports((welcome.http, welcome.link), mesh)

    return SsrfGuard(is_own_address, ports, networks_of(settings.router.worker_networks))
