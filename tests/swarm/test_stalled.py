"""What do callers cost that ask for much and read nothing? A hundred, each with 200 MB, over every kind of route."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tests.swarm.client import Client
from tests.swarm.nodes import Node, Start, Swarm
from tests.swarm.waiting import SLACK, show, until
from tests.workers.raw import raw

pytestmark = pytest.mark.swarm

READERS = 100
ROUNDS = 16
BYTES = 200_000_000
WITHIN = 35.0
"""Seconds until all of them are cut off, from when nothing moves any more: `router.stall_timeout`, and a little."""

GROWTH_MIB = 64
EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 900)


@dataclass
class Flood:
    """A worker that sends without end. `sent` has the bytes that each of its connections took."""

    sent: dict[int, int] = field(default_factory=dict)
    ended: int = 0
    moved: float = 0.0
    """When one of them took something last."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                # Its node probes it.
                writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                return
            await self._pour(writer)

    async def _pour(self, writer: asyncio.StreamWriter) -> None:
        try:
            number = len(self.sent)
            self.sent[number] = 0
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            while self.sent[number] < BYTES:
                writer.write(EVENT * 64)
                await writer.drain()
                self.sent[number] += 64 * len(EVENT)
                self.moved = time.monotonic()
        finally:
            self.ended += 1


@pytest.fixture(scope="module")
def hidden(swarm: Swarm, three: list[Node]) -> Node:
    """A node that can be reached over a libp2p pipe alone."""
    return swarm.start(Start("hidden", module="tests.swarm.hidden_node"), known=three[:1])


@pytest.fixture(params=["local", "two hops", "two hops, the second over a pipe"])
async def flooded(
    request: pytest.FixtureRequest, three: list[Node], hidden: Node, client: Client
) -> AsyncIterator[tuple[str, tuple[Node, ...], str, Flood]]:
    """The nodes on a route, the asked one first, and the worker at its end."""
    nodes = {
        "local": (three[0],),
        "two hops": (three[2], three[0]),
        "two hops, the second over a pipe": (three[2], hidden),
    }[request.param]
    await client.met([*three, hidden])
    model, flood = f"flood-{uuid4().hex[:8]}", Flood()
    async with raw(flood.serve) as url:
        await client.register(nodes[-1], "flood", [model], url)
        await client.listed([nodes[0]], model)
        yield request.param, nodes, model, flood
        await client.unregister(nodes[-1], "flood")


@contextmanager
def _unread(node: Node, body: bytes) -> Iterator[socket.socket]:
    """Ask, and read nothing."""
    host, _, port = node.http[7:].rpartition(":")
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        caller.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {node.http[7:]}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.sendall(head.encode() + body)
        yield caller


def _resident(node: Node) -> float:
    pages = Path(f"/proc/{node.actor.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096 / 2**20


async def _come(flood: Flood, ask: Callable[[], socket.socket]) -> None:
    """Wait until all callers have reached the worker; on a busy machine some are refused, and ask again as clients would."""
    again: list[socket.socket] = []
    for _ in range(ROUNDS):
        with suppress(AssertionError):
            await until(lambda: len(flood.sent) >= READERS, within=2, otherwise="not at once")
        for _ in range(READERS - len(flood.sent)):
            again.append(ask())
            await asyncio.sleep(0.1)
    assert len(flood.sent) >= READERS, [_told(caller) for caller in again]
    show("who asked again", refused=str(len(again)))


def _told(caller: socket.socket) -> bytes:
    """Return the beginning of an answer that was not read."""
    try:
        return caller.recv(1024, socket.MSG_DONTWAIT)
    except OSError as error:
        return str(error).encode()


async def test_a_hundred_callers_that_do_not_read_cost_little_and_are_cut_off(
    flooded: tuple[str, tuple[Node, ...], str, Flood],
) -> None:
    name, nodes, model, flood = flooded
    body = b'{"model":"%b","stream":true,"messages":[]}' % model.encode()
    before, peaks = [_resident(node) for node in nodes], [0.0 for _ in nodes]

    def all_cut() -> bool:
        peaks[:] = [max(m, _resident(n) - b) for m, n, b in zip(peaks, nodes, before, strict=True)]
        return flood.ended == len(flood.sent)

    with ExitStack() as callers:
        for _ in range(READERS):
            callers.enter_context(_unread(nodes[0], body))
            await asyncio.sleep(0.03)
        await _come(flood, lambda: callers.enter_context(_unread(nodes[0], body)))
        await until(all_cut, within=WITHIN, otherwise="they are kept")
        cut = time.monotonic() - flood.moved
        took = max(flood.sent.values())
        growth = max(peaks)
    show(
        f"{READERS} who do not read, {name}",
        cut_after=cut,
        growth_mib=f"{growth:.1f}",
        a_worker_wrote=f"{took / 2**20:.1f} MiB of {BYTES // 10**6} MB",
    )
    assert took < BYTES / 4
    # Without backpressure it would be all that was asked for, twenty gigabytes.
    assert growth < SLACK * GROWTH_MIB
