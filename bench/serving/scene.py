"""Scene of a measurement: nodes, workers and load as processes on loopback; and rows, each a figure with its goal."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.compare import memory_mb
from bench.mock import Mock
from tests.swarm.client import Client
from tests.swarm.nodes import Node, Swarm


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its goal."""

    what: str
    goal: str
    seen: str
    kept: bool


def table(rows: Iterable[Row]) -> str:
    """Return a table of rows, in which missed goals are marked."""
    lines = ["| what | goal | seen | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.goal} | {row.seen} | {'' if row.kept else '**missed**'} |"
        for row in rows
    ]
    return "\n".join(lines)


MODEL = "mock"


@dataclass(frozen=True, slots=True)
class Scene:
    """Starter of a measurement's processes, which end with `stack`."""

    swarm: Swarm
    client: Client
    folder: Path
    stack: ExitStack

    async def node(self, name: str) -> Node:
        """Run a node."""
        return await asyncio.to_thread(self.swarm.start, name)

    async def serving(self, name: str) -> tuple[Node, Mock]:
        """Run a node with a worker in C that serves `MODEL`."""
        mock = Mock()
        self.stack.callback(mock.kill)
        node = await self.node(name)
        await self.client.register(node, "bench", [MODEL], mock.api)
        await self.client.listed([node], MODEL)
        return node, mock

    def body(self, name: str, content: bytes) -> Path:
        """Write a request body for the load generator."""
        path = self.folder / f"{name}.body"
        path.write_bytes(content)
        return path


def resident(node: Node) -> float:
    """Return the resident memory of a node in MB."""
    return memory_mb((node.actor.process.pid,))


def chat(orders: str, *, stream: bool) -> bytes:
    """Return a chat body whose prompt carries instructions to the worker in C."""
    messages = [{"role": "user", "content": f"[[{orders}]] What does a router do?"}]
    return json.dumps({"model": MODEL, "messages": messages, "stream": stream}).encode()
