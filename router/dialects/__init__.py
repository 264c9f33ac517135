"""Dialects: the protocols that workers speak. One file per worker protocol, found by its module name.

A dialect module defines `create(links: Links) -> Dialect`, and is loaded when the first worker speaks it: what it needs may
not be installed. It also defines `ENDPOINTS`, what becomes of each RPC or endpoint of its specification, and `WORDS`
(`router/translate/request.py`) if it translates texts: docs/dialects.md is made of them. It may define `check(worker)`, see
below. A dialect hands over an answer only once its first byte is there, so that failures until then can be tried elsewhere;
it raises one of the `WorkerError`s.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from router.answer import Answer
from router.errors import WorkerFailed
from router.requests import Request
from router.select.candidates import Candidate
from router.worker_description import Described
from router.workers import Worker

if TYPE_CHECKING:
    from router.http.cut_through import CutThrough
    from router.http.exchange import Call
    from router.http.reply import Reply
    from router.peers.links import Links


Listener = Callable[[], None]
"""Who is told that there is news."""


class Flow(ABC, AsyncIterator[bytes]):
    """Bytes as they come: for one who waits for them, or for one who is told of news and takes what is here."""

    __slots__ = ()

    @abstractmethod
    def here(self) -> tuple[bytes, bool]:
        """Return what has come, nothing where nothing has, and whether that is all that can be had so; raise `AnswerBroken`.

        Then it has ended, has broken off, or needs one who waits.
        """

    @property
    @abstractmethod
    def prompt(self) -> bool:
        """Whether a listener may do all its work at once: else more may have come with what it is told of."""

    @abstractmethod
    def inspect(self, cut_through: "CutThrough") -> None:
        """Add what is wanted of what passes by."""

    @abstractmethod
    def listen(self, listener: Listener | None, cut_through: "CutThrough | None" = None) -> None:
        """Have news told, or no more; without a listener nobody waits. What `cut_through` takes is no news."""


ALIVE_SECONDS = 1.0
"""Seconds that a worker may take to show that it lives."""


class Dialect(Protocol):
    """Speaks one worker protocol."""

    def answer(self, request: Request, candidate: Candidate) -> AbstractAsyncContextManager[Answer]:
        """Send the request and enter once the first byte is there. Leaving early cancels it at the worker."""

    async def alive(self, worker: Worker) -> bool:
        """Ask a worker something small, and say whether it answered anything at all within `ALIVE_SECONDS`."""

    async def slots(self, worker: Worker) -> int:
        """Ask a worker how many requests it takes at one time; return 0 where it does not say so within `ALIVE_SECONDS`."""

    async def describe(self, worker: Worker) -> Described | None:
        """Ask a worker what it is, within `ALIVE_SECONDS`; return `None` where it does not answer now, or loads its model.

        A protocol without words for it returns `Described()`.
        """


@runtime_checkable
class Starter(Dialect, Protocol):
    """A dialect whose requests can be sent at once, on a connection that lies idle."""

    def prepare(self, request: Request, candidate: Candidate) -> "Call | None":
        """Return what to send for a request; `None` where that is more than one write."""

    def resume(
        self, request: Request, candidate: Candidate, reply: "Reply"
    ) -> AbstractAsyncContextManager[Answer]:
        """Enter as `Dialect.answer` with the answer to what `prepare` returned, which was sent already."""

    def whole(self, candidate: Candidate, reply: "Reply") -> Answer | None:
        """Return the answer in one piece that is here; `None` where more is to be done than to pass it on."""


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Every dialect there is: the modules of this folder."""


_EXTRAS: Mapping[str, str] = {"grpc": "grpc", "google": "grpc"}
"""What is imported, and the extra of this package that brings it."""


def load(name: str) -> "Callable[[Links], Dialect]":
    """Return the maker of the dialect of that name.

    Raise `ValueError` that lists the names there are, or `WorkerFailed` that says what has to be installed.
    """
    return cast("Callable[[Links], Dialect]", _module(name).create)


def check(worker: Worker) -> None:
    """Raise `WorkerFailed` where its dialect can tell, without asking, that a worker was registered with what it cannot have."""
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
        raise WorkerFailed(f"{needs}: pip install 'modelvine[{extra}]'") from error


class Spoken(Mapping[str, Dialect]):
    """The dialects of one node, each made when it is first asked for; that may raise `WorkerFailed`, see `load`."""

    def __init__(self, links: "Links") -> None:
        self._links = links
        self._made: dict[str, Dialect] = {}

    def __getitem__(self, name: str) -> Dialect:
        made = self._made.get(name)
        if made is None:
            if name not in NAMES:
                raise KeyError(name)
            made = self._made[name] = load(name)(self._links)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)
