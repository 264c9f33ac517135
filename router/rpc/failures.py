"""What does it mean for an attempt that an RPC failed? Statuses of gRPC in, errors of the router out.

What a worker says of its failure reaches a caller only where it finds fault with the request, on one line and cut short: the
rest is often the text of an exception.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from router.errors import (
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnable,
    WorkerUnreachable,
)
from router.rendering import refused

MAX_WORDS = 300
"""Characters of a worker's own words that are shown, or written into the log."""

PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata in which a server says for how long it wants to be left alone."""

_LONGEST_RETRY = 3600.0
_TOO_LARGE = "larger than max"
_OURS = "CLIENT:"


class RpcFailed(Exception):
    """An RPC ended with a status other than OK; `code` is its name, `words` what the server says of it, on one line.

    `deadline` are the seconds that it was told to take at most, and `trailing` the metadata that came with the status.
    `hung_up` says that no server gave it, but that the connection ended.
    """

    def __init__(
        self,
        code: str,
        words: str = "",
        *,
        trailing: Mapping[str, str] = MappingProxyType({}),
        deadline: float = 0.0,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.words = cleaned(words)
        self.deadline = deadline
        self.hung_up = False
        self._trailing = trailing

    def as_error(self, method: str) -> WorkerError:
        """Say what it means for an attempt at an RPC of that name."""
        if self.hung_up:
            return WorkerDied("the worker hung up before it answered")
        if self.code == "UNIMPLEMENTED":
            return WorkerUnable(f"the worker does not serve {method}", param="model")
        means = _MEANINGS.get(self.code)
        return means(self) if means else WorkerFailed(f"the worker failed: {self.code}")

    @property
    def pushback(self) -> float:
        """For how long the worker asks to be left alone, 0 where it does not."""
        said = self._trailing.get(PUSHBACK, "")
        return min(int(said) / 1000, _LONGEST_RETRY) if _is_number(said) else 0.0


def _exhausted(failed: RpcFailed) -> WorkerError:
    if _TOO_LARGE in failed.words:
        theirs = WorkerFailed("the worker's message is too large")
        return theirs if _OURS in failed.words else too_large()
    if failed.pushback:
        return WorkerBusy("the worker is full", retry_after=failed.pushback, named=True)
    return WorkerBusy("the worker is full")


def _at_fault(failed: RpcFailed) -> WorkerError:
    return WorkerRejected(400, failed.words.encode())


def _not_let_in(_: RpcFailed) -> WorkerError:
    return WorkerFailed("the worker does not let this node in")


_MEANINGS: Mapping[str, Callable[[RpcFailed], WorkerError]] = {
    "UNAVAILABLE": lambda _: WorkerUnreachable("the worker is unavailable", sent=True),
    "DEADLINE_EXCEEDED": lambda failed: WorkerTimeout("answer", failed.deadline),
    "RESOURCE_EXHAUSTED": _exhausted,
    "INVALID_ARGUMENT": _at_fault,
    "OUT_OF_RANGE": _at_fault,
    "UNAUTHENTICATED": _not_let_in,
    "PERMISSION_DENIED": _not_let_in,
    "NOT_FOUND": lambda _: WorkerFailed("the worker does not know this model"),
}
"""What each status means; any other is a failure of the worker's own."""


def too_large() -> WorkerRejected:
    """Return the refusal of a request that does not fit into a message."""
    return WorkerRejected(413, refused("the request is too large for the worker", "messages").body)


def cleaned(words: str) -> str:
    """Return a worker's words on one line, without what is not printable, and cut short."""
    printable = "".join(c if c.isprintable() else " " for c in words[: 4 * MAX_WORDS])
    return " ".join(printable.split())[:MAX_WORDS]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
