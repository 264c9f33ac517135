"""What if callers stop reading? A hundred ask for 200 MB each and take nothing: their worker is held up, they are cut off."""

import asyncio
import re
import socket
import time

from bench.serving.rows import Row
from bench.serving.scene import Scene, chat, resident
from tests.swarm.nodes import Node

READERS = 100
CHUNKS = 600_000
"""Events of some 330 bytes: 200 MB."""

GIVEN_UP = 60.0
_IN_FLIGHT = re.compile(r"^modelvine_requests_in_flight (\S+)$", re.MULTILINE)


async def measure(scene: Scene) -> list[Row]:
    """Ask and do not read."""
    node, _ = await scene.serving("readers")
    await asyncio.sleep(3)
    idle = most = resident(node)
    began = time.monotonic()
    sockets = [_ask(node) for _ in range(READERS)]
    await asyncio.sleep(1)
    health: list[float] = []
    # A caller who reads nothing does not see the end either: the window is shut. The node says how many it still serves.
    while (left := await _in_flight(scene, node)) and time.monotonic() < began + GIVEN_UP:
        most = max(most, resident(node))
        asked = time.monotonic()
        await scene.client.get(node, "/healthz")
        health.append(time.monotonic() - asked)
        await asyncio.sleep(0.1)
    took = time.monotonic() - began
    for one in sockets:
        one.close()
    return [
        Row(
            f"{READERS} stalled readers of 200 MB: memory",
            "≤ +64 MiB",
            f"+{(most - idle) * 1e6 / 2**20:.0f} MiB",
            (most - idle) * 1e6 <= 64 * 2**20,
        ),
        Row(
            "closed after",
            "≤ 35 s",
            f"{took:.0f} s, {left} left",
            not left and took <= 35,
        ),
        Row(
            "`/healthz` meanwhile, longest",
            "< 100 ms",
            f"{max(health) * 1000:.0f} ms",
            max(health) < 0.1,
        ),
    ]


async def _in_flight(scene: Scene, node: Node) -> int:
    found = _IN_FLIGHT.search(await scene.client.metrics(node))
    if found is None:
        raise ValueError("the node does not show what is in flight")
    return int(float(found[1]))


def _ask(node: Node) -> socket.socket:
    host, _, port = node.http.removeprefix("http://").rpartition(":")
    body = chat(f"chunks={CHUNKS} delay_us=0", stream=True)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    one.connect((host, int(port)))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    )
    one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return one
