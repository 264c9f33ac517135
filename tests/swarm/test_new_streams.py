"""Do hundreds of new streams over a hop at once all come, and soon? They share a few TLS connections or pipes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node
from tests.swarm.waiting import percentile, show, until
from tests.workers.raw import raw, take

pytestmark = pytest.mark.swarm

STREAMS = 500
ARRIVING = 1.5
"""Seconds in which they come."""

MOST_LINKS = 8
"""TLS connections between the two nodes; with one for each stream there were hundreds."""

MODEL = "new-streams"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Answering:
    """A worker that sends a first token at once, and the rest when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(HEAD + EVENT)
        await self.go.wait()
        writer.write(EVENT + DONE)
        await writer.drain()


@pytest.fixture
async def worker(three: list[Node], client: Client) -> AsyncIterator[Answering]:
    """The worker behind the first node."""
    await client.met(three)
    answering = Answering()
    async with raw(answering.serve) as url:
        await client.register(three[0], MODEL, [MODEL], url)
        await client.listed([three[2]], MODEL)
        yield answering
        await client.unregister(three[0], MODEL)


def _connections(node: Node, port: int) -> int:
    """Return how many TCP connections of a node lead to a port."""
    table = Path(f"/proc/{node.actor.process.pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in table]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in fields)


async def test_five_hundred_new_streams_over_a_hop_share_few_connections_and_none_fails(
    three: list[Node], worker: Answering, client: Client
) -> None:
    (serving,) = [n for n in (await client.told(three[2])).values() if n["node"] == three[0].peer]
    port = int(serving["links"][0].rpartition(":")[2])
    firsts: list[float] = []
    failed = 0

    async def ask(after: float) -> None:
        nonlocal failed
        await asyncio.sleep(after)
        began = time.monotonic()
        async with client.stream(three[2], MODEL) as response:
            await response.content.readline()
            firsts.append(time.monotonic() - began)
            rest = await response.content.read()
        failed += response.status != 200 or not rest.endswith(DONE)

    asking = [asyncio.ensure_future(ask(ARRIVING * n / STREAMS)) for n in range(STREAMS)]
    await until(lambda: len(firsts) == STREAMS, within=20, otherwise="not all have begun")
    links = _connections(three[2], port)
    worker.go.set()
    await asyncio.gather(*asking)
    show(
        f"{STREAMS} new streams over a hop",
        failed=str(failed),
        links=str(links),
        first_p50=percentile(firsts, 0.5),
        first_p99=percentile(firsts, 0.99),
    )
    assert failed == 0
    assert 0 < links <= MOST_LINKS
