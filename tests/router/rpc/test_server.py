"""A gRPC server for a face or a stub: its limits and refusals."""

import asyncio
import socket
from typing import Any

import pytest

from router.rpc.call import Channels
from router.rpc.channel_pool import grpc
from router.rpc.failures import RpcFailed
from router.rpc.messages import LOCALAI, methods_of
from router.rpc.server import Bounds, CannotListen, RpcRefused, metadata_of, serving
from router.ssrf_guard import SsrfGuard
from tests.router.world import QUICK

PREDICT = methods_of(LOCALAI)["Predict"]


async def answers(request: Any, context: Any) -> Any:
    return PREDICT.reply_class(message=b"done")


async def test_calls_beyond_the_limit_are_refused() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def waits(request: Any, context: Any) -> Any:
        entered.set()
        await opened.wait()
        return PREDICT.reply_class(message=b"done")

    client = Channels(QUICK, SsrfGuard())
    async with serving(LOCALAI, {"Predict": waits}, "127.0.0.1:0", Bounds(calls=1)) as port:
        api = f"grpc://127.0.0.1:{port}"
        first = asyncio.ensure_future(client.ask(api, PREDICT, PREDICT.request_class()))
        await entered.wait()
        with pytest.raises(RpcFailed, match="RESOURCE_EXHAUSTED"):
            await client.ask(api, PREDICT, PREDICT.request_class())
        opened.set()
        assert (await first).message == b"done"
    await client.close()


async def test_a_server_that_leaves_finishes_its_calls_and_takes_no_others() -> None:
    entered, opened, leaving = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waits(request: Any, context: Any) -> Any:
        entered.set()
        await opened.wait()
        return PREDICT.reply_class(message=b"done")

    client = Channels(QUICK, SsrfGuard())
    server = serving(LOCALAI, {"Predict": waits}, "127.0.0.1:0", leaving=leaving, leave_within=60)
    async with server as port:
        first = asyncio.ensure_future(
            client.ask(f"grpc://127.0.0.1:{port}", PREDICT, PREDICT.request_class())
        )
        await entered.wait()
        leaving.set()
        async with asyncio.timeout(5):
            while is_open(port):  # noqa: ASYNC110 (the library tells no one)
                await asyncio.sleep(0.01)
        assert not first.done()
        opened.set()
        assert (await first).message == b"done"
    await client.close()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_message_beyond_the_size_limit_is_refused() -> None:
    client = Channels(QUICK, SsrfGuard())
    bounds = Bounds(message_bytes=1_000)
    async with serving(LOCALAI, {"Predict": answers}, "127.0.0.1:0", bounds) as port:
        with pytest.raises(RpcFailed, match="RESOURCE_EXHAUSTED"):
            await client.ask(
                f"grpc://127.0.0.1:{port}", PREDICT, PREDICT.request_class(Prompt="0" * 2_000)
            )
    await client.close()


async def test_a_port_in_use_is_not_shared() -> None:
    async with serving(LOCALAI, {"Predict": answers}, "127.0.0.1:0") as port:
        with pytest.raises(CannotListen):
            async with serving(LOCALAI, {"Predict": answers}, f"127.0.0.1:{port}"):
                pass


async def refuses(request: Any, context: Any) -> Any:
    raise RpcRefused("RESOURCE_EXHAUSTED", "come again", pushback=2.5)


async def refuses_late(request: Any, context: Any) -> Any:
    yield PREDICT.reply_class(message=b"half")
    raise RpcRefused("UNAVAILABLE", "gone")


async def test_a_refusal_is_a_status_with_its_message_and_pushback() -> None:
    client = Channels(QUICK, SsrfGuard())
    async with serving(LOCALAI, {"Predict": refuses}, "127.0.0.1:0") as port:
        with pytest.raises(RpcFailed) as failed:
            await client.ask(f"grpc://127.0.0.1:{port}", PREDICT, PREDICT.request_class())
    await client.close()
    refusal = failed.value
    assert (refusal.code, refusal.words, refusal.pushback) == (
        "RESOURCE_EXHAUSTED",
        "come again",
        2.5,
    )


async def test_a_stream_may_be_refused_half_way() -> None:
    client = Channels(QUICK, SsrfGuard())
    stream = methods_of(LOCALAI)["PredictStream"]
    async with serving(LOCALAI, {"PredictStream": refuses_late}, "127.0.0.1:0") as port:
        api = f"grpc://127.0.0.1:{port}"
        async with client.stream(api, stream, stream.request_class()) as replies:
            assert (await replies.next()).message == b"half"
            with pytest.raises(RpcFailed, match="UNAVAILABLE"):
                await replies.next()
    await client.close()


async def test_a_message_that_cannot_be_decoded_is_an_invalid_argument_and_no_log_line(
    caplog,
) -> None:
    handlers = {"Predict": answers, "PredictStream": refuses_late}
    async with (
        serving(LOCALAI, handlers, "127.0.0.1:0") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        calls = [
            channel.unary_unary(f"/{LOCALAI}/Predict")(b"\xff\xff"),
            channel.unary_stream(f"/{LOCALAI}/PredictStream")(b"\xff\xff"),
        ]
        codes = [(await call.code()).name for call in calls]
    assert codes == ["INVALID_ARGUMENT"] * 2
    assert not caplog.records


async def test_metadata_of_a_call_is_available_to_the_handler() -> None:
    client, metadata = Channels(QUICK, SsrfGuard()), []

    async def look(request: Any, context: Any) -> Any:
        metadata.append(metadata_of(context))
        return PREDICT.reply_class()

    async with serving(LOCALAI, {"Predict": look}, "127.0.0.1:0") as port:
        await client.ask(
            f"grpc://127.0.0.1:{port}", PREDICT, PREDICT.request_class(), {"x-model": "m"}
        )
    await client.close()
    assert metadata[0]["x-model"] == "m"
