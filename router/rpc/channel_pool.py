"""Pool of gRPC channels: one to each address, reopened when it broke, and only if the SSRF guard permits it.

A name is resolved once for a channel, which connects to the address that the guard checked: grpc itself resolves nothing,
follows no proxy of the environment, retries nothing and reads no configuration from DNS.

grpc is silenced before it is loaded, unless `GRPC_VERBOSITY` is set: its core bypasses the node's log, and writes callers'
addresses.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from router.errors import WorkerError, WorkerFailed, WorkerTimeout, WorkerUnreachable
from router.http.dial import addresses_of
from router.rpc.failures import RpcFailed, too_large
from router.rpc.messages import Method
from router.settings import RouterSettings
from router.ssrf_guard import SsrfGuard

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

__all__ = ["grpc"]


MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message in both directions: a larger answer is the worker's failure, a larger request is refused with 413."""

_T = TypeVar("_T")
_NOTICE = 0.1  # seconds within which a channel notices that the other end hung up
_GRACE = 1.0  # seconds by which a call's deadline at the worker exceeds the node's timeout
_READY = grpc.ChannelConnectivity.READY
_FAILED = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class WorkerEndpoint:
    """The address where a worker listens, and the current channel to it."""

    def __init__(self, host: str, port: int, settings: RouterSettings, guard: SsrfGuard) -> None:
        self._host = host
        self._port = port
        self._timeout = settings.connect_timeout
        self._guard = guard
        self._open_lock = asyncio.Lock()
        self._channel: WorkerChannel | None = None

    @property
    def is_used(self) -> bool:
        """Whether any call uses the channel, or waits for it."""
        return self._open_lock.locked() or (self._channel is not None and self._channel.users > 0)

    async def can_connect_grpc(self) -> bool:
        """Return whether a separate connection can be set up now."""
        try:
            channel = await self._opened()
        except WorkerError:
            return False
        await channel.close()
        return True

    async def can_connect_tcp(self) -> bool:
        """Return whether a process listens: the kernel accepts a connection for a busy process, but not for one that is gone."""
        try:
            async with asyncio.timeout(self._timeout):
                for address in await addresses_of(self._host, self._port):
                    if not self._guard.objection(address, self._port):
                        _, writer = await asyncio.open_connection(address, self._port)
                        writer.transport.abort()
                        return True
        except OSError:
            return False
        return False

    async def open_channel(self) -> "WorkerChannel":
        """Return a connected channel; raise `WorkerUnreachable` or `WorkerTimeout`."""
        if self._channel is not None and self._channel.is_connected:
            return self._channel
        async with self._open_lock:
            if self._channel is None or not self._channel.is_connected:
                await self._drop()
                self._channel = await self._opened()
            return self._channel

    async def close(self) -> None:
        """Cut the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.retired = True
            await channel.close_if_unused()

    async def _opened(self) -> "WorkerChannel":
        message = "the worker cannot be reached"
        failure: WorkerError = WorkerUnreachable(message)
        try:
            async with asyncio.timeout(self._timeout):
                for address in await addresses_of(self._host, self._port):
                    if reason := self._guard.objection(address, self._port):
                        failure = WorkerUnreachable(f"{message}: {reason}")
                    elif channel := await _connected(address, self._port, self._timeout):
                        return channel
        except TimeoutError as error:
            raise WorkerTimeout("connection", self._timeout) from error
        except OSError as error:
            raise failure from error
        raise failure


class WorkerChannel:
    """One channel to one address; `retired` says that it is closed once no call uses it."""

    def __init__(self, address: str, port: int, timeout: float) -> None:
        host = f"[{address}]" if ":" in address else address
        family = "ipv6" if ":" in address else "ipv4"
        self.grpc_channel = grpc.aio.insecure_channel(
            f"{family}:{host}:{port}", options=_options(timeout)
        )
        self.users = 0
        self.retired = False

    @property
    def is_connected(self) -> bool:
        """Whether the channel is connected, and was never seen to break."""
        return not self.retired and self.grpc_channel.get_state() is _READY

    def call(
        self, method: Method, message: Any, metadata: Mapping[str, str], seconds: float
    ) -> Any:
        """Begin an RPC; raise `WorkerRejected` if its message is too large."""
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            raise too_large()
        make = self.grpc_channel.unary_stream if method.streams else self.grpc_channel.unary_unary
        begin = make(
            method.path,
            request_serializer=method.request_class.SerializeToString,
            response_deserializer=_reader(method.reply_class),
        )
        return begin(message, timeout=seconds + _GRACE, metadata=tuple(metadata.items()))

    async def read_reply(self, call: Any, deadline: float) -> Any:
        """Return the one answer of a call."""
        try:
            return _checked(await call)
        except grpc.aio.AioRpcError as error:
            raise await self._failed(error, deadline) from error
        except asyncio.CancelledError as error:
            raise _closed() from error

    async def read(self, call: Any, deadline: float) -> Any:
        """Return the next answer of a call, `None` at its end."""
        try:
            message = await call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._failed(error, deadline) from error
        except asyncio.CancelledError as error:
            raise _closed() from error
        return None if message is grpc.aio.EOF else _checked(message)

    async def _failed(self, error: grpc.aio.AioRpcError, deadline: float) -> RpcFailed:
        code, details = error.code(), error.details() or ""
        trailing = {k: v for k, v in error.trailing_metadata() or () if isinstance(v, str)}
        failed = RpcFailed(code.name, details, trailing=trailing, deadline=deadline)
        if code is grpc.StatusCode.UNAVAILABLE:
            failed.hung_up = await self._hung_up()
        return failed

    async def _hung_up(self) -> bool:
        """Return whether the connection ended during a call: grpc reports this by a status that servers may send as well.

        The channel may notice only now that its connection is gone; then it is retired.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE):
                await self.grpc_channel.wait_for_state_change(_READY)
            self.retired = True
        return self.grpc_channel.get_state() is grpc.ChannelConnectivity.IDLE

    async def close_if_unused(self) -> None:
        """Close the channel if it is retired and has no calls."""
        if self.retired and not self.users:
            await self.close()

    async def close(self) -> None:
        """Close the channel, and cut its calls."""
        await self.grpc_channel.close()


