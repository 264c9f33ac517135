"""Server for RPCs, with a handler for each method name, and bounds on message size and concurrent calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from registry.task_group import BackgroundTasks
from router.rpc.channel_pool import MAX_MESSAGE_BYTES, grpc
from router.rpc.failures import PUSHBACK
from router.rpc.messages import methods_of

MAX_HEAD_BYTES = 16 * 1024
"""The most bytes of one call's metadata; the library refuses more."""

_CLOSE_WITHIN = 1.0

Answers = Callable[[Any, Any], Awaitable[Any]]
"""Handler that answers an RPC with one message, given its message and its context."""

Streams = Callable[[Any, Any], AsyncIterator[Any]]
"""Handler that answers an RPC with a stream of messages."""


class RpcRefused(Exception):
    """An RPC is refused; `code` names gRPC's status. `pushback` is the pause before a retry in seconds, 0 for none requested."""

    def __init__(self, code: str, message: str, *, pushback: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.pushback = pushback


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a server: bytes of one message, and concurrent calls, beyond which it answers RESOURCE_EXHAUSTED."""

    message_bytes: int = MAX_MESSAGE_BYTES
    calls: int = 1024


class CannotListen(OSError):
    """Another program listens at the address, or this user may not."""


Refuse = Callable[[Exception], RpcRefused]


def no_refusal(error: Exception) -> RpcRefused:
    """Raise the error unchanged: the library sends its text to the caller, which suits only stubs."""
    raise error


@asynccontextmanager
async def serving(
    service: str,
    handlers: Mapping[str, Answers | Streams],
    address: str,
    bounds: Bounds | None = None,
    refuse: Refuse = no_refusal,
    leaving: asyncio.Event | None = None,
    leave_within: float = 0.0,
) -> AsyncIterator[int]:
    """Serve a service at `HOST:PORT`, and yield the port; methods without a handler are UNIMPLEMENTED.

    `refuse` turns an error that is no `RpcRefused` into what the caller sees. Once `leaving` is set, connections are told to go
    elsewhere (GOAWAY), and calls in flight may take `leave_within` seconds.
    """
    bounds = bounds or Bounds()
    server = grpc.aio.server(options=_options(bounds), maximum_concurrent_rpcs=bounds.calls)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, _handlers(service, handlers, refuse)),)
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListen(
            f"cannot listen on {address}: another program does, or this user may not"
        ) from error
    await server.start()
    tasks = BackgroundTasks()
    if leaving is not None:
        tasks.spawn(_leave(server, leaving, leave_within))
    try:
        yield port
    finally:
        await server.stop(_CLOSE_WITHIN)
        await tasks.cancel_all()


async def _leave(server: Any, leaving: asyncio.Event, within: float) -> None:
    await leaving.wait()
    await server.stop(within)


def _handlers(
    service: str, functions: Mapping[str, Answers | Streams], refuse: Refuse
) -> dict[str, Any]:
    wrapped = {}
    for name, handler in functions.items():
        method = methods_of(service)[name]
        make = (
            grpc.unary_stream_rpc_method_handler
            if method.streams
            else grpc.unary_unary_rpc_method_handler
        )
        wrapped[name] = make(
            (_streaming if method.streams else _answering)(handler, method.request_class, refuse),
            response_serializer=method.reply_class.SerializeToString,
        )
    return wrapped


def metadata_of(call: Any) -> dict[str, str]:
    """Return the metadata of a call, without binary values."""
    return {k: v for k, v in call.invocation_metadata() or () if isinstance(v, str)}


def _read(kind: Any, data: bytes) -> Any:
    # The library would log what it cannot read, and answer UNKNOWN.
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RpcRefused("INVALID_ARGUMENT", "the message is not of this protocol") from error


def _answering(handler: Any, kind: Any, refuse: Refuse) -> Answers:
    async def answer(data: bytes, call: Any) -> Any:
        try:
            return await handler(_read(kind, data), call)
        except Exception as error:  # noqa: BLE001 (the outermost: the library would tell the caller the exception's text)
            return await _abort(call, _refusal(error, refuse))

    return answer


def _streaming(handler: Any, kind: Any, refuse: Refuse) -> Streams:
    async def stream(data: bytes, call: Any) -> AsyncIterator[Any]:
        try:
            async for reply in handler(_read(kind, data), call):
                yield reply
        except Exception as error:  # noqa: BLE001 (as above)
            await _abort(call, _refusal(error, refuse))

    return stream


def _refusal(error: Exception, refuse: Refuse) -> RpcRefused:
    return error if isinstance(error, RpcRefused) else refuse(error)


async def _abort(call: Any, refused: RpcRefused) -> Any:
    again = ((PUSHBACK, str(round(refused.pushback * 1000))),) if refused.pushback else ()
    await call.abort(grpc.StatusCode[refused.code], str(refused), again)


def _options(bounds: Bounds) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", bounds.message_bytes),
        ("grpc.max_receive_message_length", bounds.message_bytes),
        ("grpc.max_metadata_size", MAX_HEAD_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEAD_BYTES),
        # Otherwise a second server could listen at the same address, and take half of the calls.
        ("grpc.so_reuseport", 0),
    ]
