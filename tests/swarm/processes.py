"""Connections to each process of a node that stay open; the kernel tells which process holds which."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from tests.swarm.client import PROMPT
from tests.swarm.nodes import Node

_ATTEMPTS = 200


@dataclass(slots=True)
class Line:
    """One connection to a node, and the process that accepted it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send a request and return status and body; raise `EOFError` or `OSError` when the connection is cut."""
        await self.send(method, path, body)
        return await self.answer()

    async def send(self, method: str, path: str, body: object = None) -> None:
        content = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split()[1])
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return status, await self.reader.readexactly(length)

    async def chat(self, model: str) -> tuple[int, bytes]:
        """Ask a model."""
        return await self.ask("POST", "/v1/chat/completions", {"model": model, "messages": PROMPT})


@asynccontextmanager
async def lines(node: Node, each: int = 1) -> AsyncIterator[dict[int, list[Line]]]:
    """Hold so many connections to each process of a node, by process id."""
    host, _, port = node.http.removeprefix("http://").rpartition(":")
    by_process: dict[int, list[Line]] = {pid: [] for pid in processes(node)}
    spare: list[Line] = []
    try:
        for _ in range(_ATTEMPTS):
            reader, writer = await asyncio.open_connection(host, int(port))
            line = Line(reader, writer, 0)
            spare.append(line)
            # A connection has been accepted once it is answered.
            await line.ask("GET", "/healthz")
            line.pid = _holder(writer.get_extra_info("sockname")[1], int(port), by_process)
            by_process[line.pid].append(line)
            if all(len(opened) >= each for opened in by_process.values()):
                break
        assert all(len(opened) >= each for opened in by_process.values()), (
            "one process is never reached"
        )
        yield {pid: opened[:each] for pid, opened in by_process.items()}
    finally:
        for line in spare:
            line.writer.transport.abort()


def processes(node: Node) -> list[int]:
    """Return the process ids of a node, the first process first."""
    first = node.actor.process.pid
    return [first, *helpers(node)]


def helpers(node: Node) -> list[int]:
    """Return the process ids of a node's helpers."""
    first = node.actor.process.pid
    paths = (path for path in Path("/proc").glob("[0-9]*/stat"))
    return sorted(int(path.parent.name) for path in paths if _parent(path) == first)


def alive(pid: int) -> bool:
    """Say whether a process runs: neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    """End a process of a node as a fault would."""
    os.kill(pid, signal.SIGKILL)


def _parent(stat: Path) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1]) if fields[0] != "Z" else 0


def _holder(remote_port: int, local_port: int, candidates: dict[int, list[Line]]) -> int:
    """Return which process holds the node's end of the connection from port `remote_port` to port `local_port`."""
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        local, remote, inode = fields[1], fields[2], fields[9]
        if (int(local[-4:], 16), int(remote[-4:], 16)) == (local_port, remote_port):
            return next(pid for pid in candidates if _has(pid, f"socket:[{inode}]"))
    raise AssertionError("no such connection")


def _has(pid: int, name: str) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor) == name:  # noqa: PTH115 (a link that leads nowhere)
                return True
        except OSError:
            continue
    return False