def _closed() -> BaseException:
    """Return the error for a cancelled call: its task was cancelled, or the channel was closed during the call."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return asyncio.CancelledError()
    return WorkerUnreachable("the channel to the worker was closed", sent=True)


async def _connected(address: str, port: int, timeout: float) -> WorkerChannel | None:
    """Return a connected channel, `None` if there is no answer."""
    channel = WorkerChannel(address, port, timeout)
    try:
        while (state := channel.grpc_channel.get_state(try_to_connect=True)) is not _READY:
            if state in _FAILED:
                return None
            await channel.grpc_channel.wait_for_state_change(state)
    finally:
        if not channel.is_connected:
            await channel.close()
    return channel


def _options(timeout: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Ignore proxies of the environment: a worker is at the address where it was registered.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        # An idle channel is kept: a new connection may reach another process.
        ("grpc.client_idle_timeout_ms", 2**31 - 1),
        # Despite its name this is also the timeout of one attempt to connect; the node's own expires first.
        ("grpc.min_reconnect_backoff_ms", int(timeout * 1000) + 1000),
    ]


def _reader(message_class: Any) -> Any:
    def read(data: bytes) -> Any:
        # An exception here would be reported as the server's internal error, with a traceback in the log.
        try:
            return message_class.FromString(data)
        except DecodeError:
            return _GARBLED

    return read


_GARBLED = object()


def _checked(message: _T) -> _T:
    if message is _GARBLED:
        raise WorkerFailed("the worker's message is not of its protocol")
    return message
