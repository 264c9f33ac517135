"""Which protocols do clients speak to us? One file per face, found by its module name.

A face module defines `routes(context) -> list[web.RouteDef]`. It reads bytes into a `Request` or a use case, and
writes what comes back; errors are left to `node.faces.errors`. What other nodes may ask over the link listener stands
in a second function, `link_routes(context)`, where a face has such. The other modules of this folder serve the faces.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.settings import Settings
from registry.records import Load, PeerId

if TYPE_CHECKING:
    from node.access import Access
    from node.agent import Agent
    from node.bootstrap import Bootstrap
    from node.host import Host
    from node.lateness import Lateness
    from node.metrics import Metrics
    from node.whole import Whole
    from registry.service import Registry
    from router.dispatch import Router
    from router.links import Links
    from router.workers import Worker


@dataclass(frozen=True, slots=True)
class Listening:
    """Where this process listens: `host:port` of the HTTP face, and of the HTTPS listener for other nodes."""

    http: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a face may use that has models run."""

    peer: PeerId
    settings: Settings
    router: "Router"
    metrics: "Metrics"
    host: "Host"
    load_of: "Callable[[Worker], Load]"
    """Says how busy a worker of this machine is, by all processes of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Serving):
    """What a face may use. Built once, by `node.run`."""

    registry: "Registry"
    agent: "Agent"
    access: "Access"
    lateness: "Lateness"
    whole: "Whole"
    links: "Links"
    bootstrap: "Bootstrap"
    listening: Listening
    started: float
    """When this process began, on the monotonic clock."""
