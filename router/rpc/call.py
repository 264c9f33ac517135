"""Call of an RPC at a worker: within four budgets, over the one channel that leads to its place.

Connecting and the first message have budgets before which everything is a failed attempt; then silence between two messages
and the whole answer.

Metadata beside a message: our id and trace of the request, and the operator's headers.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from yarl import URL

from router.dialects import ALIVE_SECONDS
from router.errors import AnswerBroken, WorkerError, WorkerTimeout
from router.http.deadlines import Deadlines
from router.http.heads import headers_to
from router.requests import Request
from router.rpc.channel_pool import ChannelPlace, Line
from router.rpc.failures import RpcFailed
from router.rpc.messages import Method
from router.settings import RouterSettings
from router.ssrf_guard import Premises
from router.workers import Worker


def metadata_to(worker: Worker, request: Request) -> Mapping[str, str]:
    """Return the metadata that travel to a worker; raise `WorkerFailed` where its operator's cannot be had."""
    headers = {name.lower(): value for name, value in headers_to(worker, request).items()}
    return {
        name: value
        for name, value in headers.items()
        if name not in ("content-type", "accept") and value.isascii() and value.isprintable()
    }


MAX_PLACES = 4_096
"""Places to which channels are kept; beyond that those go which nobody uses."""

NOTHING_SAID: Mapping[str, str] = MappingProxyType({})


class Channels:
    """The channels to this machine's workers. Lives on one event loop."""

    def __init__(
        self, settings: RouterSettings, premises: Premises, deadlines: Deadlines | None = None
    ) -> None:
        self._settings = settings
        self._premises = premises
        self._deadlines = deadlines or Deadlines()
        self._places: dict[tuple[str, int], ChannelPlace] = {}

    async def ask(
        self,
        api: str,
        method: Method,
        message: Any,
        said: Mapping[str, str] = NOTHING_SAID,
        *,
        within: float = math.inf,
    ) -> Any:
        """Put one RPC, and return its one answer; raise `RpcFailed`, or a `WorkerError` for what no status tells.

        The answer has the time of a first byte, or `within` so many seconds where that is given.
        """
        settings = self._settings
        usual = min(settings.first_byte_timeout, settings.total_timeout)
        budget = usual if math.isinf(within) else within
        async with self._line(api) as line:
            call = line.call(method, message, said, budget)
            try:
                async with self._deadlines.within(budget):
                    return await line.told(call, budget)
            except RpcFailed as failed:
                _hide(message, said, failed)
                raise
            except TimeoutError as error:
                raise WorkerTimeout("first byte", budget) from error
            finally:
                call.cancel()

    @asynccontextmanager
    async def stream(
        self, api: str, method: Method, message: Any, said: Mapping[str, str] = NOTHING_SAID
    ) -> AsyncIterator["Replies"]:
        """Put an RPC whose answers come one by one; leaving early cancels it at the worker."""
        async with self._line(api) as line:
            call = line.call(method, message, said, self._settings.total_timeout)
            try:
                yield Replies(
                    line,
                    call,
                    self._settings,
                    self._deadlines,
                    partial(_hide, message, said),
                )
            finally:
                call.cancel()

    async def glance(
        self, api: str, method: Method, message: Any, said: Mapping[str, str] = NOTHING_SAID
    ) -> Any:
        """Ask something small; return the answer, `None` for none within `ALIVE_SECONDS`; raise `RpcFailed`."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS), self._line(api) as line:
                call = line.call(method, message, said, ALIVE_SECONDS)
                try:
                    return await line.told(call, ALIVE_SECONDS)
                except RpcFailed as failed:
                    _hide(message, said, failed)
                    raise
                finally:
                    call.cancel()
        except (TimeoutError, WorkerError):
            return None

    async def connection(self, api: str) -> object:
        """Return what stands for the connection to a worker, made anew where it broke; raise a `WorkerError`.

        Another one than before may lead to another process.
        """
        return await self._place(api).line()

    async def greets(self, api: str) -> bool:
        """Say whether a new connection is greeted within `ALIVE_SECONDS`: servers do so while all of their handlers are busy."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                return await self._place(api).greets()
        except TimeoutError:
            return False

    async def accepts(self, api: str) -> bool:
        """Say whether a new connection is taken within `ALIVE_SECONDS`: a server of one thread greets nobody while it works."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                return await self._place(api).accepts()
        except TimeoutError:
            return False

    async def close(self) -> None:
        """Close every channel, and cut what is under way."""
        places, self._places = self._places, {}
        for place in places.values():
            await place.close()

    @asynccontextmanager
    async def _line(self, api: str) -> AsyncIterator[Line]:
        line = await self._place(api).line()
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            await line.close_if_unused()

    def _place(self, api: str) -> ChannelPlace:
        url = URL(api)
        key = url.host or "", url.port or 0
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                self._places = {key: p for key, p in self._places.items() if p.used}
            place = self._places[key] = ChannelPlace(*key, self._settings, self._premises)
        return place


class Replies:
    """The answers of one RPC, as they come. `began` says that the first is there: from then on a failure is a broken answer."""

    def __init__(
        self,
        line: Line,
        call: Any,
        settings: RouterSettings,
        deadlines: Deadlines,
        hide: Callable[[RpcFailed], None],
    ) -> None:
        self._line = line
        self._call = call
        self._hide = hide
        self._settings = settings
        self._deadlines = deadlines
        self._ends = deadlines.loop.time() + settings.total_timeout
        self.began = False
        self.over = False
        """Whether the worker has said its last."""
        self.broken: AnswerBroken | None = None

    async def next(self) -> Any:
        """Return the next message, `None` at the end; raise `RpcFailed`, or a `WorkerError` for what no status tells."""
        settings, left = self._settings, self._ends - self._deadlines.loop.time()
        silent = settings.idle_timeout if self.began else settings.first_byte_timeout
        try:
            async with self._deadlines.within(max(0.0, min(silent, left))):
                message = await self._line.read(self._call, settings.total_timeout)
        except TimeoutError as error:
            raise self._late(silent, left) from error
        except RpcFailed as failed:
            self.over = True
            self._hide(failed)
            raise
        self.began, self.over = True, message is None
        return message

    def broke(self, message: str) -> AnswerBroken:
        """Remember that the answer broke, and return the error to raise."""
        self.broken = AnswerBroken(message)
        return self.broken

    def _late(self, silent: float, left: float) -> WorkerError:
        if left <= silent:
            late = WorkerTimeout("end", self._settings.total_timeout)
        else:
            late = WorkerTimeout("byte" if self.began else "first byte", silent)
        return self.broke(str(late)) if self.began else late


def _hide(message: Any, said: Mapping[str, str], failed: RpcFailed) -> None:
    """Keep what was asked, and what was said beside it, out of what is told of a failure."""
    failed.hide(message.SerializeToString(), said.values())
