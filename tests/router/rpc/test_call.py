"""RPCs to a worker, over a real server on loopback: timeouts, failures, the SSRF guard, and clean-up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import (
    WorkerDied,
    WorkerError,
    WorkerFailed,
    WorkerRejected,
    WorkerTimeout,
    WorkerUnreachable,
)
from router.rpc import channel_pool
from router.rpc.call import Channels
from router.rpc.failures import PUSHBACK, RpcFailed
from router.rpc.messages import LOCALAI, Method, methods_of
from router.rpc.server import serving
from router.ssrf_guard import ELSEWHERE, OURSELVES, SsrfGuard
from tests.router.world import QUICK, until
from tests.workers.wire import wire

PREDICT, STREAM, HEALTH = (methods_of(LOCALAI)[n] for n in ("Predict", "PredictStream", "Health"))
IMPATIENT = QUICK.model_copy(update={"first_byte_timeout": 0.2, "idle_timeout": 0.2})


class Parrot:
    """Server that echoes its prompt; `metadata`, `waiting` and `left` record what reached it."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.waiting = 0
        self.left = 0

    async def predict(self, request: Any, context: Any) -> Any:
        self.metadata = dict(context.invocation_metadata())
        match request.Prompt.split(" "):
            case ["fail", code]:
                context.set_trailing_metadata(((PUSHBACK, "7000"),))
                await context.abort(grpc.StatusCode[code], "why not")
            case ["raise"]:
                raise AttributeError("'X' object has no attribute 'tokenizer'")
            case ["hang"]:
                await self._forever()
            case ["large"]:
                return PREDICT.reply_class(message=b"x" * 5_000_000)
        return PREDICT.reply_class(message=request.Prompt.encode())

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for word in request.Prompt.split(" "):
            if word == "hang":
                await self._forever()
            if word == "raise":
                raise ValueError(word)
            yield STREAM.reply_class(message=word.encode())

    async def health(self, request: Any, context: Any) -> Any:
        return HEALTH.reply_class(message=b"OK")

    async def _forever(self) -> None:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left += 1
            raise


@asynccontextmanager
async def parrot() -> AsyncIterator[tuple[Parrot, str]]:
    bird = Parrot()
    handlers = {"Predict": bird.predict, "PredictStream": bird.stream, "Health": bird.health}
    async with serving(LOCALAI, handlers, "127.0.0.1:0") as port:
        yield bird, f"grpc://127.0.0.1:{port}"


@asynccontextmanager
async def channels(chosen: Any = QUICK, guard: SsrfGuard | None = None) -> AsyncIterator[Channels]:
    made = Channels(chosen, guard or SsrfGuard())
    try:
        yield made
    finally:
        await made.close()


def prompt(text: str) -> Any:
    return PREDICT.request_class(Prompt=text)


async def test_an_answer_comes_back_and_metadata_arrives() -> None:
    async with parrot() as (bird, api), channels() as client:
        reply = await client.ask(api, PREDICT, prompt("hä"), {"x-request-id": "r-1"})
        assert reply.message.decode() == "hä"
    assert bird.metadata["x-request-id"] == "r-1"


async def test_a_stream_comes_message_by_message_and_has_an_end() -> None:
    async with (
        parrot() as (_, api),
        channels() as client,
        client.stream(api, STREAM, prompt("a b c")) as replies,
    ):
        messages = []
        while (message := await replies.next()) is not None:
            messages.append(message.message)
    assert messages == [b"a", b"b", b"c"]


async def test_a_message_of_megabytes_passes_both_ways() -> None:
    async with parrot() as (_, api), channels() as client:
        reply = await client.ask(api, PREDICT, prompt("x" * 6_000_000))
        assert len(reply.message) == 6_000_000


async def test_a_message_that_is_too_large_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_pool, "MAX_MESSAGE_BYTES", 1_000)
    async with parrot() as (_, api), channels() as client:
        with pytest.raises(WorkerRejected) as refused:
            await client.ask(api, PREDICT, prompt("x" * 2_000))
        assert refused.value.status == 413
        with pytest.raises(RpcFailed) as failed:
            await client.ask(api, PREDICT, prompt("large"))
    assert isinstance(failed.value.as_error("Predict"), WorkerFailed)


