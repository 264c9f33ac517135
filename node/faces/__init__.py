"""Which protocols do clients speak to us? One file per face, found by its module name.

A face module defines `routes(context) -> list[web.RouteDef]`. It reads bytes into a `Request` or a use case, and
writes what comes back; errors are left to `node.faces.errors`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.settings import Settings
from registry.records import PeerId

if TYPE_CHECKING:
    from node.access import Access
    from node.agent import Agent
    from node.metrics import Metrics
    from registry.service import Registry
    from router.dispatch import Router


@dataclass(frozen=True, slots=True)
class Context:
    """What a face may use. Built once, by `node.run`."""

    peer: PeerId
    settings: Settings
    registry: "Registry"
    router: "Router"
    agent: "Agent"
    access: "Access"
    metrics: "Metrics"
