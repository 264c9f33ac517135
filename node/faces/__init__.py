"""Faces: the protocols that clients speak to a node. One file per face, found by its module name.

A face module defines `routes(context: Context) -> list[web.RouteDef]`, or `asking_routes(context: Serving)` for what is asked
of models: any process of the node answers that. It reads bytes into a `Request` or a use case, and writes what comes back, in a
`voice` of its own where its clients do not speak OpenAI's protocol. What other nodes may ask over the link listener stands
in `link_routes(context)`, where a face has such; `in_own_form` says refusals where OpenAI's form is not its own; `ENDPOINTS`,
where its protocol is somebody else's, what becomes of each RPC or endpoint of that, for docs/dialects.md. The other modules of
this folder serve the faces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.config.addresses import HostPort
from node.config.settings import Settings
from node.faces.pump_queue import PumpQueue
from registry.records import Load, PeerId
from router.http.timers import Timers
from router.state.remote_load import Tellings

if TYPE_CHECKING:
    from aiohttp import web

    from node.agent import Agent
    from node.auth.access import Access
    from node.auth.audit import AuditLog
    from node.auth.key_ring import KeyRing
    from node.auth.quotas import Quotas
    from node.auth.receipt_book import ReceiptBook
    from node.auth.receipts import ReceiptLog
    from node.auth.usage import UsageLog
    from node.auth.usage_book import UsageBook
    from node.faces.errors import Refusal
    from node.faces.v1.topology import Topology
    from node.inspection import Learning
    from node.observe.aggregate import Whole
    from node.observe.host import Host
    from node.observe.loop_lag import Lateness
    from node.observe.metrics import Metrics
    from node.observe.tracing import Tracer
    from node.peers.bootstrap import Bootstrap
    from node.peers.node_events import NodeEvents
    from registry.service import Registry
    from router.dispatch import Router
    from router.peers.links import Links
    from router.workers import Worker


def _plain(said: "Refusal", _: str) -> "Refusal":
    return said


@dataclass(frozen=True, slots=True)
class Asks:
    """What marks a route that users may call. `form` says a refusal in the form of its face, by the request's id.

    `elsewhere` says that whoever answers it looks itself at what the caller may do.
    """

    form: "Callable[[Refusal, str], Refusal]" = _plain
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Listening:
    """Where this process listens: `host:port` of the HTTP face, of the HTTPS listener for other nodes, and of faces over gRPC."""

    http: str
    link: str
    rpcs: Mapping[str, HostPort] = field(default_factory=dict)
    secured: bool = False
    """Whether the HTTP face speaks TLS."""

    @property
    def url(self) -> str:
        """Where the HTTP face is."""
        return f"{'https' if self.secured else 'http'}://{self.http}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a face may use that has models run."""

    peer: PeerId
    settings: Settings
    router: "Router"
    metrics: "Metrics"
    host: "Host"
    access: "Access"
    quotas: "Quotas"
    usage: "UsageBook"
    receipts: "ReceiptBook"
    load_of: "Callable[[Worker], Load]"
    """Says how busy a worker of this machine is, by all processes of this node."""
    tracer: "Tracer | None" = None
    """Traces requests, where that is wanted."""
    tellings: Tellings = field(default_factory=Tellings)
    """What other nodes were told with answers."""
    pumps: PumpQueue = field(default_factory=PumpQueue)
    """Where the streams of this process take turns."""
    timers: Timers = field(default_factory=Timers)
    """Timers of this process's streams."""


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
    learning: "Learning"
    lateness: "Lateness"
    whole: "Whole"
    links: "Links"
    topology: "Topology"
    bootstrap: "Bootstrap"
    listening: Listening
    swarm_key: str = field(repr=False)
    """The mesh's key, which invitations of nodes hold; empty for an open mesh."""

    started: float
    """When this process began, on the monotonic clock."""

    async def audited(self, request: "web.Request", action: str, target: str = "") -> None:
        """Write a change that was made into the audit log."""
        await self.audit.add(self.access.who(request), action, target)