async def test_a_status_comes_with_the_servers_message_and_pushback() -> None:
    async with parrot() as (_, api), channels() as client:
        with pytest.raises(RpcFailed) as failed:
            await client.ask(api, PREDICT, prompt("fail RESOURCE_EXHAUSTED"))
    assert (failed.value.code, failed.value.words) == ("RESOURCE_EXHAUSTED", "why not")
    assert failed.value.pushback == 7


async def test_the_status_unavailable_from_a_server_is_unreachable_and_not_a_death() -> None:
    async with parrot() as (_, api), channels() as client:
        with pytest.raises(RpcFailed) as failed:
            await client.ask(api, PREDICT, prompt("fail UNAVAILABLE"))
    assert isinstance(failed.value.as_error("Predict"), WorkerUnreachable)


async def test_a_method_that_a_server_lacks_is_unimplemented() -> None:
    async with parrot() as (_, api), channels() as client:
        with pytest.raises(RpcFailed) as failed:
            await client.ask(api, methods_of(LOCALAI)["Status"], HEALTH.request_class())
    assert failed.value.code == "UNIMPLEMENTED"


async def test_silence_before_the_first_byte_times_out_and_the_worker_notices() -> None:
    async with parrot() as (bird, api), channels(IMPATIENT) as client:
        with pytest.raises(WorkerTimeout, match="first byte"):
            await client.ask(api, PREDICT, prompt("hang"))
        await until(lambda: bird.left == 1)
        with pytest.raises(WorkerTimeout, match="first byte"):
            async with client.stream(api, STREAM, prompt("hang")) as replies:
                await replies.next()
        await until(lambda: bird.left == 2)


async def test_silence_in_the_middle_breaks_the_answer() -> None:
    async with (
        parrot() as (_, api),
        channels(IMPATIENT) as client,
        client.stream(api, STREAM, prompt("a hang")) as replies,
    ):
        await replies.next()
        with pytest.raises(WorkerError, match="no byte within"):
            await replies.next()
        assert replies.broken is not None


async def test_the_worker_notices_a_caller_that_leaves_in_mid_stream() -> None:
    async with parrot() as (bird, api), channels() as client:
        async with client.stream(api, STREAM, prompt("a hang")) as replies:
            await replies.next()
            await until(lambda: bird.waiting == 1)
        await until(lambda: bird.left == 1)


async def test_the_worker_notices_a_cancelled_caller() -> None:
    async with parrot() as (bird, api), channels() as client:
        asking = asyncio.ensure_future(client.ask(api, PREDICT, prompt("hang")))
        await until(lambda: bird.waiting == 1)
        asking.cancel()
        await until(lambda: bird.left == 1)
        assert asking.cancelled()


async def test_an_absent_worker_is_unreachable_at_once_and_found_as_soon_as_it_starts() -> None:
    async with parrot() as (_, api):
        pass
    async with channels() as client:
        for _ in range(3):
            with pytest.raises(WorkerUnreachable) as failed:
                await client.ask(api, PREDICT, prompt("x"))
            assert not failed.value.sent
        handlers = {"Predict": Parrot().predict}
        async with serving(LOCALAI, handlers, api.removeprefix("grpc://")):
            assert (await client.ask(api, PREDICT, prompt("back"))).message == b"back"


async def test_a_cut_connection_is_a_death_and_the_next_call_opens_a_new_one() -> None:
    async with (
        parrot() as (bird, api),
        wire(int(api.rpartition(":")[2])) as line,
        channels() as client,
    ):
        laid = f"grpc://127.0.0.1:{line.port}"
        asking = asyncio.ensure_future(client.ask(laid, PREDICT, prompt("hang")))
        await until(lambda: bird.waiting == 1)
        line.cut()
        with pytest.raises(RpcFailed) as failed:
            await asking
        assert isinstance(failed.value.as_error("Predict"), WorkerDied)
        assert (await client.ask(laid, PREDICT, prompt("next"))).message == b"next"
        assert line.opened == 2


async def test_many_calls_share_one_connection() -> None:
    async with (
        parrot() as (_, api),
        wire(int(api.rpartition(":")[2])) as line,
        channels() as client,
    ):
        laid = f"grpc://127.0.0.1:{line.port}"
        replies = await asyncio.gather(
            *(client.ask(laid, PREDICT, prompt(str(n))) for n in range(50))
        )
        assert [message.message for message in replies] == [str(n).encode() for n in range(50)]
        assert line.opened == 1


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (SsrfGuard(is_own=lambda _: False), ELSEWHERE),
        (SsrfGuard(own_ports=lambda: range(65_536)), OURSELVES),
    ],
)
async def test_no_connection_is_made_to_an_address_where_no_worker_may_be(
    guard: SsrfGuard, why: str
) -> None:
    async with parrot() as (bird, api), channels(guard=guard) as client:
        with pytest.raises(WorkerUnreachable, match=why):
            await client.ask(api, PREDICT, prompt("x"))
        assert await client.send_probe(api, HEALTH, HEALTH.request_class()) is None
    assert bird.metadata == {}


