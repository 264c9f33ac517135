"""Stub worker of the OpenAI protocol without a model: a real HTTP server on loopback, with faults on request.

It answers with fixed words. `faults` may be replaced at any time; `received` and `hung_up` record what reached it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import orjson
from aiohttp import web
from multidict import CIMultiDictProxy

FAILURE = b'data: {"error":{"message":"out of memory","type":"x","code":500}}\n\n'
WORDS = ("Hello", " there", ",", " how", " are", " you", "?")


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to show. Delays are seconds, `…_after` counts chunks of a stream, `name` replaces the model's name.

    Not faults: `answer` is a whole answer, `thought` comes before the words, `calls` (name and arguments) replace them,
    `finish` is the finish reason.
    """

    delay_headers: float = 0.0
    delay_first: float = 0.0
    delay_between: float = 0.0
    die_after: int | None = None
    death: asyncio.Event | None = None
    """What the worker awaits before it dies in a stream."""
    die_before_headers: bool = False
    fails_after: int | None = None
    key: str = ""
    """The key that callers must send, unless empty."""
    status: int = 200
    refusal: bytes = b'{"error":{"message":"no","type":"x","code":"x"}}'
    retry_after: str | None = None
    code: int | None = None
    error_first: bool = False
    garbage: bool = False
    empty: bool = False
    name: str | None = None
    crlf: bool = False
    no_done: bool = False
    no_model: bool = False
    hang: bool = False
    stall_after: int | None = None
    announce_bytes: int | None = None
    pad_bytes: int = 0
    packed: bool = False
    slots: int = 0
    properties: bytes = b""
    metrics: bytes = b""
    description: bytes = b""
    list_status: int = 200
    listing: bytes = b'{"object":"list","data":[]}'
    refuses_usage: bool = False
    lacks: tuple[str, ...] = ()
    answer: bytes = b""
    thought: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    usage: dict[str, int] = field(
        default_factory=lambda: {"prompt_tokens": 5, "completion_tokens": 6}
    )


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(slots=True)
class OpenAIWorker:
    """The server, while `running` is open."""

    faults: Faults = field(default_factory=Faults)
    url: str = ""
    received: list[Received] = field(default_factory=list)
    probed: list[Received] = field(default_factory=list)
    hung_up: int = 0
    served: int = 0
    answering: int = 0
    refused: int = 0
    most: int = 0
    """The peak number of concurrent requests."""
    connections: set[object] = field(default_factory=set)

    def fail(self, **faults: object) -> None:
        """Replace the faults."""
        self.faults = replace(Faults(), **faults)  # type: ignore[arg-type]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, with the configured faults."""
        body = await request.read()
        self.received.append(Received(request.path_qs, request.headers, body))
        self.most = max(self.most, len(self.received) - self.served - self.hung_up)
        self.connections.add(request.transport)
        if self.faults.key and request.headers.get("Authorization") != f"Bearer {self.faults.key}":
            return web.Response(status=401, body=self.faults.refusal)
        if 0 < self.faults.slots <= self.answering:
            self.refused += 1
            return web.Response(status=429)
        self.answering += 1
        try:
            response = await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up += 1
            raise
        finally:
            self.answering -= 1
        self.served += 1
        return response

    async def models(self, request: web.Request) -> web.Response:
        """Answer the list of models."""
        self.probed.append(Received(request.path_qs, request.headers, b""))
        if self.faults.status != 200:
            return web.Response(status=self.faults.status, body=self.faults.refusal)
        if self.faults.list_status != 200:
            return web.Response(status=self.faults.list_status)
        return web.Response(body=self.faults.listing, content_type="application/json")

    async def properties(self, request: web.Request) -> web.Response:
        """Answer llama.cpp's properties, if `faults` hold them."""
        self.probed.append(Received(request.path_qs, request.headers, b""))
        if not self.faults.properties:
            raise web.HTTPNotFound
        return web.Response(body=self.faults.properties, content_type="application/json")

    async def described(self, request: web.Request) -> web.Response:
        """Answer FastAPI's description of the paths, if `faults` hold it."""
        self.probed.append(Received(request.path_qs, request.headers, b""))
        if not self.faults.description:
            raise web.HTTPNotFound
        return web.Response(body=self.faults.description, content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer metrics in Prometheus's form, if `faults` hold them."""
        self.probed.append(Received(request.path_qs, request.headers, b""))
        if not self.faults.metrics:
            raise web.HTTPNotFound
        return web.Response(body=self.faults.metrics, content_type="text/plain")

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        faults = self.faults
        if faults.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(faults.delay_headers)
        if faults.die_before_headers:
            return self._die(request)
        if request.path in faults.lacks:
            raise web.HTTPNotFound
        if faults.status != 200:
            headers = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            return web.Response(status=faults.status, body=faults.refusal, headers=headers,
                                content_type="application/json")  # fmt: skip
        kind = request.path.removeprefix("/v1").removeprefix("/")
        fields = _fields(body)
        if faults.refuses_usage and "stream_options" in fields:
            return web.Response(status=400, body=faults.refusal, content_type="application/json")
        if kind in ("chat/completions", "completions", "custom/chat") and fields.get("stream"):
            return await self._stream(request, fields)
        return await self._whole(request, kind, fields)

    async def _whole(
        self, request: web.Request, kind: str, fields: dict[str, object]
    ) -> web.StreamResponse:
        faults, model = self.faults, str(fields.get("model"))
        if kind == "audio/speech":
            content, content_type = b"RIFF" + b"\x00" * (1000 + faults.pad_bytes), "audio/wav"
        else:
            payload = _said(kind)
            payload |= self._choices() | self._named(model) | self._failing()
            if faults.error_first:
                payload = {"error": {"message": "out of memory"}}
            if faults.pad_bytes:
                payload = {"pad": "x" * faults.pad_bytes} | payload
            content, content_type = orjson.dumps(payload), "application/json; charset=utf-8"
        if faults.garbage:
            content = b"<html>not JSON</html>"
        content = faults.answer or content
        response = web.StreamResponse(headers={"Content-Type": content_type, "X-Own": "1"})
        if faults.packed:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = 0 if faults.empty else faults.announce_bytes or len(content)
        await response.prepare(request)
        await asyncio.sleep(faults.delay_first)
        if not faults.empty:
            await response.write(content[: faults.announce_bytes])
        if faults.die_after is None:
            return response
        # The written bytes must be read before the connection is cut.
        await asyncio.sleep(faults.delay_between)
        return self._die(request)

    async def _stream(self, request: web.Request, fields: dict[str, object]) -> web.StreamResponse:
        faults, model, usage = self.faults, str(fields.get("model")), _wants_usage(fields)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(faults.delay_first)
        for sent, event in enumerate(self.events(model, usage=usage, begun=_begun(fields))):
            if faults.die_after is not None and sent >= faults.die_after:
                if faults.death is not None:
                    await faults.death.wait()
                return self._die(request)
            if sent == faults.fails_after:
                await response.write(FAILURE)
                break
            if sent == faults.stall_after:
                await asyncio.Event().wait()
            if sent:
                await asyncio.sleep(faults.delay_between)
            await response.write(event)
        await response.write_eof()
        return response

    def events(self, model: str, *, usage: bool = False, begun: str = "") -> list[bytes]:
        """Return the events of a stream; with `usage`, one more with the usage; without the words in `begun`."""
        faults = self.faults
        end = "\r\n" if faults.crlf else "\n"
        if faults.garbage:
            return [f"data: <html>{end}{end}".encode()]
        head: dict[str, object] = {"id": "c", "object": "chat.completion.chunk", "created": 1}
        head |= self._named(model)
        deltas = self._deltas(begun)
        chunks = [head | {"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        if faults.finish is not None:
            last = {"index": 0, "delta": {}, "finish_reason": faults.finish}
            chunks.append(head | {"choices": [last]})
        if usage:
            chunks.append({**chunks[0], "choices": [], "usage": faults.usage})
        if faults.code is not None:
            chunks[0] = self._failing()
        if faults.error_first:
            chunks[0] = {"error": {"message": "out of memory", "type": "x", "code": 500}}
        events = [f"data: {orjson.dumps(chunk).decode()}{end}{end}" for chunk in chunks]
        events[0] = f": alive{end}{end}{events[0]}"
        if not faults.no_done:
            events.append(f"data: [DONE]{end}{end}")
        return [event.encode() for event in events]

    def _choices(self) -> dict[str, object]:
        faults = self.faults
        if not (faults.calls or faults.thought or faults.finish):
            return {}
        message: dict[str, object] = {"role": "assistant", "content": "".join(WORDS)}
        if faults.calls:
            calls = [_call(index, *call) for index, call in enumerate(faults.calls)]
            message |= {"content": None, "tool_calls": calls}
        if faults.thought:
            message["reasoning_content"] = faults.thought
        choice = {"index": 0, "message": message, "finish_reason": faults.finish}
        return {"choices": [choice], "usage": faults.usage}

    def _deltas(self, begun: str) -> list[dict[str, object]]:
        faults = self.faults
        deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
        if faults.thought:
            deltas += [{"reasoning_content": letter} for letter in faults.thought]
        for number, (name, arguments) in enumerate(faults.calls):
            deltas.append({"tool_calls": [_call(number, name, "")]})
            for letter in arguments:
                part = {"index": number, "function": {"arguments": letter}}
                deltas.append({"tool_calls": [part]})
        for index, word in enumerate(WORDS if not faults.calls else ()):
            if index and "".join(WORDS[1 : index + 1]) not in begun:
                deltas.append({"content": word})
        return deltas

    def _named(self, model: str) -> dict[str, object]:
        return {} if self.faults.no_model else {"model": self.faults.name or model}

    def _failing(self) -> dict[str, object]:
        return {} if self.faults.code is None else {"code": self.faults.code, "message": "said"}

    def _die(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


def _call(index: int, name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


def _fields(body: bytes) -> dict[str, object]:
    try:
        return dict(orjson.loads(body))
    except ValueError:
        return {"model": "form"}


def _begun(fields: dict[str, object]) -> str:
    match fields.get("messages"):
        case [*_, {"role": "assistant", "content": str(text)}]:
            return text
        case _:
            return ""


def _wants_usage(fields: dict[str, object]) -> bool:
    options = fields.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _said(kind: str) -> dict[str, object]:
    match kind:
        case "embeddings":
            vector = {"object": "embedding", "index": 0, "embedding": [0.25, -1.5]}
            return {"object": "list", "data": [vector], "usage": {"prompt_tokens": 1}}
        case "images/generations" | "images/edits":
            return {"created": 1, "data": [{"b64_json": "aGVsbG8="}]}
        case "completions":
            return {"id": "c", "choices": [{"index": 0, "text": "".join(WORDS)}], "own_field": [1]}
        case "tokenize":
            return {"tokens": [{"id": 7, "piece": "Once"}, {"id": 8, "piece": " upon"}]}
        case _:
            message = {"role": "assistant", "content": "".join(WORDS)}
            return {"id": "c", "choices": [{"index": 0, "message": message}], "own_field": [1]}


@asynccontextmanager
async def running(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[OpenAIWorker]:
    """Run a worker on a port of loopback, a free one unless it is given."""
    worker = OpenAIWorker()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/v1/models", worker.models)
    app.router.add_get("/props", worker.properties)
    app.router.add_get("/openapi.json", worker.described)
    app.router.add_get("/metrics", worker.metrics)
    app.router.add_post("/{path:.*}", worker.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    worker.url = f"http://{host}:{runner.addresses[0][1]}"
    try:
        yield worker
    finally:
        await runner.cleanup()
