"""Floods from a worker or a peer: they cost bounded memory, leave the event loop free, and become no request's answer.

Each attack comes over a real socket: from a worker on this machine, and from a peer over TLS with its key.
"""

import asyncio
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass

import pytest

from registry.records import Reach
from router.answer import Answer
from router.dialects import Dialect, openai_http, peer
from router.errors import WorkerError, WorkerFailed
from router.peers.links import Links
from router.peers.pipes import NoMesh
from router.peers.tls import certificate_of, server_context, trust
from router.requests import Request
from router.select.candidates import Candidate
from router.settings import RouterSettings
from tests.router.peer_node import THERE
from tests.router.world import OWN, QUICK, chat, own, whole
from tests.swarm.waiting import show
from tests.workers.raw import Serve, endless, raw, take

MIB = 1024 * 1024
LIMITS = QUICK.model_copy(
    update={"max_answer_bytes": 8 * MIB, "max_event_bytes": 2 * MIB, "first_byte_timeout": 20}
)
AT_MOST = 12 * MIB
"""Peak memory that one attack may take, the attacker included: an answer is inspected up to 4 MiB, an event up to 2, and
joining the pieces takes it twice."""

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
RENAMED = b'data: {"model":"another"}\n\n'
OURS = b'data: {"model":"llama"}\n\n'


