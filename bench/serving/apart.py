"""Latency of messages whose head and body are sent apart, by programs with Nagle's algorithm (without `TCP_NODELAY`).

Such a program sends the body only when the head is acknowledged, which kernels put off for some 40 ms.
"""

import asyncio
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from bench.serving.scene import MODEL, Row, Scene

REQUESTS, FIRST = 100, 20
"""Requests over one connection; the first ones are not counted: kernels acknowledge a new connection's bytes at once."""

_GOAL_MS = 5.0
_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "It routes."},
            "finish_reason": "stop",
        }
    ],
}


class _Worker(BaseHTTPRequestHandler):
    """Worker on Python's own HTTP server, which sends head and body apart and keeps Nagle's algorithm."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(_ANSWER)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def measure_apart(scene: Scene) -> list[Row]:
    """Send requests to such a worker, directly and through a node, from callers that send in one part and in two."""
    with _worker() as api:
        node = await scene.node("apart")
        await scene.client.register(node, "bench", [MODEL], api)
        await scene.client.listed([node], MODEL)
        rows = []
        for what, apart in (("the worker", False), ("worker and caller", True)):
            direct, seen = [
                await asyncio.to_thread(_median_ms, url, apart=apart) for url in (api, node.http)
            ]
            text = f"a request, head and body sent apart by {what} without `TCP_NODELAY`, median"
            goal = f"≤ {_GOAL_MS:g} ms ({direct:.1f} without a node)"
            rows.append(Row(text, goal, f"{seen:.1f} ms", seen <= _GOAL_MS))
        return rows


@contextmanager
def _worker() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Worker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _median_ms(url: str, *, apart: bool) -> float:
    """Return the median of a request's milliseconds over one connection, whose head and body may be sent apart."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    taken = []
    with socket.create_connection((host, port), timeout=10) as wire:
        for _ in range(REQUESTS):
            began = time.monotonic()
            for part in (head, body) if apart else (head + body,):
                wire.sendall(part)
            _read_answer(wire)
            taken.append(1000 * (time.monotonic() - began))
    return statistics.median(taken[FIRST:])


def _read_answer(wire: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += wire.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(head.decode())
    lines = (line.partition(b":") for line in head.lower().splitlines())
    length = next(int(value) for name, _, value in lines if name == b"content-length")
    while len(body) < length:
        body += wire.recv(65536)
