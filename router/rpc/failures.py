"""Failures of RPCs as errors of an attempt: gRPC statuses in, errors of the router out.

An error contains the worker's own message, on one line and truncated, because nothing else tells the cause. It contains neither
the request nor credentials, which exceptions may quote.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from router.errors import (
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerTooSmall,
    WorkerUnable,
    WorkerUnreachable,
)
from router.openai.text_writer import refused

MAX_WORDS = 300
"""The most characters of a worker's own message that are shown or logged."""

PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata by which a server requests a pause before the next attempt, in milliseconds."""

_LONGEST_RETRY = 3600.0
_QUOTE = 24
"""Characters of a passage that counts as quoted from the request: the worker's own names and numbers are shorter."""

_SEARCHED = 1024 * 1024
_SECRET = 6
_TOO_LARGE = "larger than max"
_OURS = "CLIENT:"


class RpcFailed(Exception):
    """An RPC ended with a status other than OK; `code` is its name, `words` the server's message on one line.

    `deadline` is the RPC's time limit in seconds, and `trailing` the metadata that came with the status. `hung_up` says that the
    status came from a lost connection, not from a server.
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
        """Return the error that the failure is for an attempt at the RPC of that name."""
        if self.hung_up:
            return WorkerDied("the worker closed the connection before it answered")
        if self.code == "UNIMPLEMENTED":
            return WorkerUnable(f"the worker does not serve {method}", param="model")
        if self.code == "OK":
            return WorkerFailed(self.describe(f"the worker reported that {method} failed"))
        means = _MEANINGS.get(self.code)
        return (
            means(self) if means else WorkerFailed(self.describe(f"the worker failed: {self.code}"))
        )

    def redact(self, request: bytes, secrets: Iterable[str]) -> None:
        """Remove secret values from the server's message, or all of it if it quotes the request."""
        for secret in {part for value in secrets for part in value.split()}:
            if len(secret) >= _SECRET:
                self.words = self.words.replace(secret, "…")
        if _quotes(self.words, request[:_SEARCHED]):
            self.words = "its message quotes the request"

    def describe(self, subject: str) -> str:
        """Return a description of the failure, followed by the worker's message."""
        return f"{subject}: {self.words}" if self.words else subject

    @property
    def pushback(self) -> float:
        """Seconds for which the worker requests a pause, 0 if it does not."""
        value = self._trailing.get(PUSHBACK, "")
        return min(int(value) / 1000, _LONGEST_RETRY) if _is_number(value) else 0.0


def _exhausted(failed: RpcFailed) -> WorkerError:
    if _TOO_LARGE in failed.words:
        error = WorkerFailed("the worker's message is too large")
        return error if _OURS in failed.words else too_large()
    message = failed.describe("the worker is full")
    if failed.pushback:
        return WorkerBusy(message, retry_after=failed.pushback, named=True)
    return WorkerBusy(message)


def _at_fault(failed: RpcFailed) -> WorkerError:
    return WorkerRejected(400, failed.words.encode())


def _unreachable(failed: RpcFailed) -> WorkerError:
    return WorkerUnreachable(
        failed.describe("the worker is unavailable, or closed the connection"), sent=True
    )


def _not_let_in(failed: RpcFailed) -> WorkerError:
    return WorkerFailed(failed.describe(f"the worker does not admit this node: {failed.code}"))


def _unknown(failed: RpcFailed) -> WorkerError:
    return WorkerFailed(failed.describe("the worker does not know this model"))


_MEANINGS: Mapping[str, Callable[[RpcFailed], WorkerError]] = {
    "UNAVAILABLE": _unreachable,
    "DEADLINE_EXCEEDED": lambda failed: WorkerTimeout("answer", failed.deadline),
    "RESOURCE_EXHAUSTED": _exhausted,
    "INVALID_ARGUMENT": _at_fault,
    "OUT_OF_RANGE": _at_fault,
    "UNAUTHENTICATED": _not_let_in,
    "PERMISSION_DENIED": _not_let_in,
    "NOT_FOUND": _unknown,
}
"""The error for each status; any other status is a failure of the worker's own."""


def too_large() -> WorkerTooSmall:
    """Return the refusal of a request that is too large for a message."""
    return WorkerTooSmall(refused("the request is too large for the worker", "messages").body)


def cleaned(message: str) -> str:
    """Return a worker's message on one line, without unprintable characters, and truncated."""
    printable = "".join(c if c.isprintable() else " " for c in message[: 4 * MAX_WORDS])
    return " ".join(printable.split())[:MAX_WORDS]


def _quotes(text: str, request: bytes) -> bool:
    pieces = range(0, len(text) - _QUOTE + 1, _QUOTE // 2)
    return any(text[index : index + _QUOTE].encode(errors="replace") in request for index in pieces)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
