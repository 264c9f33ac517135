"""Framings of workers' streams: each arrives as it was sent, byte for byte, at the worker's node and over a hop."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from registry.mesh.memory import MemoryNet
from tests.node.faces.assembly import World, node, settings_of, until
from tests.workers.raw import raw, take

PATH = "/v1/chat/completions"
ASKED = {"model": "tiny", "stream": True, "messages": []}


def said(text: bytes, *, model: bytes = b"tiny") -> bytes:
    return b'{"model":"%b","choices":[{"index":0,"delta":{"content":"%b"}}]}' % (model, text)


def stream(*data: bytes, end: bytes = b"\n", field: bytes = b"data: ") -> bytes:
    return b"".join(field + each + end + end for each in data)


WORDS = (said(b"one"), said(b"two"))
DONE = b"data: [DONE]\n\n"
GRAPES = "葡萄 🍇 é".encode()

FRAMINGS = {
    "as most write it": stream(*WORDS) + DONE,
    "CRLF": stream(*WORDS, b"[DONE]", end=b"\r\n"),
    "CR alone": stream(*WORDS, b"[DONE]", end=b"\r"),
    "line ends of all kinds": b"data: %b\n\r\ndata: %b\r\n\ndata: [DONE]\r\r" % WORDS,
    "comments before, between and behind": b": a\n\n:\n\n%b: b\n\n%b%b: c\n\n"
    % (stream(WORDS[0]), stream(WORDS[1]), DONE),
    "a comment within an event": b": why\ndata: %b\n\n%b" % (WORDS[0], DONE),
    "no space after the colon": stream(*WORDS, b"[DONE]", field=b"data:"),
    "two spaces after the colon": stream(*WORDS, b"[DONE]", field=b"data:  "),
    "data over several lines": b'data: {"model":"tiny",\ndata: "choices":[]}\n\n' + DONE,
    "other fields": b"id: 7\nevent: message\nretry: 10\ndata: %b\n\n%b" % (WORDS[0], DONE),
    "a byte order mark": b"\xef\xbb\xbf" + stream(*WORDS) + DONE,
    "no last blank line": stream(*WORDS) + b"data: [DONE]",
    "no last line end, in CRLF": stream(*WORDS, end=b"\r\n") + b"data: [DONE]\r\n",
    "no [DONE]": stream(*WORDS),
    "no [DONE] and no last blank line": stream(WORDS[0]) + b"data: " + WORDS[1],
    "blank lines too many": b"\n\n\n" + stream(*WORDS) + b"\n\n\n" + DONE + b"\n\n",
    "no text but ours": stream(said(GRAPES), said(GRAPES)) + DONE,
    "events of a megabyte": stream(said(b"x"), *(said(b"y" * 1_000_000),) * 3) + DONE,
    "an event of three megabytes": stream(said(b"x"), said(b"z" * 3_000_000)) + DONE,
}


@dataclass
class Places:
    """The node that has the worker, and another one. The worker writes `pieces` next, one by one."""

    local: object = None
    hop: object = None
    pieces: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def places_of(**worker):
    """Yield two nodes that have met, one of them with a worker that writes what the test says."""
    places = Places()

    async def serve(reader, writer):
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for piece in places.pieces:
            writer.write(piece)
            await writer.drain()
            # Each piece leaves in a packet of its own.
            await asyncio.sleep(0.0005 if len(places.pieces) > 1 else 0)

    world = World(MemoryNet())
    async with raw(serve) as url, node(world) as one, node(world) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        await until(lambda: one.context.peer in two.context.registry.catalog.held)
        row = {"project": "p", "model": "tiny", "api": url, **worker}
        async with one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        places.local, places.hop = one, two
        yield places


async def arrived(running) -> bytes:
    async with running.http.post(PATH, json=ASKED) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize("name", FRAMINGS)
async def test_every_framing_arrives_byte_for_byte_at_once_and_in_small_pieces(name):
    sent = FRAMINGS[name]
    step = 7 if len(sent) < 10_000 else 60_000
    async with places_of() as places:
        for running in (places.local, places.hop):
            places.pieces = [sent]
            assert await arrived(running) == sent
            places.pieces = [sent[start : start + step] for start in range(0, len(sent), step)]
            came = await arrived(running)
            # The stream is over at its last event: of what comes later, nothing has to be passed on.
            assert sent.startswith(came)
            assert came == sent or came.strip().endswith(b"[DONE]")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_sent_byte_by_byte_arrives_unchanged(end):
    sent = stream(said(GRAPES), b"[DONE]", end=end)
    async with places_of() as places:
        for running in (places.local, places.hop):
            places.pieces = [sent[start : start + 1] for start in range(len(sent))]
            assert await arrived(running) == sent


@pytest.mark.parametrize("name", FRAMINGS)
async def test_a_stream_under_another_name_keeps_its_framing(name):
    expected = FRAMINGS[name]
    if name == "data over several lines":
        # With the model renamed, these lines become one line of the same meaning.
        expected = b'data: {"model":"tiny", "choices":[]}\n\n' + DONE
    async with places_of() as places:
        places.pieces = [FRAMINGS[name].replace(b'"tiny"', b'"/models/own.gguf"')]
        for running in (places.local, places.hop):
            assert await arrived(running) == expected


# With CR alone the first event waits for the next byte: an LF would belong to it. No worker is known to write so.
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_whole_events_are_never_held_back(end):
    begun = asyncio.Event()

    async def serve(reader, writer):
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for word in WORDS:
            writer.write(stream(word, end=end))
            await writer.drain()
            async with asyncio.timeout(5):
                await begun.wait()
            begun.clear()

    world = World(MemoryNet())
    settings = settings_of(keep_alive=0)
    async with raw(serve) as url, node(world, settings) as one, node(world, settings) as two:
        await until(lambda: two.context.peer in one.context.registry.catalog.held)
        row = {"project": "p", "model": "tiny", "api": url}
        async with one.http.post("/api/v0/ai/model/register", json=row) as response:
            assert response.status == 200
        await until(lambda: "tiny" in two.context.registry.catalog.offers)
        for running in (one, two):
            async with running.http.post(PATH, json=ASKED) as response, asyncio.timeout(5):
                for word in WORDS:
                    sent = stream(word, end=end)
                    assert await response.content.readexactly(len(sent)) == sent
                    begun.set()