async def test_a_host_name_is_resolved_and_its_address_checked() -> None:
    looked_at: list[str] = []

    def is_own(host: str) -> bool:
        looked_at.append(host)
        return host == "127.0.0.1"

    async with parrot() as (_, api), channels(guard=SsrfGuard(is_own=is_own)) as client:
        by_name = api.replace("127.0.0.1", "localhost")
        assert (await client.ask(by_name, PREDICT, prompt("x"))).message == b"x"
        assert (await client.ask(by_name, PREDICT, prompt("y"))).message == b"y"
    assert "127.0.0.1" in looked_at
    assert "localhost" not in looked_at


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with parrot() as (_, api), channels() as client:
        assert (await client.ask(api, PREDICT, prompt("x"))).message == b"x"


@asynccontextmanager
async def babbling(data: bytes) -> AsyncIterator[str]:
    """Run a server that answers with the given bytes."""

    async def predict(_: bytes, context: Any) -> bytes:
        return data

    async def stream(_: bytes, context: Any) -> AsyncIterator[bytes]:
        yield data

    handlers = {
        "Predict": grpc.unary_unary_rpc_method_handler(predict),
        "PredictStream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(LOCALAI, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_bytes_that_are_no_message_are_a_failure_of_the_worker() -> None:
    async with babbling(b"\xff" * 40) as api, channels() as client:
        with pytest.raises(WorkerFailed, match="not of its protocol"):
            await client.ask(api, PREDICT, prompt("x"))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 50])
async def test_a_server_of_another_protocol_is_unreachable(said: bytes) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with channels() as client:
        with pytest.raises(WorkerUnreachable):
            await client.ask(f"grpc://127.0.0.1:{port}", PREDICT, prompt("x"))
    server.close()


async def test_a_server_that_accepts_connections_and_stays_silent_times_out() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with channels(QUICK.model_copy(update={"connect_timeout": 0.2})) as client:
        assert not await client.can_connect_grpc(f"grpc://127.0.0.1:{port}")
        with pytest.raises(WorkerTimeout, match="connection") as late:
            await client.ask(f"grpc://127.0.0.1:{port}", PREDICT, prompt("x"))
        assert not late.value.sent
    for writer in writers:
        writer.close()
    server.close()


@settings(max_examples=30, deadline=None)
@given(garbage=st.binary(max_size=60))
@pytest.mark.parametrize("method", [PREDICT, STREAM], ids=["one", "stream"])
def test_any_bytes_of_a_worker_are_a_message_or_an_error_of_the_attempt(
    method: Method, garbage: bytes
) -> None:
    async def one() -> None:
        async with babbling(garbage) as api, channels() as client:
            with suppress(WorkerFailed):
                if method.streams:
                    async with client.stream(api, method, prompt("x")) as replies:
                        while await replies.next() is not None:
                            pass
                else:
                    await client.ask(api, method, prompt("x"))

    asyncio.run(one())


async def test_a_glance_is_short_and_distinguishes_a_status_from_silence() -> None:
    async with parrot() as (_, api), channels() as client:
        assert (await client.send_probe(api, HEALTH, HEALTH.request_class())).message == b"OK"
        assert await client.send_probe(api, PREDICT, prompt("hang")) is None
        with pytest.raises(RpcFailed):
            await client.send_probe(api, PREDICT, prompt("raise"))
    async with channels() as client:
        assert await client.send_probe(api, HEALTH, HEALTH.request_class()) is None


async def test_only_a_running_worker_greets() -> None:
    async with parrot() as (_, api), channels() as client:
        assert await client.can_connect_grpc(api)
    async with channels() as client:
        assert not await client.can_connect_grpc(api)


async def test_closing_fails_pending_calls_as_unreachable() -> None:
    async with parrot() as (bird, api), channels() as client:
        asking = asyncio.ensure_future(client.ask(api, PREDICT, prompt("hang")))
        await until(lambda: bird.waiting == 1)
        await client.close()
        with pytest.raises(WorkerUnreachable, match="closed"):
            await asking