@dataclass(frozen=True, slots=True)
class Asking:
    """A way to send requests to the attacker."""

    dialect: Dialect
    candidate: Candidate

    def answer(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        return self.dialect.answer(request, self.candidate)

    async def ask(self, request: Request) -> bytes:
        async with self.answer(request) as answer:
            return await whole(answer)

    async def count(self, request: Request, counts: Counter[str]) -> None:
        async with self.answer(request) as answer:
            async for piece in answer.rest:
                counts["bytes"] += len(piece)


@asynccontextmanager
async def worker(serve: Serve, settings: RouterSettings = LIMITS) -> AsyncIterator[Asking]:
    """Run the attacker as a worker of this machine."""
    async with raw(serve) as url:
        own_links = Links(
            identity=OWN,
            peers=NoMesh(),
            settings=settings,
        )
        try:
            yield Asking(openai_http.create(own_links), own(url))
        finally:
            await own_links.close()


@asynccontextmanager
async def another_node(serve: Serve, settings: RouterSettings = LIMITS) -> AsyncIterator[Asking]:
    """Run the attacker as a peer whose key and record are valid."""
    context = server_context(THERE)
    trust(context, certificate_of(OWN))
    async with AsyncExitStack() as closing:
        url = await closing.enter_async_context(raw(serve, context))
        link = url.removeprefix("http://")
        reaches = {
            OWN.peer: Reach(links=("127.0.0.1:1",)),
            THERE.peer: Reach(links=(link,), certificate=certificate_of(THERE)),
        }

        own_links = Links(identity=OWN, peers=NoMesh(reaches), settings=settings)
        closing.push_async_callback(own_links.close)
        yield Asking(peer.create(own_links), Candidate(THERE.peer, own("").service))


BOTH = pytest.mark.parametrize("attacker", [worker, another_node])
Attacker = Callable[..., AbstractAsyncContextManager[Asking]]


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


@dataclass(slots=True)
class Measured:
    """The peak memory of Python's allocator during a request."""

    peak: int = 0


@asynccontextmanager
async def measured() -> AsyncIterator[Measured]:
    memory = Measured()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


WIDE = b"x" * 60_000
NO_ANSWER = {
    "headers without end": (b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n" * 5_000),
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: ", WIDE),
    "a status line without end": (b"HTTP/1.1 200 ", WIDE),
    "notices without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
    "notices with bodies": (b"", b"HTTP/1.1 150 So\r\nContent-Length: 60000\r\n\r\n" + WIDE),
    "a status that is none": (b"HTTP/1.1 007 No\r\nContent-Length: 99999999999\r\n\r\n", WIDE),
    "a chunk extension without end": (PLAIN + b"5;", WIDE),
    "a chunk size without end": (PLAIN, b"0" * 60_000),
    "trailers without end": (PLAIN + b"0\r\n", b"X-More: yes\r\n" * 5_000),
    "packed though not asked for": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n",
        WIDE,
    ),
    "packed on the way": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", chunk(WIDE)),
    "a length beyond all bounds": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", WIDE),
    "a length beyond all numbers": (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 99 + b"\r\n\r\n", WIDE),
    "a refusal without end": (b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\n\r\n", WIDE),
    "another protocol": (b"HTTP/1.1 101 Go\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", WIDE),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("kind", NO_ANSWER)
async def test_bytes_that_are_no_answer_fail_within_bounded_memory(
    attacker: Attacker, kind: str
) -> None:
    async with measured() as memory, attacker(endless(*NO_ANSWER[kind])) as asking:
        with pytest.raises(WorkerFailed):
            await asking.ask(chat())
    show(kind, peak_MiB=memory.peak / MIB)
    assert memory.peak < AT_MOST


WITHOUT_END = {
    "a body": (PLAIN, chunk(WIDE)),
    "a body of tiny chunks": (PLAIN, chunk(b"xy") * 8_000),
    "a body with an extension to each byte": (PLAIN, chunk(b"x", b";" + WIDE)),
    "a body that ends with its connection": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", WIDE),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("kind", WITHOUT_END)
async def test_an_endless_answer_is_broken_off(attacker: Attacker, kind: str) -> None:
    small = LIMITS.model_copy(update={"max_answer_bytes": 5 * MIB, "total_timeout": 2})
    begin, again = WITHOUT_END[kind]
    async with measured() as memory, attacker(endless(begin, again), small) as asking:
        with pytest.raises(WorkerError):
            await asking.ask(chat())
    show(kind, peak_MiB=memory.peak / MIB)
    assert memory.peak < AT_MOST


STREAMS = {
    "an event without end, renamed": chunk(RENAMED) + chunk(b"data: "),
    "an event without end, passed through": chunk(OURS) + chunk(b"data: "),
    "nothing but an event without end": chunk(b"data: "),
    "nothing but a comment without end": chunk(b": "),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_an_endless_event_of_a_worker_is_broken_off_or_passed_through(kind: str) -> None:
    serve = endless(STREAM + STREAMS[kind], chunk(WIDE), at_most=30 * MIB)
    async with measured() as memory, worker(serve) as asking:
        passed: Counter[str] = Counter()
        with pytest.raises(WorkerError):
            await asking.count(chat(stream=True), passed)
    show(kind, passed_on_MiB=passed["bytes"] / MIB, peak_MiB=memory.peak / MIB)
    assert (passed["bytes"] > 29 * MIB) is ("passed through" in kind)
    assert memory.peak < AT_MOST


SILENT = {
    "comments": chunk(b": still thinking\n\n" * 3_000),
    "blank lines": chunk(b"\n\n" * 30_000),
    "data that says nothing": chunk(b"data:\n\n" * 8_000),
}


@pytest.mark.parametrize("kind", SILENT)
async def test_a_stream_without_events_is_no_answer(kind: str) -> None:
    async with measured() as memory, worker(endless(STREAM, SILENT[kind])) as asking:
        with pytest.raises(WorkerFailed, match="had no event"):
            await asking.ask(chat(stream=True))
    show(kind, peak_MiB=memory.peak / MIB)
    assert memory.peak < AT_MOST


@BOTH
@pytest.mark.parametrize("model", [RENAMED, OURS], ids=["renamed", "passed through"])
async def test_a_reader_that_stalls_slows_the_sender_down(attacker: Attacker, model: bytes) -> None:
    serve = endless(STREAM + chunk(model), chunk(b"data: xy\n\n") * 4_000)
    async with (
        measured() as memory,
        attacker(serve) as asking,
        asking.answer(chat(stream=True)) as answer,
    ):
        await asyncio.sleep(0.3)  # nothing is read, and every buffer on the way is full
        received = 0
        async for piece in answer.rest:
            received += len(piece)
            if received > 2 * MIB:
                break
    show("10 GB at once", peak_MiB=memory.peak / MIB)
    assert memory.peak < AT_MOST


async def test_an_event_in_tiny_pieces_costs_time_in_proportion_to_its_length() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(STREAM + chunk(RENAMED) + chunk(b'data: {"model":"another","x":"'))
        for _ in range(30):
            writer.write(chunk(b"y") * 40_000)
            await writer.drain()
        writer.write(chunk(b'"}\n\n') + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    began = time.monotonic()
    async with worker(serve) as asking:
        body = await asking.ask(chat(stream=True))
    seconds = time.monotonic() - began
    show("an event of 1.2 MB in chunks of a byte", seconds=seconds)
    assert body.count(b"y") == 1_200_000
    assert body.endswith(b"data: [DONE]\n\n")
    assert seconds < 10


GOOD = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"good"'
EVIL = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"evil"'


def saying(*steps: bytes, pause: float = 0.02) -> Serve:
    """Return a server that answers the first request with `steps`, a pause between them, and later ones with `good`."""
    left = [*steps]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if left:
                await take(reader)
            while left:
                writer.write(left.pop(0))
                await asyncio.sleep(pause)
            while True:
                await take(reader)
                writer.write(GOOD)
        writer.close()

    return serve


@pytest.mark.parametrize(
    "steps",
    [
        (GOOD + EVIL,),
        (GOOD, EVIL),
        (GOOD + b"garbage",),
        (GOOD, b"garbage"),
        (GOOD, EVIL[:20], EVIL[20:]),
        (GOOD + b"ness",),
        (GOOD, b"HTTP/1.1 100 Continue\r\n\r\n"),
        (GOOD, b"\r\n"),
    ],
    ids=["two at once", "two", "garbage at once", "garbage", "in halves", "longer than it says", "a notice", "a blank line"],
)  # fmt: skip
async def test_bytes_after_an_answer_become_no_later_requests_answer(
    steps: tuple[bytes, ...],
) -> None:
    async with worker(saying(*steps)) as asking:
        bodies = [await asking.ask(chat())]
        await asyncio.sleep(0.1)
        bodies += [await asking.ask(chat()) for _ in range(3)]
    assert bodies == [b'"good"'] * 4


async def test_bytes_that_arrive_unread_after_an_answer_become_no_later_requests_answer() -> None:
    poisoned = asyncio.Event()
    pushed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await take(reader)
            writer.write(GOOD)
            if not poisoned.is_set():
                await poisoned.wait()
                # Straight to the socket: the event loop reads nothing before the next request goes out.
                assert os.write(writer.get_extra_info("socket").fileno(), EVIL) == len(EVIL)
                pushed.set()
            while True:
                await take(reader)
                writer.write(GOOD)
        writer.close()

    async with worker(serve) as asking:
        assert await asking.ask(chat()) == b'"good"'
        poisoned.set()
        await pushed.wait()
        assert await asking.ask(chat()) == b'"good"'


async def test_a_worker_that_sends_before_a_request_gives_at_most_wrong_answers_of_its_own() -> (
    None
):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(EVIL * 2)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with worker(serve) as asking:
        for _ in range(3):
            with suppress(WorkerFailed):
                assert await asking.ask(chat()) == b'"evil"'  # at most as an answer of its own
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "trailer", [b"Content-Type: text/html", b"Content-Encoding: gzip", b"x-modelvine-load: 1"]
)
async def test_trailers_change_nothing(trailer: bytes) -> None:
    body = chunk(b'{"model":"llama"}') + b"0\r\n" + trailer + b"\r\n\r\n"
    async with worker(saying(PLAIN + body)) as asking, asking.answer(chat()) as answer:
        assert answer.content_type == "application/json"
        assert await whole(answer) == b'{"model":"llama"}'


async def test_half_an_answer_is_broken_and_its_connection_is_not_reused() -> None:
    half = GOOD.replace(b"Length: 6", b"Length: 400000")
    quick = LIMITS.model_copy(update={"idle_timeout": 0.3, "first_byte_timeout": 0.3})
    async with worker(saying(half), quick) as asking:
        with pytest.raises(WorkerError):
            await asking.ask(chat())
        assert await asking.ask(chat()) == b'"good"'
