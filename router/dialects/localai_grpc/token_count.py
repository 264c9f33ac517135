"""Token counts of texts of which a backend told none: it is asked to cut the text, where it can."""

import time

from router.canonical import Asked
from router.dialects.localai_grpc.backend import METHODS, Errand
from router.dialects.localai_grpc.reply_parser import COUNTABLE
from router.openai.usage import Usage
from router.requests import Kind
from router.rpc.call import Channels
from router.rpc.failures import RpcFailed
from router.translate.text import read_by

AGAIN = 600.0
"""Seconds after which a backend that could not count is asked once more."""

MAX_WORKERS = 4_096
"""Backends that are remembered; beyond that all are forgotten, which costs each one more question."""

_TOKENIZE = METHODS["TokenizeString"]


class Counting:
    """Asks backends to count, but not those that have shown that they cannot."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._cannot: dict[str, float] = {}

    async def spent(self, errand: Errand, asked: Asked, choice: int, text: str) -> Usage | None:
        """Return what one choice took, `None` where nobody can tell. What a template made of a chat is estimated."""
        written = await self._tokens(errand, text)
        if written is None:
            return None
        if asked.kind is not Kind.CHAT:
            read = await self._tokens(errand, asked.prompts[choice // asked.n])
            if read is not None:
                return Usage(read, written)
        return Usage(read_by(asked, choice), written, estimated=True)

    async def _tokens(self, errand: Errand, text: str) -> int | None:
        api, now = errand.worker.api, time.monotonic()
        if now - self._cannot.get(api, -AGAIN) < AGAIN or len(text) > COUNTABLE:
            return None
        if not text:
            return 0
        try:
            message = _TOKENIZE.asked(Prompt=text)
            told = await self._channels.glance(api, _TOKENIZE, message, errand.said)
        except RpcFailed:
            told = None
        count = max(told.length, len(told.tokens)) if told is not None else 0
        if count > 0:
            return count
        if len(self._cannot) >= MAX_WORKERS:
            self._cannot.clear()
        self._cannot[api] = now
        return None
