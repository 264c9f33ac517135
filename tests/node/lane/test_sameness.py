"""Requests through the lane and through aiohttp: the same answers, log lines, metrics and deliveries to the worker.

Two identical nodes get the same requests: good, odd and hostile ones, by seed. Those to one of them also announce `TE: trailers`,
which the lane leaves to aiohttp.
"""

import asyncio
import json
import logging
import os
import random
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from node.faces import app
from node.lane.calls import LaneCall, LaneCalls
from node.lane.request import LaneRequest
from registry.mesh.memory import MemoryNet
from router import policies
from router.policies.round_robin import RoundRobin
from router.requests import Request
from tests.node.faces.assembly import Running, World, node, until
from tests.workers.openai_worker import OpenAIWorker, Received, running

COUNT = 5_000 if os.environ.get("CI") else 500
"""Requests on each of two event loops."""

TOGETHER = 50
"""Requests between two changes of the workers' faults."""

FAULTS = (
    {}, {}, {}, {}, {}, {"no_done": True}, {"finish": "stop"}, {"crlf": True}, {"name": "other"}, {"no_model": True},
    {"status": 400}, {"status": 422}, {"status": 415}, {"thought": "ab"},
    {"pad_bytes": 40_000}, {"pad_bytes": 200_000}, {"fails_after": 2}, {"die_after": 2}, {"refuses_usage": True},
    {"calls": (("look", "{}"),)}, {"delay_headers": 0.01}, {"delay_between": 0.002}, {"answer": b'{"choices":[],"usage":7}'},
)  # fmt: skip
"""Faults of the workers. None of them opens a node's circuit to its worker, which would depend on time."""

