"""Callers of a simulation: they send requests and registrations to nodes over HTTP, and keep the answers."""

import asyncio
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field

import orjson

from bench.seeds.loop import PROCESS, SeedProcess
from bench.seeds.machine import HTTP, TOKEN
from bench.seeds.wires import Wires, address_of

PATIENCE = 75.0
"""Seconds for which a caller waits for a whole answer: more than `router.idle_timeout`."""


@dataclass(slots=True)
class AskedChat:
    """One request and its result."""

    name: str
    host: int
    model: str
    stream: bool
    began: float
    listed: frozenset[int] = frozenset()
    """Machines that the called node listed as alive for the model at the beginning."""
    ended: float = 0.0
    status: int = 0
    said: str = ""
    """The text of the answer."""
    error: str = ""
    """The code of an error, or another failure; empty if the request was answered."""

    def __str__(self) -> str:
        """Describe it in one line."""
        kind = "stream" if self.stream else "whole"
        how = f"failed with {self.status} {self.error}" if self.error else "was answered"
        return f"{self.name} ({kind}, {self.model}) at n{self.host} of {self.began:.3f} {how} at {self.ended:.3f}"


def at(host: int) -> Context:
    """Return the context of a caller on a machine."""
    context = copy_context()
    context.run(PROCESS.set, SeedProcess(f"c{host}", host))
    return context


async def chat(wires: Wires, request: AskedChat) -> None:
    """Send a chat to a node, and record the result."""
    message = {"role": "user", "content": request.name}
    body = {"model": request.model, "messages": [message], "stream": request.stream}
    try:
        async with asyncio.timeout(PATIENCE):
            request.status, answer = await _exchange(
                request.host, "/v1/chat/completions", body, name=request.name
            )
        _read(request, answer)
    except TimeoutError:
        request.error = "no answer in time"
    except (OSError, EOFError) as error:
        request.error = f"hung up: {error}"
    request.ended = wires.time()


async def told(host: int, path: str, body: dict[str, object] | None = None) -> tuple[int, bytes]:
    """Return the status and body of an answer, 0 and no bytes if there was none in time."""
    with suppress(TimeoutError, OSError, EOFError):
        async with asyncio.timeout(PATIENCE):
            return await _exchange(host, path, body)
    return 0, b""


async def _exchange(
    host: int, path: str, body: dict[str, object] | None, *, name: str = "x"
) -> tuple[int, bytes]:
    sent = b"" if body is None else orjson.dumps(body)
    reader, writer = await asyncio.open_connection(address_of(host), HTTP)
    try:
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {address_of(host)}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nX-Request-Id: {name}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        )
        writer.write(head.encode() + sent)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        rest = await reader.read()
        if b"transfer-encoding: chunked" in lines:
            rest = _unchunked(rest)
        return int(lines[0].split()[1]), rest
    finally:
        writer.transport.abort()


def _unchunked(rest: bytes) -> bytes:
    pieces = []
    while True:
        size, separator, rest = rest.partition(b"\r\n")
        if not separator:
            raise EOFError("the answer broke off")
        count = int(size, 16)
        if count == 0:
            if rest != b"\r\n":
                raise EOFError("more came after the end")
            return b"".join(pieces)
        if len(rest) < count + 2:
            raise EOFError("the answer broke off")
        pieces.append(rest[:count])
        rest = rest[count + 2 :]


def _read(request: AskedChat, answer: bytes) -> None:
    if request.status != 200:
        error = orjson.loads(answer).get("error", {})
        request.error = str(error.get("code"))
    elif not request.stream:
        request.said = orjson.loads(answer)["choices"][0]["message"]["content"]
    else:
        _read_stream(request, answer)


def _read_stream(request: AskedChat, answer: bytes) -> None:
    ended = False
    for event in answer.split(b"\n\n"):
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                ended = True
                continue
            read = orjson.loads(data)
            if "error" in read:
                request.error = str(read["error"].get("code"))
            for choice in read.get("choices", ()):
                request.said += choice["delta"].get("content") or ""
    if not ended and not request.error:
        request.error = "the stream has no end"


@dataclass
class Registrations:
    """Registrations by machine and model: `kept` since their acknowledgement, `open` if their state is unknown."""

    kept: dict[tuple[int, str], float] = field(default_factory=dict)
    open: set[tuple[int, str]] = field(default_factory=set)

    async def register(self, wires: Wires, host: int, project: str, model: str, port: int) -> bool:
        """Register a model at a node; return whether the node acknowledged it."""
        api = f"http://127.0.0.1:{port}/v1/chat/completions"
        row: dict[str, object] = {"project": project, "model": model, "api": api}
        return await self._do(wires, host, model, "model/register", row, lives=True)

    async def register_all(self, wires: Wires, host: int, names: list[str], port: int) -> bool:
        """Register a whole project of models, all or none; return whether the node acknowledged it."""
        api = f"http://127.0.0.1:{port}/v1/chat/completions"
        keys = [(host, name) for name in names]
        self.open.update(keys)
        body = {"project": "heavy", "models": [{"model": name, "api": api} for name in names]}
        status, _ = await told(host, "/api/v0/ai/project/register", body)
        if status != 200:
            return False
        self.open.difference_update(keys)
        self.kept.update(dict.fromkeys(keys, wires.time()))
        return True

    async def withdraw(self, wires: Wires, host: int, project: str, model: str) -> bool:
        """Unregister a model; return whether the node acknowledged it."""
        row: dict[str, object] = {"project": project, "model": model, "cid": ""}
        return await self._do(wires, host, model, "model/unregister", row, lives=False)

    async def _do(
        self, wires: Wires, host: int, model: str, path: str, row: dict[str, object], *, lives: bool
    ) -> bool:
        key = host, model
        self.kept.pop(key, None)
        self.open.add(key)
        status, _ = await told(host, f"/api/v0/ai/{path}", row)
        if status != 200:
            return False
        self.open.discard(key)
        if lives:
            self.kept[key] = wires.time()
        return True
