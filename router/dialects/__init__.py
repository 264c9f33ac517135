"""How do we speak to a worker? One file per worker protocol, found by its module name.

A dialect module defines `create(links: Links) -> Dialect`. A dialect hands over an answer only once its first byte
is there, so that failures until then can be tried elsewhere; it raises one of the `WorkerError`s.
"""

import pkgutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from router.candidates import Candidate
from router.requests import Request


class Route(StrEnum):
    """How an answer came to this node; the value of `x-modelvine-route`."""

    LOCAL = "local"
    DIRECT = "direct"
    RELAY = "relay"


@dataclass(slots=True)
class Answer:
    """An answer that has begun: its first bytes, then the rest as they come.

    `length` is the total in bytes where the worker named it. `rest` raises `AnswerBroken` when the worker breaks off.
    `headers` are the worker's own that callers may see, lower-case names.
    """

    status: int
    content_type: str
    first: bytes
    rest: AsyncIterator[bytes]
    route: Route
    length: int | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def streamed(self) -> bool:
        """Whether this is an event stream."""
        return self.content_type.startswith("text/event-stream")


class Dialect(Protocol):
    """Speaks one worker protocol."""

    def answer(self, request: Request, candidate: Candidate) -> AbstractAsyncContextManager[Answer]:
        """Send the request and enter once the first byte is there. Leaving early cancels it at the worker."""


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every dialect there is: the modules of this folder."""
