"""Recognition of the protocol at an address.

Each dialect that can tell is tried in turn, and reports what it asked and what came back.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from router.dialects import ALIVE_SECONDS, Dialect
from router.errors import WorkerFailed
from router.worker_description import Described
from router.workers import Worker

FIRST = ("tgi_http", "openai_http", "llama_stack_http", "localai_grpc", "remotellm_grpc")
"""Dialects tried first; the rest follow by name. TGI's servers list models, too, and few others have their `/info`."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one dialect asked, and what came back; `said` is set if that is its protocol.

    `waits` says that it may be its protocol, once the worker has loaded its model.
    """

    asked: str
    came: str
    said: Described | None = None
    waits: bool = False


@runtime_checkable
class Recognises(Protocol):
    """A dialect that can tell whether its protocol is spoken at an address."""

    async def recognise(self, worker: Worker) -> Sighting:
        """Send small queries within `ALIVE_SECONDS` each, and return what came back."""


async def recognise(
    dialects: Mapping[str, Dialect], asked: Sequence[tuple[str, Worker]]
) -> list[tuple[str, Sighting]]:
    """Try dialects one after the other, each with its own `Worker`, until one recognises it; return what each saw."""
    seen: list[tuple[str, Sighting]] = []
    for name, worker in asked:
        try:
            dialect = dialects[name]
        except WorkerFailed as lacks:
            seen.append((name, Sighting("nothing", str(lacks))))
            continue
        if not isinstance(dialect, Recognises):
            continue
        sighting = await dialect.recognise(worker)
        seen.append((name, sighting))
        if sighting.said is not None or sighting.waits:
            break
    return seen


async def reason(dialects: Mapping[str, Dialect], worker: Worker) -> str:
    """Return why a worker does not answer, as its own dialect sees it; empty if that cannot tell in time."""
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            seen = await recognise(dialects, [(worker.dialect, worker)])
    except TimeoutError:
        return ""
    return seen[0][1].came if seen else ""


def in_order(names: Sequence[str]) -> list[str]:
    """Return dialects in the order in which they are tried."""
    known = [name for name in FIRST if name in names]
    return [*known, *(name for name in sorted(names) if name not in (*known, "peer"))]
