"""Recognition of the protocol at an address.

Each dialect that can tell looks in turn, and says what it asked and what came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from router.dialects import Dialect
from router.errors import WorkerFailed
from router.worker_description import Described
from router.workers import Worker

FIRST = ("tgi_http", "openai_http", "llama_stack_http", "localai_grpc", "remotellm_grpc")
"""Who looks first: TGI's servers have lists of models, too, and few others have its `/info`. The rest follow by name."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one dialect asked, and what came; `said` is set where that is its protocol.

    `waits` says that it may be, once the worker has loaded its model.
    """

    asked: str
    came: str
    said: Described | None = None
    waits: bool = False


@runtime_checkable
class Recognises(Protocol):
    """A dialect that can tell whether its protocol is spoken somewhere."""

    async def recognise(self, worker: Worker) -> Sighting:
        """Ask something small within `ALIVE_SECONDS` each, and say what came."""


async def recognise(
    dialects: Mapping[str, Dialect], asked: Sequence[tuple[str, Worker]]
) -> list[tuple[str, Sighting]]:
    """Have dialects look one after the other, each at its own idea of the worker, until one knows it; tell what each saw."""
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


def in_order(names: Sequence[str]) -> list[str]:
    """Return dialects in the order in which they look."""
    known = [name for name in FIRST if name in names]
    return [*known, *(name for name in sorted(names) if name not in (*known, "peer"))]
