"""Stream of a worker of the OpenAI protocol, with the model's registered name and the usage that the node asks for."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from router.answer import Answer, Route
from router.dialects.openai_http.json_answer import model_in
from router.dialects.openai_http.stream_events import LAST, LOOKED_AT_FIRST, split_answer
from router.errors import WorkerRejected
from router.http.exchange import Exchange
from router.large_bodies import in_thread, takes_long
from router.openai.event_texts import contains
from router.openai.sse import data_of
from router.openai.usage import Takers, asking

if TYPE_CHECKING:
    from router.dialects.openai_http.worker_call import WorkerCall


class TellingUsage:
    """A stream that ends with its usage; a worker that refuses the usage option is asked once more without it."""

    __slots__ = ("_asked", "_call", "_takers")
    __deletable__ = ("_call",)  # mypyc asks

    def __init__(self, takers: Takers, call: "WorkerCall") -> None:
        self._takers = takers
        self._call = call

    async def __aenter__(self) -> Answer:
        now = asyncio.get_running_loop().time
        call, body, question = self._call, self._call.body, None
        if self._takers.takes(call.api, now()):
            long = takes_long(body)
            question = await in_thread(partial(asking, body)) if long else asking(body)
        self._asked = call.sent(body=question)
        try:
            answer = await self._asked.__aenter__()
        except WorkerRejected as refusal:
            minds = self._takers.may_mind(call.api, refusal.status, refusal.body)
            if question is None or not minds:
                raise refusal  # noqa: TRY201 (as mypyc needs it)
            self._asked = call.sent()
            answer = await self._asked.__aenter__()
            self._takers.refused(call.api, now())
            return answer
        if question is not None:
            self._takers.took(call.api)
            answer.hides_usage = True
        # A stream lasts long, and the request is not sent again.
        del self._call
        return answer

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._asked.__aexit__(kind, error, trace)


async def stream_answer(exchange: Exchange, name: str, max_event_bytes: int) -> Answer:
    """Return the answer once the stream has an event with data; raise `WorkerFailed` if that is a failure."""
    chunk = await exchange.some()
    end = chunk.find(b"\n\n") + 2
    # Nearly all streams begin with a short event that has the registered name, and need not be split.
    if 2 < end <= LOOKED_AT_FIRST and not contains(begins := chunk[:end], b"\r"):
        first = data_of(begins)
        if first and (first == LAST or model_in(first) == name):
            return exchange.answer(chunk, Route.LOCAL)
    return await split_answer(exchange, chunk, name, max_event_bytes)
