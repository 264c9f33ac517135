"""Answer to a request, as a dialect hands it over."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from registry.records import Load
from router.errors import AnswerBroken
from router.openai.usage import OPENAI, Tells, Usage
from router.state.service_time import ServiceTime


class Route(StrEnum):
    """How an answer came to this node; the value of `x-modelvine-route`."""

    LOCAL = "local"
    DIRECT = "direct"
    RELAY = "relay"


@dataclass(slots=True)
class Answer:
    """An answer that has begun: its first bytes, then the rest as they come.

    `length` is the total in bytes where it is known. `rest` raises `AnswerBroken` when the worker breaks off; once the
    answer has been left, `broken` holds that error too. `headers` are the worker's own that callers may see, lower-case
    names. `load` and `service_time` are what another node said of the worker that answered. `usage` is what a whole answer tells
    of its tokens, and a stream of this machine's worker once it has ended; `hides_usage` says that we asked for those of a
    stream, so that the event which tells them is not for its caller. `verbatim` names the protocol whose words it is in, those
    of the request's `verbatim`; none are OpenAI's. `tells` says where a stream tells its tokens.
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
    tells: Tells = OPENAI

    @property
    def streamed(self) -> bool:
        """Whether this is an event stream."""
        return self.content_type.startswith("text/event-stream")
