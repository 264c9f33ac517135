"""Dialects: the protocols that workers speak. One file per worker protocol, found by its module name.

A dialect module defines `create(links: Links) -> Dialect`. It is loaded when the first worker uses it, since its dependencies
may not be installed. It also defines `ENDPOINTS`, how each RPC or endpoint of its specification is handled, and `MAPPING`
(`router/translate/request.py`) if it translates texts: docs/dialects.md is generated from both. It may define `check(worker)`,
see below. A dialect returns an answer only once its first byte has arrived, so that a request that fails before then can be
tried elsewhere. Such a failure is raised as a `WorkerError`.
"""

import asyncio
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from router.answer import Answer
from router.errors import WorkerFailed
from router.requests import Request
from router.select.candidates import Candidate
from router.worker_description import WorkerDescription
from router.workers import Worker

if TYPE_CHECKING:
    from router.http.exchange import Call
    from router.http.reply import Reply
    from router.peers.links import Links


ALIVE_SECONDS = 1.0
"""Seconds within which a worker must answer a probe."""


class Dialect(Protocol):
    """Client of one worker protocol."""

    def answer(self, request: Request, candidate: Candidate) -> AbstractAsyncContextManager[Answer]:
        """Send the request; entering waits for the first byte. Leaving early cancels the request at the worker."""

    async def alive(self, worker: Worker) -> bool:
        """Probe a worker with a small request, and return whether it answered anything at all within `ALIVE_SECONDS`."""

    async def slots(self, worker: Worker) -> int:
        """Ask a worker how many requests it takes at one time; return 0 if it does not tell within `ALIVE_SECONDS`."""

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Ask a worker to describe itself, within `ALIVE_SECONDS`; return `None` if it does not answer or is loading its model.

        A dialect whose protocol has no such request returns `WorkerDescription()`.
        """


@runtime_checkable
class Starter(Dialect, Protocol):
    """A dialect whose requests can be sent immediately, on an idle connection."""

    def prepare(self, request: Request, candidate: Candidate) -> "Call | None":
        """Return what to send for a request; `None` if it takes more than one write."""

    def resume(
        self, request: Request, candidate: Candidate, reply: "Reply"
    ) -> AbstractAsyncContextManager[Answer]:
        """Enter as `Dialect.answer` does, with the reply to what `prepare` returned, which was sent already."""

    def answer_if_complete(self, candidate: Candidate, reply: "Reply") -> Answer | None:
        """Return the answer if it has arrived in one piece; `None` if there is more to do than to pass it on."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """What one dialect asked, and what came back; `said` is set if that is its protocol.

    `waits` says that it may be its protocol, once the worker has loaded its model, and `silent` that any protocol may be.
    """

    asked: str
    came: str
    said: WorkerDescription | None = None
    waits: bool = False
    silent: bool = False


@runtime_checkable
class Recognises(Protocol):
    """A dialect that can tell whether its protocol is spoken at an address."""

    async def recognise(self, worker: Worker) -> Recognition:
        """Send small queries within `ALIVE_SECONDS` each, and return what came back."""


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every dialect: the modules of this folder."""


_EXTRAS: Mapping[str, str] = {"grpc": "grpc", "google": "grpc"}
"""By imported package, the extra of modelvine that installs it."""


def load(name: str) -> "Callable[[Links], Dialect]":
    """Return the factory of the dialect of that name.

    Raise `ValueError` with the known names, or `WorkerFailed` that says what has to be installed.
    """
    return cast("Callable[[Links], Dialect]", _module(name).create)


def check(worker: Worker) -> None:
    """Raise `WorkerFailed` if the dialect can tell, without asking the worker, that its registration is impossible."""
    if (objecting := vars(_module(worker.dialect)).get("check")) is not None:
        objecting(worker)


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ValueError(f"there is no dialect {name!r}; known are: {', '.join(NAMES)}")
    try:
        return import_module(f"{__name__}.{name}")
    except ImportError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        needs = f"the dialect {name!r} needs {error.name!r}, which is not installed"
        raise WorkerFailed(f"{needs}: make extras, or pip install 'modelvine[{extra}]'") from error


class LazyDialects(Mapping[str, Dialect]):
    """The dialects of one node, each created on first access; that may raise `WorkerFailed`, see `load`."""

    def __init__(self, links: "Links") -> None:
        self._links = links
        self._made: dict[str, Dialect] = {}

    def __getitem__(self, name: str) -> Dialect:
        dialect = self._made.get(name)
        if dialect is None:
            if name not in NAMES:
                raise KeyError(name)
            dialect = self._made[name] = load(name)(self._links)
        return dialect

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


RECOGNISED_FIRST = ("tgi_http", "openai_http", "llama_stack_http", "localai_grpc", "remotellm_grpc")
"""Dialects tried first; the rest follow by name. TGI's servers list models, too, and few others have their `/info`."""


async def recognise(
    dialects: Mapping[str, Dialect], workers: Sequence[tuple[str, Worker]]
) -> list[tuple[str, Recognition]]:
    """Try dialects one after the other, each with its own `Worker`, until one recognises it; return what each saw."""
    results: list[tuple[str, Recognition]] = []
    for name, worker in workers:
        try:
            dialect = dialects[name]
        except WorkerFailed as lacks:
            results.append((name, Recognition("nothing", str(lacks))))
            continue
        if not isinstance(dialect, Recognises):
            continue
        recognition = await dialect.recognise(worker)
        results.append((name, recognition))
        if recognition.said is not None or recognition.waits:
            break
    return results


async def explain_silence(dialects: Mapping[str, Dialect], worker: Worker) -> str:
    """Return why a worker does not answer, as its own dialect sees it; empty if that cannot tell in time."""
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            results = await recognise(dialects, [(worker.dialect, worker)])
    except TimeoutError:
        return ""
    return results[0][1].came if results else ""


def recognition_order(names: Sequence[str]) -> list[str]:
    """Return dialects in the order in which they are tried."""
    first = [name for name in RECOGNISED_FIRST if name in names]
    return [*first, *(name for name in sorted(names) if name not in (*first, "peer"))]