PATHS = ("/v1/chat/completions",) * 6 + (
    "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/tokenize", "/v1/audio/speech", "/v1/images/generations",
    "/v1/responses", "/v1/messages", "/chat/completions", "/v1/chat/completions/", "/v1/none", "/v1//chat/completions",
)  # fmt: skip
HEADERS = (
    ("authorization", "Bearer k"), ("cookie", "a=b"), ("accept", "text/event-stream"), ("accept", "\t"), ("via", "1.1 x"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("traceparent", "x"), ("x-own", ""),
    ("x-modelvine-priority", "background"), ("x-modelvine-aim", "5"), ("x-modelvine-aim", "0"), ("x-modelvine-cid", "none"),
    ("x-modelvine-continue", "0"), ("x-modelvine-continue", "1"), ("x-modelvine-session", "s" * 300),
    ("x-modelvine-project", "p"), ("x-modelvine-project", "q"), ("x-modelvine-node", "nobody"), ("x-modelvine-hop", "x"),
    ("content-type", "text/plain"), ("content-type", ""), ("content-type", "multipart/form-data"), ("expect", "100-continue"),
    ("content-encoding", "gzip"), ("origin", "http://elsewhere"), ("connection", "close"), ("x-modelvine-verbatim", "tgi"),
)  # fmt: skip
MANGLED = (
    b"", b"{}", b"[]", b"null", b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"model":1}', b'{"model":""}', b'{"model":"tiny"} x',
    b'{"model":"tiny","model":"tiny"}', b'{"model":"tiny","max_tokens":NaN}', b'{"model":"\\ud800"}', b"[" * 5_000,
    b'{"model":"tiny","stream":"yes"}', b'{"model":"tiny","a":' + b"[" * 600 + b"]" * 600 + b"}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """One request."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def drawn(rng: random.Random) -> Sent:
    """Draw a request."""
    headers = tuple(rng.choice(HEADERS) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    if rng.random() < 0.15:
        return Sent(rng.choice(PATHS), headers, rng.choice(MANGLED))
    text = rng.choice(("x", "ü", "\u2028", "a b c ", "\0")) * rng.choice((1, 1, 10, 1_000, 30_000))
    body: dict[str, object] = {
        "model": rng.choice(("tiny",) * 12 + ("none", " tiny", "p/tiny", "TINY")),
        "messages": [{"role": "user", "content": text}],
        "prompt": "x",
        "input": "x",
        "query": "x",
        "documents": ["a", "b"],
    }
    body |= rng.choice(({},) * 4 + ({"models": ["none", "tiny"]}, {"project": "p"}, {"project": 7}))
    body |= rng.choice(({}, {"stream": True}, {"stream": False}, {"stream": None}))
    body |= rng.choice(
        ({},) * 4 + ({"n": 2}, {"tools": []}, {"prompt_cache_key": "k"}, {"user": 1})
    )
    return Sent(rng.choice(PATHS), headers, json.dumps(body).encode())


@dataclass
class Side:
    """A node and its worker. `more` is an additional header line of its requests."""

    node: Running
    worker: OpenAIWorker
    more: str

    async def ask(self, number: int, sent: Sent) -> tuple[object, ...]:
        """Send a request on a new connection; return the answer without the parts that have to differ."""
        host, port = self.node.context.listening.http.split(":")
        lines = [
            f"POST {sent.path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"X-Request-Id: r{number}",
            self.more,
        ]
        names = {name for name, _ in sent.headers}
        if "content-type" not in names:
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in sent.headers]
        lines.append(f"Content-Length: {len(sent.body)}")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                "".join(f"{line}\r\n" for line in lines if line).encode() + b"\r\n" + sent.body
            )
            async with asyncio.timeout(20):
                head = await reader.readuntil(b"\r\n\r\n")
                while head.startswith(b"HTTP/1.1 100"):
                    head = await reader.readuntil(b"\r\n\r\n")
                return self._plain(head, await _body(reader, head))
        except asyncio.IncompleteReadError as error:
            return ("cut", error.partial[:100])
        finally:
            writer.transport.abort()

    def received(self) -> list[tuple[object, ...]]:
        """Return the requests that the worker got, sorted, and forget them."""
        got, self.worker.received[:] = list(self.worker.received), []
        return sorted(map(self._delivered, got), key=repr)

    def _delivered(self, request: Received) -> tuple[object, ...]:
        peer = self.node.context.peer
        headers = [(n.lower(), v.replace(peer, "NODE")) for n, v in request.headers.items()]
        return request.path, sorted(h for h in headers if h[0] != "host"), request.body

    def _plain(self, head: bytes, body: bytes) -> tuple[object, ...]:
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        named = dict(line.lower().split(": ", 1) for line in lines)
        for name in ("date", "transfer-encoding", "content-length"):
            named.pop(name, None)
        masked = re.sub(rb'"created":\d+', b'"created":0', body)
        masked = re.sub(rb"[0-9a-f]{24,}", b"ID", masked)
        peer = self.node.context.peer
        # A head that cannot be read gives no id of the request: the node makes one up.
        if named.get("x-request-id", "r")[0] != "r":
            del named["x-request-id"]
        headers = {name: value.replace(peer.lower(), "NODE") for name, value in named.items()}
        return first, headers, masked.replace(peer.encode(), b"NODE")


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if length := re.search(rb"(?i)\r\ncontent-length: (\d+)", head):
        return await reader.readexactly(int(length[1]))
    if b"chunked" not in head.lower():
        return await reader.read()
    pieces: list[bytes] = []
    while True:
        line = await reader.readuntil(b"\r\n")
        piece = await reader.readexactly(int(line, 16) + 2)
        if piece == b"\r\n":
            return b"".join(pieces)
        pieces.append(piece[:-2])


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines without the parts that have to differ, and forget them."""
    messages = [r.getMessage() for r in caplog.records if r.name == "modelvine.requests"]
    caplog.clear()
    return [re.sub(r" (seconds|node|at)=[^ -]\S*", "", line) for line in messages]


async def settled(*sides: Side) -> None:
    """Wait until no request is in flight."""
    await until(lambda: not any(side.node.context.metrics.counts().in_flight for side in sides))


async def alike(stack: AsyncExitStack, more: str) -> Side:
    worker = await stack.enter_async_context(running())
    one = await stack.enter_async_context(node(World(MemoryNet())))
    await one.register(worker)
    return Side(one, worker, more)


class Wrong(RoundRobin):
    """Policy with a defect."""

    def begun(self, request: Request) -> None:
        raise KeyError(request.body)


async def test_an_error_that_nothing_foresaw_is_answered_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "load", lambda name: Wrong())
    caplog.set_level(logging.INFO, "modelvine.requests")
    sent = Sent(PATHS[0], (), b'{"model":"tiny","messages":[{"role":"user","content":"secret"}]}')
    async with AsyncExitStack() as stack:
        for more in ("", "TE: trailers"):
            side = await alike(stack, more)
            answer = await side.ask(1, sent)
            assert answer[0] == "HTTP/1.1 500 Internal Server Error", answer
            assert "secret" not in caplog.text
            (line,) = lines_of(caplog)
            assert "status=500" in line
            await settled(side)
            assert not side.received()


@pytest.mark.timeout(900)
async def test_requests_give_the_same_through_the_lane_and_through_aiohttp(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, taken = random.Random(int(os.environ.get("SEED") or 15)), 0

    def counted(call: LaneCall) -> LaneCall:
        def read(http: LaneRequest) -> Request | None:
            nonlocal taken
            taken += 1
            return call.read(http)

        return replace(call, read=read)

    def counting(calls: Mapping[str, LaneCall], *rest: Any) -> LaneCalls:
        return LaneCalls({path: counted(call) for path, call in calls.items()}, *rest)

    monkeypatch.setattr(app, "LaneCalls", counting)
    caplog.set_level(logging.INFO, "modelvine.requests")
    async with AsyncExitStack() as stack:
        lane, plain = [await alike(stack, more) for more in ("", "TE: trailers")]
        for start in range(0, COUNT, TOGETHER):
            faults = rng.choice(FAULTS)
            for side in (lane, plain):
                side.worker.fail(**faults)
            for number in range(start, start + TOGETHER):
                sent = drawn(rng)
                by_lane, by_aiohttp = await asyncio.gather(
                    lane.ask(number, sent), plain.ask(number, sent)
                )
                assert by_lane == by_aiohttp, (number, faults, sent)
                await settled(lane, plain)
                assert lane.received() == plain.received(), (number, faults, sent)
                lines = lines_of(caplog)
                assert len(lines) in (0, 2), lines
                assert len(set(lines)) <= 1, (sent, lines)
        counts = [side.node.context.metrics.counts() for side in (lane, plain)]
    by_lane, by_aiohttp = counts
    assert by_lane.requests == by_aiohttp.requests
    assert by_lane.attempts == by_aiohttp.attempts
    assert by_lane.tokens == by_aiohttp.tokens
    assert (by_lane.taken, by_lane.sent) == (by_aiohttp.taken, by_aiohttp.sent)
    assert taken > COUNT // 3
