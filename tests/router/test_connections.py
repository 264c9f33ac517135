"""Laws of connections: kept while they serve, opened anew when they died idle, cut when a request is given up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from router.candidates import Candidate
from router.dialects import Answer, Dialect
from router.dialects.openai_http import create
from router.errors import WorkerFailed, WorkerTimeout
from router.requests import Request
from tests.router.world import QUICK, chat, links, own, until, whole
from tests.workers.openai_worker import OpenAIWorker, running
from tests.workers.raw import raw, take

OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
    b'{"model":"llama"}'
)


@pytest.fixture
async def worker() -> AsyncIterator[OpenAIWorker]:
    async with running() as started:
        yield started


@pytest.fixture
async def dialect() -> AsyncIterator[Dialect]:
    async with links() as ours:
        yield create(ours)


async def ask(dialect: Dialect, request: Request, candidate: Candidate) -> tuple[Answer, bytes]:
    async with dialect.answer(request, candidate) as answer:
        return answer, await whole(answer)


async def test_a_connection_is_used_again(worker: OpenAIWorker, dialect: Dialect) -> None:
    for _ in range(5):
        await ask(dialect, chat(), own(worker.url))
        await ask(dialect, chat(stream=True), own(worker.url))
    assert len(worker.connections) == 1


async def test_a_connection_that_died_while_idle_is_opened_anew(dialect: Dialect) -> None:
    answered: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        answered.append(1)
        writer.write(OK)
        # The first connection is kept until the next request begins on it, and closed unread.
        if len(answered) == 1:
            await reader.read(1)
            writer.transport.abort()
        writer.close()

    async with raw(serve) as url:
        for _ in range(2):
            _, body = await ask(dialect, chat(), own(url))
            assert body == b'{"model":"llama"}'
    assert answered == [1, 1]


async def test_a_fresh_connection_that_dies_is_a_failure_and_nothing_is_sent_twice(
    dialect: Dialect,
) -> None:
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        taken.append(1)
        writer.transport.abort()

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await ask(dialect, chat(), own(url))
    assert taken == [1]


async def test_a_worker_that_reads_nothing_does_not_keep_its_connection_once_given_up() -> None:
    sizes: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await asyncio.sleep(0.4)
        writer.transport.resume_reading()
        size = 0
        with suppress(ConnectionError):
            while chunk := await reader.read(65536):
                size += len(chunk)
        sizes.append(size)
        writer.close()

    body = b'{"model":"llama","image":"' + b"a" * 30_000_000 + b'"}'
    hurried = QUICK.model_copy(update={"first_byte_timeout": 0.2})
    async with links(hurried) as ours, raw(serve) as url:
        with pytest.raises(WorkerTimeout):
            await ask(create(ours), chat(body=body), own(url))
        await until(lambda: len(sizes) == 1)
    # What was not yet sent is dropped, not waited for.
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
async def test_what_is_no_answer_is_a_failed_worker(dialect: Dialect, said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(said)
        writer.close()

    async with raw(serve) as url:
        with pytest.raises(WorkerFailed):
            await ask(dialect, chat(), own(url))
