"""Faces: the protocols that clients speak to a node. One file per face, found by its module name.

A face module defines `routes(context: Context) -> list[web.RouteDef]`, or `asking_routes(context: Serving)` for calls of models,
which any process of the node answers. It reads bytes into a `Request` or a use case and writes the result, with its own encoder
(`encoder`) where its clients do not speak OpenAI's protocol. `link_routes(context)`, if defined, returns the routes for other
nodes at the link listener. `in_own_form`, if defined, turns a refusal from OpenAI's form into the face's. `ENDPOINTS` states,
for a third party's protocol, what becomes of each of its RPCs or endpoints, for docs/dialects.md. The other modules of this
folder serve the faces.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from node.config.addresses import HostPort
from node.config.settings import Settings
from node.faces.pump import PumpQueue
from registry.clock import Clock
from registry.records import Load, PeerId
from router.http.timers import Timers
from router.state.remote_load import ReportTimes

if TYPE_CHECKING:
    from aiohttp import web

    from node.agent import Agent
    from node.auth.access import Access
    from node.auth.audit import AuditLog
    from node.auth.books import ReceiptBook, UsageBook
    from node.auth.key_ring import KeyRing
    from node.auth.quotas import Quotas
    from node.auth.receipts import ReceiptLog
    from node.auth.usage import UsageLog
    from node.faces.errors import Refusal
    from node.faces.v1.topology import Topology
    from node.inspection import Inspection
    from node.observe.aggregate import Aggregate
    from node.observe.host import Host
    from node.observe.metrics import Metrics
    from node.observe.samples import LoopLag
    from node.observe.tracing import Tracer
    from node.peers.bootstrap import Bootstrap
    from node.peers.followers import NodeEvents
    from registry.service import Registry
    from router.dispatch import Router
    from router.peers.links import Links
    from router.workers import Worker


def _plain(refusal: "Refusal", _: str) -> "Refusal":
    return refusal


@dataclass(frozen=True, slots=True)
class UserRoute:
    """Mark of a route that users may call. `form` turns a refusal into the form of its face, given the request's id.

    `elsewhere` is set where the process that answers the request checks itself what the caller may do.
    """

    form: "Callable[[Refusal, str], Refusal]" = _plain
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses of this process: `host:port` of the HTTP face, of the HTTPS listener for other nodes, and of faces over gRPC."""

    http: str
    link: str
    rpcs: Mapping[str, HostPort] = field(default_factory=dict)
    secured: bool = False
    """Whether the HTTP face speaks TLS."""

    @property
    def url(self) -> str:
        """The URL of the HTTP face."""
        return f"{'https' if self.secured else 'http'}://{self.http}"


class WorkerLoads(Protocol):
    """Loads of this machine's workers, summed over all processes of this node."""

    def load_of(self, worker: "Worker") -> Load:
        """Return the load of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a face that calls models may use."""

    peer: PeerId
    settings: Settings
    router: "Router"
    metrics: "Metrics"
    host: "Host"
    access: "Access"
    quotas: "Quotas"
    usage: "UsageBook"
    receipts: "ReceiptBook"
    loads: WorkerLoads
    tracer: "Tracer | None" = None
    """Traces requests; `None` where tracing is off."""
    report_times: ReportTimes = field(default_factory=ReportTimes)
    """What other nodes were told in the headers of answers, and when."""
    pumps: PumpQueue = field(default_factory=PumpQueue)
    """Queue in which the streams of this process take turns."""
    timers: Timers = field(default_factory=Timers)
    """Timers of this process's streams."""
    now: Clock = time.monotonic
    """The clock of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Serving):
    """What a face may use. Built once, by `node.run`."""

    registry: "Registry"
    agent: "Agent"
    keys: "KeyRing"
    usage_log: "UsageLog"
    audit: "AuditLog"
    receipt_log: "ReceiptLog"
    node_events: "NodeEvents"
    inspection: "Inspection"
    loop_lag: "LoopLag"
    aggregate: "Aggregate"
    links: "Links"
    topology: "Topology"
    bootstrap: "Bootstrap"
    listening: Listening
    swarm_key: str = field(repr=False)
    """The mesh's key, which invitations for nodes contain; empty for an open mesh."""

    started: float
    """The start of this process, on the monotonic clock."""

    async def audited(self, request: "web.Request", action: str, target: str = "") -> None:
        """Write a completed change into the audit log, with the caller of `request`."""
        await self.audit.add(self.access.author_of(request), action, target)
