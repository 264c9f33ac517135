"""Laws of probing a worker: the answer, or its absence, is summed up in a few words."""

import asyncio

import pytest
from yarl import URL

from registry.records import Service
from router.http.probe import MAX_HEARD_BYTES, ProbeResult, send_probe
from router.workers import Worker
from tests.router.world import links
from tests.workers.raw import raw, take

WORKER = Worker(Service("p", "m"), "http://w")


@pytest.mark.parametrize(
    ("said", "came"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "200"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
            "200: compressed, which was not requested",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
            "200: compressed, which was not requested",
        ),
        (
            b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n",
            "503: it is loading its model, or is down",
        ),
        (
            b"HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n",
            "502: a proxy answers, but it does not reach the worker",
        ),
        (
            b"HTTP/1.1 308 X\r\nLocation: https://w\r\nContent-Length: 0\r\n\r\n",
            "308: it redirects; use the address that it redirects to",
        ),
        (
            b"HTTP/1.0 400 X\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            "400: it speaks TLS; use https://",
        ),
        (b"220 mail\r\n", "it is not an HTTP server; if it speaks TLS, use https://"),
        (
            b"",
            "it closes the connection without an answer, as a relay that does not reach it; "
            "if it speaks TLS, use https://",
        ),
    ],
)
async def test_an_answer_is_summed_up_in_a_few_words(said: bytes, came: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(said)

    async with raw(serve) as url, links() as own_links:
        assert (await send_probe(own_links.workers, WORKER, URL(url))).summary == came


async def test_a_server_that_accepts_but_says_nothing_is_silent_and_one_that_is_not_there_is_not() -> (
    None
):
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw(serve) as url, links() as own_links:
        assert (await send_probe(own_links.workers, WORKER, URL(url))).silent
        assert not (await send_probe(own_links.workers, WORKER, URL("http://127.0.0.1:1"))).silent


async def test_an_endless_answer_is_cut_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with raw(serve) as url, links() as own_links:
        answer = await send_probe(own_links.workers, WORKER, URL(url))
        assert len(answer.body) < 2 * MAX_HEARD_BYTES
        assert answer.json is None


def test_a_refusal_for_lack_of_a_key_explains_how_to_give_one() -> None:
    for status in (401, 403):
        assert "--header" in ProbeResult(status).summary
