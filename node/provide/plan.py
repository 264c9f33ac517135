"""Plan of a provider: what is provided, where, and by which name it is registered; and what any provider has to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

from node.config.addresses import HostPort
from node.provide.files import KEEP
from registry.records import ModelType

OPENAI, LLAMA_STACK = "openai_http", "llama_stack_http"
"""The dialects that a provider may speak."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is provided. `keep` is in bytes, and `model` is asked where a request names none."""

    service: str
    folder: Path
    place: HostPort
    project: str
    name: str
    concurrency: int
    keep: int = KEEP
    model: str = ""


class Provider(Protocol):
    """One service, made of inference: it is made of its plan and the URL of its node."""

    types: Mapping[ModelType, str]
    """What it is registered as, and the dialect that it speaks as that."""

    def routes(self) -> list[web.RouteDef]:
        """Return what may be asked."""

    async def run(self) -> None:
        """Work until cancelled."""

    def close(self) -> None:
        """Close what is kept."""
