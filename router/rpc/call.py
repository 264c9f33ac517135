"""Call of an RPC at a worker, within four timeouts, over the one channel to its address.

Connecting and the first message have timeouts, and a failure until then is a failed attempt. Then the silence between two
messages and the whole answer have one each.

The metadata of a call are the request's id and trace, and the operator's headers.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from yarl import URL

from router.dialects import ALIVE_SECONDS
from router.errors import AnswerBroken, WorkerError, WorkerTimeout
from router.http.heads import headers_to
from router.http.timers import Deadlines
from router.requests import Request
from router.rpc.channel_pool import WorkerChannel, WorkerEndpoint
from router.rpc.failures import RpcFailed
from router.rpc.messages import Method
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard
from router.workers import Worker


def metadata_to(worker: Worker, request: Request) -> Mapping[str, str]:
    """Return the metadata for a worker; raise `WorkerFailed` if its operator's headers cannot be read."""
    headers = {name.lower(): value for name, value in headers_to(worker, request).items()}
    return {
        name: value
        for name, value in headers.items()
        if name not in ("content-type", "accept") and value.isascii() and value.isprintable()
    }


MAX_ENDPOINTS = 4_096
"""The most addresses to which channels are kept; beyond that the unused ones are dropped."""

NO_METADATA: Mapping[str, str] = MappingProxyType({})


class Channels:
    """The channels to this machine's workers. Lives on one event loop."""

    def __init__(
        self, settings: RouterSettings, guard: SsrfGuard, deadlines: Deadlines | None = None
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._deadlines = deadlines or Deadlines()
        self._endpoints: dict[tuple[str, int], WorkerEndpoint] = {}

    async def ask(
        self,
        api: str,
        method: Method,
        message: Any,
        metadata: Mapping[str, str] = NO_METADATA,
        *,
        within: float = math.inf,
    ) -> Any:
        """Make one RPC, and return its one answer; raise `RpcFailed`, or a `WorkerError` for a failure without a status.

        The answer must come within the first byte's timeout, or `within` seconds if given.
        """
        settings = self._settings
        usual = min(settings.first_byte_timeout, settings.total_timeout)
        budget = usual if math.isinf(within) else within
        async with self._use_channel(api) as channel:
            call = channel.call(method, message, metadata, budget)
            try:
                async with self._deadlines.within(budget):
                    return await channel.read_reply(call, budget)
            except RpcFailed as failed:
                _hide(message, metadata, failed)
                raise
            except TimeoutError as error:
                raise WorkerTimeout("first byte", budget) from error
            finally:
                call.cancel()

    @asynccontextmanager
    async def stream(
        self, api: str, method: Method, message: Any, metadata: Mapping[str, str] = NO_METADATA
    ) -> AsyncIterator["Replies"]:
        """Make an RPC whose replies are streamed; leaving early cancels it at the worker."""
        async with self._use_channel(api) as channel:
            call = channel.call(method, message, metadata, self._settings.total_timeout)
            try:
                yield Replies(channel, call, message, metadata, self._settings, self._deadlines)
            finally:
                call.cancel()

    async def send_probe(
        self, api: str, method: Method, message: Any, metadata: Mapping[str, str] = NO_METADATA
    ) -> Any:
        """Make a small RPC; return the answer, `None` for none within `ALIVE_SECONDS`; raise `RpcFailed`."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS), self._use_channel(api) as channel:
                call = channel.call(method, message, metadata, ALIVE_SECONDS)
                try:
                    return await channel.read_reply(call, ALIVE_SECONDS)
                except RpcFailed as failed:
                    _hide(message, metadata, failed)
                    raise
                finally:
                    call.cancel()
        except (TimeoutError, WorkerError):
            return None

    async def connection(self, api: str) -> object:
        """Return the identity of the connection to a worker, connecting anew if it broke; raise a `WorkerError`.

        Another identity than before may mean another process.
        """
        return await self._endpoint(api).open_channel()

    async def can_connect_grpc(self, api: str) -> bool:
        """Return whether a gRPC connection is set up within `ALIVE_SECONDS`: servers do that even if all handlers are busy."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                return await self._endpoint(api).can_connect_grpc()
        except TimeoutError:
            return False

    async def can_connect_tcp(self, api: str) -> bool:
        """Return whether a TCP connection is accepted within `ALIVE_SECONDS`: a busy server with one thread does no more."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                return await self._endpoint(api).can_connect_tcp()
        except TimeoutError:
            return False

    async def close(self) -> None:
        """Close every channel, and cut the calls in flight."""
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            await endpoint.close()

    @asynccontextmanager
    async def _use_channel(self, api: str) -> AsyncIterator[WorkerChannel]:
        channel = await self._endpoint(api).open_channel()
        channel.users += 1
        try:
            yield channel
        finally:
            channel.users -= 1
            await channel.close_if_unused()

    def _endpoint(self, api: str) -> WorkerEndpoint:
        url = URL(api)
        key = url.host or "", url.port or 0
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            if len(self._endpoints) >= MAX_ENDPOINTS:
                self._endpoints = {k: e for k, e in self._endpoints.items() if e.is_used}
            endpoint = self._endpoints[key] = WorkerEndpoint(*key, self._settings, self._guard)
        return endpoint


class Replies:
    """The replies of one RPC, as they arrive. Once `began` is set, by the first one, a timeout is a broken answer."""

    def __init__(
        self,
        channel: WorkerChannel,
        call: Any,
        message: Any,
        metadata: Mapping[str, str],
        settings: RouterSettings,
        deadlines: Deadlines,
    ) -> None:
        self._channel = channel
        self._call = call
        self._message = message
        self._metadata = metadata
        self._settings = settings
        self._deadlines = deadlines
        self._deadline = deadlines.loop.time() + settings.total_timeout
        self.began = False
        self.has_ended = False
        """Whether the worker has ended the stream."""
        self.broken: AnswerBroken | None = None

    async def next(self) -> Any:
        """Return the next message, `None` at the end; raise `RpcFailed`, or a `WorkerError` for a failure without a status."""
        settings, seconds_left = self._settings, self._deadline - self._deadlines.loop.time()
        silent = settings.idle_timeout if self.began else settings.first_byte_timeout
        try:
            async with self._deadlines.within(max(0.0, min(silent, seconds_left))):
                message = await self._channel.read(self._call, settings.total_timeout)
        except TimeoutError as error:
            raise self._late(silent, seconds_left) from error
        except RpcFailed as failed:
            self.has_ended = True
            _hide(self._message, self._metadata, failed)
            raise
        self.began, self.has_ended = True, message is None
        return message

    def mark_broken(self, message: str) -> AnswerBroken:
        """Remember that the answer broke, and return the error to raise."""
        self.broken = AnswerBroken(message)
        return self.broken

    def _late(self, silent: float, seconds_left: float) -> WorkerError:
        if seconds_left <= silent:
            late = WorkerTimeout("end", self._settings.total_timeout)
        else:
            late = WorkerTimeout("byte" if self.began else "first byte", silent)
        return self.mark_broken(str(late)) if self.began else late


def _hide(message: Any, metadata: Mapping[str, str], failed: RpcFailed) -> None:
    """Keep the request and its metadata out of a failure's message."""
    failed.redact(message.SerializeToString(), metadata.values())
