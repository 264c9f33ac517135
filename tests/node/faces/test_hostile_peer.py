"""A peer with a valid key and record and bad answers: its callers get an error of ours, and no other request is affected."""

import asyncio
import tracemalloc
from contextlib import asynccontextmanager

import aiohttp
import pytest

from registry.records import Reach
from router.peers.tls import certificate_of, server_context, trust
from tests.node.faces.assembly import until
from tests.swarm.waiting import show
from tests.workers.raw import endless, raw

MIB = 1024 * 1024
CHAT = {"model": "tiny", "messages": []}
PATH = "/v1/chat/completions"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@asynccontextmanager
async def hostile(mesh, worker, serve):
    """Have `serve` answer, in place of the second node of a mesh, all requests of the first one."""
    await mesh.two.register(worker)
    await mesh.knows(mesh.one, "tiny")
    one = mesh.one
    # A node that is reached over loopback alone may be sent to another node's loopback.
    alone = Reach(links=(one.context.listening.link,), certificate=certificate_of(one.identity))
    await one.context.registry.change_addresses(alone)
    context = server_context(mesh.two.identity)
    trust(context, certificate_of(mesh.one.identity))
    async with raw(serve, context) as url:
        link = url.removeprefix("http://")
        reach = Reach(links=(link,), certificate=certificate_of(mesh.two.identity))
        await mesh.two.context.registry.change_addresses(reach)
        registry, peer = mesh.one.context.registry, mesh.two.context.peer
        await until(lambda: registry.catalog.held[peer].record.reach.links == (link,))
        yield mesh.one


@pytest.mark.parametrize(
    "said",
    [
        endless(b"HTTP/1.1 200 OK\r\nContent-Type: a\x01b\r\nContent-Length: 1\r\n\r\nx"),
        endless(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n", b"x" * 60_000),
        endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 9_000),
        endless(b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"),
        endless(b"HTTP/1.1 999 Oh\r\nContent-Length: 0\r\n\r\n"),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        endless(b"garbage"),
    ],
    ids=["control character", "packed", "10 GB", "headers", "redirect", "status", "nothing", "garbage"],
)  # fmt: skip
async def test_an_invalid_answer_is_a_clear_502(mesh, worker, said):
    async with (
        hostile(mesh, worker, said) as node,
        node.http.post(PATH, json=CHAT) as response,
    ):
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "worker_failed"


@pytest.mark.parametrize(
    "name", [b"a\xc3\xa9b", b"a\xffb", b"x" * 7_000], ids=["not ASCII", "no UTF-8", "long"]
)
async def test_an_odd_content_type_is_passed_on_or_refused_but_never_a_500(mesh, worker, name):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: 2\r\n\r\nok" % name
    async with (
        hostile(mesh, worker, endless(head)) as node,
        node.http.post(PATH, json=CHAT) as response,
    ):
        assert response.status in (200, 502)


@pytest.mark.parametrize(
    "again",
    [b"x" * 60_000, b": \n\n" * 10_000, b"data: xy\n\n" * 8_000, b"\n" * 60_000],
    ids=["an event without end", "comments without end", "events without end", "line ends without end"],
)  # fmt: skip
async def test_an_endless_stream_takes_little_memory(mesh, worker, again):
    serve = endless(STREAM + b"data: x", again)
    async with hostile(mesh, worker, serve) as node:
        tracemalloc.start()
        async with node.http.post(PATH, json=CHAT | {"stream": True}) as response:
            assert response.status == 200
            await asyncio.sleep(
                0.3
            )  # the caller does not read, and all buffers on the way are full
            received = 0
            async for piece in response.content.iter_any():
                received += len(piece)
                if received > 4 * MIB:
                    break
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        show("ever so much, peer and caller included", peak_MiB=peak / MIB)
        assert peak < 16 * MIB
        async with node.http.get("/healthz") as response:
            assert response.status == 200


@pytest.mark.parametrize("again", [b": \n\n" * 10_000, b"\n" * 60_000, b"data:\n" * 10_000])
async def test_a_stream_without_an_event_is_a_clear_502(mesh, worker, again):
    async with (
        hostile(mesh, worker, endless(STREAM, again)) as node,
        node.http.post(PATH, json=CHAT | {"stream": True}) as response,
    ):
        assert response.status == 502


async def test_a_long_answer_that_breaks_off_breaks_off_for_the_caller(mesh, worker):
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 4000000\r\n\r\n"
    serve = endless(begin, b"x" * 60_000, at_most=3 * MIB)
    async with hostile(mesh, worker, serve) as node, node.http.post(PATH, json=CHAT) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
