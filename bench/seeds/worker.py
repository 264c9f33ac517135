"""Worker of a simulation: an HTTP server that answers chats, whole and streamed, in numbered words, and records its work.

A stream is the words `w0 w1 …`; if a request has the beginning of an answer, the stream continues after it. A whole answer is one
word that no other answer has.
"""

import asyncio
import random
import re
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf

import orjson

from bench.seeds.loop import PROCESS, SeedProcess
from bench.seeds.wires import SeedPort, Wires

_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
_KEEPS = 5.0
"""Seconds for which an idle connection is kept, as in uvicorn."""


@dataclass(slots=True)
class Work:
    """One request at one worker."""

    request: str
    worker: str
    began: float
    answer: str
    ended: float = inf
    """Time when its whole answer was written."""

    @property
    def written(self) -> bool:
        """Whether it was completed."""
        return self.ended < inf


@dataclass(slots=True)
class Temper:
    """Behaviour of a worker."""

    seconds: float = 0.05
    """Mean seconds until its first byte."""
    pace: float = 0.02
    """Seconds between two words of a stream."""
    words: int = 8
    fails: str = ""
    """`error`: it answers with 500; `dies`: its process ends in the middle of an answer."""


@dataclass
class SeedWorker:
    """Program that runs a model at a port of a machine; `process` is its present run, `None` while it is dead."""

    name: str
    host: int
    port: int
    wires: Wires
    rng: random.Random
    works: list[Work]
    temper: Temper = field(default_factory=Temper)
    process: SeedProcess | None = None

    def start(self) -> None:
        """Start a process that listens."""
        self.process = SeedProcess(self.name, self.host)
        context = copy_context()
        context.run(PROCESS.set, self.process)
        port = SeedPort(self.process, self.port)
        listening = self.wires.create_server(lambda: _Caller(self), sock=port)
        self.wires.create_task(listening, context=context)

    def end(self) -> None:
        """Kill the process; all connections are reset."""
        if (process := self.process) is not None:
            self.process = None
            process.gone = True
            process.frozen = 0
            self.wires.thaw(process)
            self.wires.end(process)
            for task in self.wires.tasks_of(process):
                task.cancel()

    def recover(self) -> None:
        """Restore the initial behaviour, and restart the process if it is dead."""
        self.temper = Temper()
        if self.process is None:
            self.start()

    @property
    def well(self) -> bool:
        """Whether it runs and behaves as at the beginning."""
        process = self.process
        return process is not None and not process.frozen and self.temper == Temper()


class _Caller(asyncio.Protocol):
    """One connection to the worker."""

    def __init__(self, model: SeedWorker) -> None:
        self._model = model
        self._came = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._rest()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        if self._idle is not None:
            self._idle.cancel()

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._next()

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._model.wires.call_later(_KEEPS, self._leave)

    def _leave(self) -> None:
        if self._task is None and self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        head, separator, rest = self._came.partition(b"\r\n\r\n")
        if not separator or self._task is not None:
            return
        length = int(match[1]) if (match := _LENGTH.search(head)) else 0
        if len(rest) < length:
            return
        self._came = rest[length:]
        self._task = self._model.wires.create_task(self._answer(head, rest[:length]))

    async def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /v1/chat/completions"):
            await self._chat(orjson.loads(body))
        elif head.startswith(b"GET /v1/models"):
            self._whole(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        else:
            self._whole(404, {"error": {"message": "not found"}})
        self._task = None
        self._rest()
        self._next()

    async def _chat(self, fields: dict[str, object]) -> None:
        model, wires = self._model, self._model.wires
        messages: list[dict[str, str]] = fields["messages"]  # type: ignore[assignment]
        work = Work(messages[0]["content"], model.name, wires.time(), f"a{len(model.works)}")
        model.works.append(work)
        temper = model.temper
        await asyncio.sleep(temper.seconds * model.rng.uniform(0.7, 1.4))
        if temper.fails == "error":
            self._whole(500, {"error": {"message": "out of memory"}})
        elif temper.fails == "dies" and not fields.get("stream"):
            model.end()
        elif fields.get("stream"):
            prefix = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
            await self._stream(work, len(prefix.split()))
        else:
            self._whole(200, _completion(work.answer))
            work.ended = wires.time()

    async def _stream(self, work: Work, start: int) -> None:
        temper = self._model.temper
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(start, temper.words):
            if temper.fails == "dies" and number == start + temper.words // 2:
                self._model.end()
                return
            self._event(_chunk({"content": f"w{number} "}, None))
            await asyncio.sleep(temper.pace)
        self._event(_chunk({}, "stop"))
        self._write(_chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        work.ended = self._model.wires.time()

    def _event(self, event: dict[str, object]) -> None:
        self._write(_chunked(b"data: " + orjson.dumps(event) + b"\n\n"))

    def _whole(self, status: int, content: dict[str, object]) -> None:
        body = orjson.dumps(content)
        head = f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _completion(answer: str) -> dict[str, object]:
    message = {"role": "assistant", "content": answer}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": answer, "object": "chat.completion", "model": "m", "choices": [choice]}


def _chunk(delta: dict[str, str], finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
