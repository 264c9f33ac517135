"""Text stream that several workers write in turn if one dies: performs the decisions of `router.failover`.

It is read and exited like a single answer: exiting it ends the present worker's request. Few workers die, so the first part
passes unchanged and is only recorded; its events are parsed once it has broken off.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType

from router.attempt import Routed
from router.failover_others import continue_stream
from router.failover_part import RECORDED_SIGNS, ContinuedFlow, ContinuedRest, FirstPart
from router.failover_recording import Recording
from router.flow import Flow
from router.openai.usage import Usage
from router.requests import Request

Ask = Callable[[Request], AbstractAsyncContextManager[Routed]]


class ContinuedAnswer:
    """The answer to one request, continued by other workers if its worker dies. Enter it as `Router.answer`.

    What it yields is counted already: `spent` is called with the usage of each part.
    """

    def __init__(
        self,
        ask: Ask,
        request: Request,
        first: AbstractAsyncContextManager[Routed],
        *,
        max_event_bytes: int,
        spent: Callable[[Routed, Usage], None],
    ) -> None:
        self.ask = ask
        self.part = first
        """The present part, while it is `entered`."""
        self.entered = False
        self.request = request
        self.max_event_bytes = max_event_bytes
        self.spent = spent
        self.sent = Recording(RECORDED_SIGNS)
        self._rest: ContinuedRest | None = None

    async def __aenter__(self) -> Routed:
        routed = await self.part.__aenter__()
        self.entered = True
        # The texts of two workers can be joined in OpenAI's format only.
        if not routed.answer.streamed or routed.answer.verbatim:
            return routed
        answer, flow = routed.answer, routed.answer.rest
        first = FirstPart(routed, self.sent, self.spent)
        rest = self._rest = ContinuedRest(first, partial(continue_stream, self))
        answer.rest = ContinuedFlow(rest, flow) if isinstance(flow, Flow) else rest
        # These hold until the first part is concluded.
        answer.first, answer.hides_usage = b"", False
        return Routed(answer, routed.candidate, routed.attempts, None, routed.others)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # It refers back to this object: the cycle would stay until the garbage collector runs.
        rest, self._rest = self._rest, None
        if rest is not None:
            if rest.later is not None:
                await rest.later.aclose()
            rest.part.finish()
        return await self.part.__aexit__(kind, error, trace) if self.entered else None
