"""Option that asks a worker for a stream's usage, at no cost to its caller."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from router.dialects import Answer
from router.errors import WorkerRejected
from router.openai.usage import Takers, asking


class TellingUsage:
    """A stream that ends with its usage; a worker that refuses the question is asked once more without it."""

    __slots__ = ("_api", "_ask", "_asked", "_body", "_takers")

    def __init__(
        self,
        takers: Takers,
        api: str,
        body: bytes,
        ask: Callable[[bytes], AbstractAsyncContextManager[Answer]],
    ) -> None:
        self._takers = takers
        self._api = api
        self._body = body
        self._ask = ask

    async def __aenter__(self) -> Answer:
        now = asyncio.get_running_loop().time
        takes = self._takers.takes(self._api, now())
        question = asking(self._body) if takes else None
        self._asked = self._ask(question or self._body)
        try:
            answer = await self._asked.__aenter__()
        except WorkerRejected as refusal:
            minds = self._takers.may_mind(self._api, refusal.status, refusal.body)
            if question is None or not minds:
                raise
            self._asked = self._ask(self._body)
            answer = await self._asked.__aenter__()
            self._takers.refused(self._api, now())
            return answer
        if question is not None:
            self._takers.took(self._api)
            answer.hides_usage = True
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._asked.__aexit__(kind, error, trace)
