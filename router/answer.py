"""Answer to a request, as a dialect returns it, and its flow of bytes, which a reader awaits or a listener takes."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from registry.records import Load
from router.errors import AnswerBroken
from router.openai.usage import OPENAI, Usage, UsageFormat
from router.state.service_time import ServiceTime

if TYPE_CHECKING:
    from router.http.cut_through import CutThrough


Listener = Callable[[], None]
"""Callback for news: new bytes, the end or a failure."""


class Flow:
    """Bytes as they arrive: a reader awaits them, or a listener is called when there are more, and takes them."""

    __slots__ = ()

    def __aiter__(self) -> "Flow":
        return self

    async def __anext__(self) -> bytes:
        raise NotImplementedError

    def read_nowait(self) -> tuple[bytes, bool]:
        """Return the bytes that have arrived, possibly none, and whether no more can be read this way; raise `AnswerBroken`.

        No more can be read this way once the flow has ended, has broken off, or has to be awaited.
        """
        raise NotImplementedError

    @property
    def can_run_inline(self) -> bool:
        """Whether a listener may do all its work within the call. If not, more of the same read may follow the call."""
        raise NotImplementedError

    def inspect(self, cut_through: "CutThrough") -> None:
        """Add to `cut_through` what the flow needs of the bytes that pass it by."""
        raise NotImplementedError

    def listen(self, listener: Listener | None, cut_through: "CutThrough | None" = None) -> None:
        """Set the listener, or remove it with `None`: then the idle timeout stops. Bytes that `cut_through` takes are no news."""
        raise NotImplementedError


class Route(StrEnum):
    """How an answer came to this node; the value of `x-modelvine-route`."""

    LOCAL = "local"
    DIRECT = "direct"
    RELAY = "relay"


@dataclass(slots=True)
class Answer:
    """An answer that has begun: its first bytes, then the rest as they come.

    `length` is the total in bytes, if known. `rest` raises `AnswerBroken` when the worker breaks off; once the answer has
    been left, `broken` holds that error too. `headers` are the worker's headers that callers may see, by lower-case name.
    `load` and `service_time` are what another node reported of the worker that answered. `usage` is the token usage of a whole
    answer, and of a stream once it has ended. `hides_usage` says that the node requested the usage of a stream,
    so that the event with it is not for the caller. `verbatim` names the protocol that it is written in, that of the request's
    `verbatim`; empty means OpenAI's. `usage_format` says where a stream reports its tokens.
    """

    status: int
    content_type: str
    first: bytes
    rest: AsyncIterator[bytes]
    route: Route
    length: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: AnswerBroken | None = None
    load: Load | None = None
    service_time: ServiceTime | None = None
    usage: Usage | None = None
    hides_usage: bool = False
    verbatim: str = ""
    usage_format: UsageFormat = OPENAI

    @property
    def streamed(self) -> bool:
        """Whether this is an event stream."""
        return self.content_type.startswith("text/event-stream")


class _Nothing:
    def __aiter__(self) -> "_Nothing":
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


NOTHING: AsyncIterator[bytes] = _Nothing()
"""The rest of an answer that was complete with its first bytes."""


def complete_answer(
    body: bytes, content_type: str = "application/json", *, status: int = 200
) -> Answer:
    """Return an answer of a local worker that has come as a whole."""
    return Answer(status, content_type, body, NOTHING, Route.LOCAL, len(body))
