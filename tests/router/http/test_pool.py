"""Laws of pooled connections: reused while alive, replaced when they died idle, cut when a request is cancelled."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from yarl import URL

from router.dialects import Dialect
from router.dialects.openai_http import create
from router.errors import WorkerFailed, WorkerTimeout, WorkerUnreachable
from router.http.dial import tcp_dialer
from router.http.errors import TlsFailed
from router.http.heads import request_head
from router.http.pool import WORKERS_IDLE_SECONDS, ConnectionPool, request_start
from router.ssrf_guard import SsrfGuard
from tests.certificates import write
from tests.router.world import QUICK, ask, chat, links, own, until
from tests.workers.openai_worker import OpenAIWorker
from tests.workers.raw import Serve, raw, take

OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
    b'{"model":"llama"}'
)


async def test_a_connection_is_reused(worker: OpenAIWorker, dialect: Dialect) -> None:
    for _ in range(5):
        await ask(dialect, chat(), own(worker.url))
    assert len(worker.connections) == 1


async def test_a_connection_closed_before_a_request_is_written_is_not_used(
    dialect: Dialect,
) -> None:
    with closing_worker() as (url, closed):
        for _ in range(3):
            _, body = await ask(dialect, chat(), own(url))
            assert body == b'{"model":"llama"}'
            # No turn of the event loop passes between its end and the next request.
            assert closed.wait(5)
            closed.clear()


STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


async def test_a_request_after_a_stream_avoids_the_connection_that_the_worker_may_close(
    dialect: Dialect,
) -> None:
    """Hang up as cpp-httplib does, a little later than the next request comes."""
    opened: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        await take(reader)
        writer.write(STREAM)
        await writer.drain()
        await asyncio.sleep(0.05)

    async with raw(serve) as url:
        for _ in range(3):
            await ask(dialect, chat(stream=True), own(url))
    assert len(opened) == 3


async def test_a_worker_that_was_seen_to_close_after_an_answer_loses_no_request(
    dialect: Dialect,
) -> None:
    """A closing is seen after an earlier answer, such as that to the question for its models when the worker is registered."""
    seen, opened = asyncio.Event(), list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        await take(reader)
        writer.write(OK)
        await writer.drain()
        if len(opened) > 1:
            await asyncio.sleep(0.05)
        writer.close()
        seen.set()

    async with raw(serve) as url:
        await ask(dialect, chat(), own(url))
        await seen.wait()
        for _ in range(3):
            await ask(dialect, chat(), own(url))
    assert len(opened) == 4


async def test_a_worker_that_closes_only_after_a_while_keeps_its_connections(
    worker: OpenAIWorker,
) -> None:
    url = URL(worker.url) / "chat/completions"
    pool = ConnectionPool(tcp_dialer("127.0.0.1", url.port or 0), QUICK, rest=1e-9)
    body = b'{"model":"llama"}'

    async def ask() -> None:
        reply = await pool.ask(request_head(request_start(url), {}, len(body)), body)
        await reply.read_up_to(1_000_000)

    await ask()
    [closed] = worker.connections
    assert isinstance(closed, asyncio.Transport)
    closed.abort()
    await until(lambda: pool.is_unused)
    await ask()
    await ask()
    assert len(worker.connections) == 2
    pool.close()


@pytest.mark.parametrize(("rest", "streamed"), [(60.0, 2), (0.0, 1)])
async def test_a_connection_rests_only_after_a_stream(
    worker: OpenAIWorker, rest: float, streamed: int
) -> None:
    url = URL(worker.url) / "chat/completions"
    pool = ConnectionPool(tcp_dialer("127.0.0.1", url.port or 0), QUICK, rest=rest)

    async def ask(body: bytes) -> None:
        reply = await pool.ask(request_head(request_start(url), {}, len(body)), body)
        await reply.read_up_to(1_000_000)

    whole, stream = b'{"model":"llama"}', b'{"model":"llama","stream":true}'
    for body in (whole, whole, stream):
        await ask(body)
    assert len(worker.connections) == 1
    await ask(whole)
    assert len(worker.connections) == streamed
    pool.close()


async def test_a_resting_connection_is_replaced_when_the_limit_is_reached(
    worker: OpenAIWorker,
) -> None:
    url = URL(worker.url) / "chat/completions"
    alone = QUICK.model_copy(update={"connections_per_worker": 1})
    pool = ConnectionPool(tcp_dialer("127.0.0.1", url.port or 0), alone, rest=60)
    body = b'{"model":"llama","stream":true}'
    for _ in range(3):
        reply = await pool.ask(request_head(request_start(url), {}, len(body)), body)
        await reply.read_up_to(1_000_000)
    assert len(worker.connections) == 3
    pool.close()


@contextmanager
def closing_worker() -> Iterator[tuple[str, threading.Event]]:
    """Run a worker in a thread: it answers three requests, closing each connection and setting the event after each."""
    closed = threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(OK)
            closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", closed
        thread.join(5)


@pytest.mark.parametrize(("idle", "opened"), [(60.0, 1), (0.0, 3)])
async def test_an_idle_connection_is_kept_for_the_configured_seconds(
    worker: OpenAIWorker, idle: float, opened: int
) -> None:
    url = URL(worker.url)
    pool = ConnectionPool(tcp_dialer("127.0.0.1", url.port or 0), QUICK, idle=idle)
    for _ in range(3):
        reply = await pool.ask(request_head(request_start(url), {}, 2), b"{}")
        await reply.read_up_to(1_000_000)
    pool.close()
    assert len(worker.connections) == opened
    # Most model servers keep their connections that long.
    assert WORKERS_IDLE_SECONDS < 5


async def test_a_fresh_connection_that_dies_is_a_failure_and_nothing_is_sent_twice(
    dialect: Dialect,
) -> None:
    accepted: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        accepted.append(1)
        writer.transport.abort()

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await ask(dialect, chat(), own(url))
    assert accepted == [1]


async def test_a_connection_to_a_worker_that_reads_nothing_is_cut_at_the_timeout() -> None:
    sizes: list[int] = []
    given_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await given_up.wait()
        writer.transport.resume_reading()
        size = 0
        with suppress(ConnectionError):
            while chunk := await reader.read(65536):
                size += len(chunk)
        sizes.append(size)
        writer.close()

    body = b'{"model":"llama","image":"' + b"a" * 30_000_000 + b'"}'
    hurried = QUICK.model_copy(update={"first_byte_timeout": 0.2})
    async with links(hurried) as own_links, raw(serve) as url:
        with pytest.raises(WorkerTimeout):
            await ask(create(own_links), chat(body=body), own(url))
        given_up.set()
        await until(lambda: len(sizes) == 1)
    # Unsent bytes are dropped, not waited for.
    assert sizes[0] < len(body)


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01 not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 10_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: nothing\n\n",
        b"HTTP/1.1 99999 NO\r\n\r\n",
        b"",
    ],
)
async def test_an_invalid_answer_is_a_failure_of_the_worker(dialect: Dialect, said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(said)
        writer.close()

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await ask(dialect, chat(), own(url))


def counting(opened: list[int]) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(reader)
            writer.write(OK)
        writer.close()

    return serve


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (SsrfGuard(is_own=lambda host: host == "localhost"), "not on the same machine"),
        (SsrfGuard(own_ports=lambda: range(1, 65_536)), "this node itself"),
    ],
    ids=["the name leads elsewhere by now", "the node listens there by now"],
)
async def test_the_resolved_address_is_checked_at_each_connection(
    guard: SsrfGuard, why: str
) -> None:
    opened: list[int] = []
    async with raw(counting(opened)) as url, links(guard=guard) as own_links:
        candidate = own(url.replace("127.0.0.1", "localhost"))
        with pytest.raises(WorkerUnreachable, match=why):
            await ask(create(own_links), chat(), candidate)
        assert candidate.worker is not None
        assert not await create(own_links).alive(candidate.worker)
    assert opened == []


async def test_a_host_name_is_connected_to_by_an_allowed_address() -> None:
    opened: list[int] = []
    async with raw(counting(opened)) as url, links() as own_links:
        await ask(create(own_links), chat(), own(url.replace("127.0.0.1", "localhost")))
    assert opened == [1]


@pytest.mark.parametrize("status", [b"301", b"302", b"303", b"307", b"308"])
async def test_no_redirect_is_followed(dialect: Dialect, status: bytes) -> None:
    opened: list[int] = []
    async with raw(counting(opened)) as elsewhere:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await take(reader)
            head = (
                b"HTTP/1.1 %b Go\r\nLocation: %b/v1/chat/completions\r\nContent-Length: 0\r\n\r\n"
            )
            writer.write(head % (status, elsewhere.encode()))
            writer.close()

        async with raw(serve) as url:
            message = rf"redirects \({status.decode()}\) .* has to be registered instead"
            with pytest.raises(WorkerFailed, match=message):
                await ask(dialect, chat(), own(url))
    assert opened == []


async def test_the_reason_why_a_worker_is_unreachable_names_no_address(
    dialect: Dialect,
) -> None:
    with pytest.raises(WorkerUnreachable) as failed:
        await ask(dialect, chat(), own("http://127.0.0.1:1"))
    assert str(failed.value) == "the worker cannot be reached: connection refused"
    with pytest.raises(WorkerUnreachable) as failed:
        await ask(dialect, chat(), own("http://nobody.invalid:1"))
    assert str(failed.value).endswith(": its name does not resolve")


@pytest.mark.parametrize(
    ("days", "name", "reason"),
    [(1, "other.example", "is for another name"), (-1, "models.example", "has expired")],
)
async def test_a_trusted_certificate_that_does_not_hold_is_the_reason(
    tmp_path: Path, days: float, name: str, reason: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = write(tmp_path, days=days)
    context.load_cert_chain(*files)
    trusting = ssl.create_default_context(cafile=str(files[0]))
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    async with raw(counting([]), context) as url:
        dial = tcp_dialer("127.0.0.1", URL(url).port or 0, trusting, name=name)
        with pytest.raises(TlsFailed, match=f"its TLS certificate {reason}"):
            await ConnectionPool(dial, QUICK).open_spare()


async def test_a_certificate_of_an_unknown_authority_is_the_reason(
    dialect: Dialect, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write(tmp_path))
    async with raw(counting([]), context) as url:
        with pytest.raises(WorkerUnreachable, match="certificate is not trusted"):
            await ask(dialect, chat(), own(url.replace("http:", "https:")))


async def test_a_worker_without_tls_at_an_https_url_is_the_reason(dialect: Dialect) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw(serve) as url:
        with pytest.raises(WorkerUnreachable, match="it does not speak TLS"):
            await ask(dialect, chat(), own(url.replace("http:", "https:")))
