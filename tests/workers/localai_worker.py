"""Stub LocalAI backend without a model, written from its `.proto` file: real gRPC on loopback, with faults on request.

It answers with `words`, each a token, and ends after a stop string, which it includes. `received`, `hung_up` and
`finished` record what reached it; its `wire` can be cut. Like backends written in Python, it may answer one call after
the other, `Health` included, and go on with a call whose caller has left.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from router.rpc.messages import LOCALAI, message_class, methods_of
from tests.workers.openai_worker import WORDS
from tests.workers.wire import Wire, wire

METHODS = methods_of(LOCALAI)
NOT_LOADED = (
    "Unexpected <class 'AttributeError'>: 'BackendServicer' object has no attribute 'tokenizer'"
)
NO_TEMPLATE = "Unexpected <class 'AttributeError'>: items"
NO_RESULT = "Unexpected err=RuntimeError('no')"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)
_SECOND = 1_000_000_000
_CODES = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to show. Delays are seconds, `…_after` counts replies of a stream, `status` is an HTTP status.

    `usage` is how tokens are reported: as `zeros`, as `sums` so far, or for `each` reply. `serial` answers one call after the
    other, and `stubborn` finishes cancelled calls. `unloaded` is the error before a model is loaded, a status and a message;
    `unloaded_result` is its message in an unsuccessful `Result`, for calls that answer with one.
    """

    delay_headers: float = 0.0
    delay_first: float = 0.0
    delay_between: float = 0.0
    die_after: int | None = None
    end_after: int | None = None
    fail_after: int | None = None
    die_before_headers: bool = False
    status: int = 200
    code: str = ""
    refusal: bytes = b"no such sampler"
    retry_after: str | None = None
    garbage: bool = False
    empty: bool = False
    hang: bool = False
    split: bool = False
    blanks: int = 0
    usage: str = "sums"
    no_template: bool = False
    load_fails: bool = False
    fails_from: int | None = None
    unloaded: tuple[str, str] = ("UNKNOWN", NOT_LOADED)
    unloaded_result: str = ""
    texts_only: bool = False
    serial: bool = False
    stubborn: bool = False
    lacks: frozenset[str] = frozenset()
    makes: bytes = b""


@dataclass(frozen=True, slots=True)
class Received:
    """One call as it arrived."""

    path: str
    headers: Mapping[str, str]
    asked: Any
    model: str = ""
    """The model that was loaded at the time."""


@dataclass(slots=True)
class LocalAIWorker:
    """The server, while `running` is open."""

    wire: Wire
    faults: Faults = field(default_factory=Faults)
    words: tuple[str, ...] = WORDS
    loaded: bool = True
    model: str = ""
    state: int = 0
    """The state to report in place of the real one, unless zero."""
    question_tokens: int = 9
    more: dict[str, Any] = field(default_factory=dict)
    """Additional fields of replies, like those of newer backends."""
    loads: list[Any] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    probed: list[Received] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    hung_up: int = 0
    finished: int = 0
    writing: int = 0
    disturbed: int = 0
    """Number of texts that were being written when a model was loaded."""
    listen: Callable[[Any], object] = bool
    """Called with each request that is answered with a file."""
    stored: dict[tuple[float, ...], bytes] = field(default_factory=dict)
    at_work: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"grpc://127.0.0.1:{self.wire.port}"

    @property
    def asked(self) -> Any:
        """The last request, except for probes."""
        return self.received[-1].asked

    def fail(self, **faults: object) -> None:
        """Replace the faults."""
        self.faults = replace(Faults(), **faults)  # type: ignore[arg-type]

    def restart(self, *, unseen: bool = False) -> None:
        """Restart without a model; `unseen` keeps the connections, like a proxy in front of a backend."""
        self.loaded, self.model = False, ""
        if not unseen:
            self.wire.cut()

    # Texts

    async def predict(self, request: Any, context: Any) -> Any:
        """Answer with all words at once."""
        await self._begin(request, context)
        if self.faults.garbage:
            return b"\xff" * 40
        words = [word async for word in self._said(request)]
        usage = self._usage(request, len(words))
        return METHODS["Predict"].reply_class(message="".join(words).encode(), **usage, **self.more)

    async def predict_stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Answer word by word."""
        reply = METHODS["PredictStream"].reply_class
        await self._begin(request, context)
        if self.faults.garbage:
            yield b"\xff" * 40
        sent = 0
        async for word in self._said(request):
            for _ in range(self.faults.blanks):
                yield reply()
            if sent == self.faults.die_after:
                self.wire.cut()
            if sent == self.faults.fail_after:
                await context.abort(grpc.StatusCode.UNKNOWN, "Unexpected <class 'ValueError'>: x")
            if sent == self.faults.end_after:
                return
            sent += 1
            data = word.encode()
            pieces = (
                [data[index : index + 1] for index in range(len(data))]
                if self.faults.split
                else [data]
            )
            for piece in pieces[:-1]:
                yield reply(message=piece)
            yield reply(message=pieces[-1], **self._usage(request, sent), **self.more)

    async def tokenize_string(self, request: Any, context: Any) -> Any:
        """Count four bytes as one token."""
        await self._begin(request, context)
        tokens = range(0, len(request.Prompt.encode()), 4)
        return METHODS["TokenizeString"].reply_class(length=len(tokens), tokens=tokens)

    async def embedding(self, request: Any, context: Any) -> Any:
        """Return three numbers for a text."""
        await self._begin(request, context)
        tokens = 0 if self.faults.texts_only else len(request.EmbeddingTokens)
        size = float(len(request.Embeddings) or tokens)
        return METHODS["Embedding"].reply_class(embeddings=[size, 0.5, -1.0])

    async def rerank(self, request: Any, context: Any) -> Any:
        """Rank the longest document first."""
        await self._begin(request, context)
        result = message_class("backend.DocumentResult")
        results = [
            result(index=index, text=text, relevance_score=float(len(text)))
            for index, text in enumerate(request.documents)
        ]
        results.sort(key=lambda one: -one.relevance_score)
        usage = message_class("backend.Usage")(total_tokens=9, prompt_tokens=self.question_tokens)
        return METHODS["Rerank"].reply_class(usage=usage, results=results[: request.top_n or None])

    # Images and sounds, exchanged as files that both sides see

    async def generate_image(self, request: Any, context: Any) -> Any:
        """Write an image to a path."""
        return await self._write(request, context, PNG)

    async def tts(self, request: Any, context: Any) -> Any:
        """Write speech to a path."""
        return await self._write(request, context, WAV)

    async def sound_generation(self, request: Any, context: Any) -> Any:
        """Write a sound to a path."""
        return await self._write(request, context, WAV)

    async def audio_transcription(self, request: Any, context: Any) -> Any:
        """Return the length of a file as its transcript."""
        await self._begin(request, context)
        text = f" {len(Path(request.dst).read_bytes())} bytes"  # noqa: ASYNC240
        segment = message_class("backend.TranscriptSegment")
        parts = [
            segment(id=n, start=n * _SECOND, end=(n + 1) * _SECOND, text=text, tokens=[7, n])
            for n in (0, 1)
        ]
        return METHODS["AudioTranscription"].reply_class(segments=parts, text=text * 2)

    # Store

    async def stores_set(self, request: Any, context: Any) -> Any:
        """Store values."""
        await self._begin(request, context)
        if self.faults.empty:
            return METHODS["StoresSet"].reply_class(message=NO_RESULT)
        keys = (tuple(key.Floats) for key in request.Keys)
        self.stored |= dict(zip(keys, (value.Bytes for value in request.Values), strict=True))
        return METHODS["StoresSet"].reply_class(success=True)

    async def stores_delete(self, request: Any, context: Any) -> Any:
        """Delete values."""
        await self._begin(request, context)
        if self.faults.empty:
            return METHODS["StoresDelete"].reply_class(message=NO_RESULT)
        for key in request.Keys:
            self.stored.pop(tuple(key.Floats), None)
        return METHODS["StoresDelete"].reply_class(success=True)

    async def stores_get(self, request: Any, context: Any) -> Any:
        """Return the stored values of the keys."""
        await self._begin(request, context)
        found = [k for key in request.Keys if (k := tuple(key.Floats)) in self.stored]
        return METHODS["StoresGet"].reply_class(**self._columns(found))

    async def stores_find(self, request: Any, context: Any) -> Any:
        """Return the values whose first numbers are nearest."""
        await self._begin(request, context)
        near = sorted(self.stored, key=lambda key: abs(key[0] - request.Key.Floats[0]))[
            : request.TopK
        ]
        return METHODS["StoresFind"].reply_class(
            **self._columns(near), Similarities=[1.0] * len(near)
        )

    # Health, status and model

    async def health(self, request: Any, context: Any) -> Any:
        """Report that the backend is alive; with `serial`, once it is idle."""
        if self.faults.serial:
            async with self.at_work:
                pass
        return METHODS["Health"].reply_class(message=b"OK")

    async def status(self, request: Any, context: Any) -> Any:
        """Report the state."""
        memory = message_class("backend.MemoryUsageData")(total=5, breakdown={"weights": 4})
        state = self.state or (0 if not self.loaded else 1 if self.at_work.locked() else 2)
        return METHODS["Status"].reply_class(state=state, memory=memory)

    async def get_metrics(self, request: Any, context: Any) -> Any:
        """Report the speed of the last answer."""
        return METHODS["GetMetrics"].reply_class(
            prompt_json_for_slot='["a secret"]', tokens_per_second=12.5, tokens_generated=7
        )

    async def load_model(self, request: Any, context: Any) -> Any:
        """Load a model, or report a failure."""
        self.loads.append(request)
        self.disturbed += self.writing
        await asyncio.sleep(self.faults.delay_headers)
        if self.faults.load_fails:
            return METHODS["LoadModel"].reply_class(
                success=False, message="Unexpected err=OSError('no')"
            )
        self.loaded, self.model = True, request.Model
        return METHODS["LoadModel"].reply_class(success=True, message="Model loaded successfully")

    # Implementation

    async def _begin(self, request: Any, context: Any) -> None:
        faults = self.faults
        await asyncio.sleep(faults.delay_headers)
        if faults.die_before_headers:
            self.wire.cut()
        if faults.fails_from is not None and len(self.calls) > faults.fails_from:
            await context.abort(grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>: 'x'")
        if faults.status != 200 or faults.code:
            code = faults.code or _CODES.get(faults.status, "INVALID_ARGUMENT")
            if faults.retry_after:
                pushback = str(int(faults.retry_after) * 1000)
                context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
            await context.abort(grpc.StatusCode[code], faults.refusal.decode())
        if not self.loaded:
            code, details = faults.unloaded
            await context.abort(grpc.StatusCode[code], details)
        templated = (
            isinstance(request, METHODS["Predict"].request_class) and request.UseTokenizerTemplate
        )
        if templated and faults.no_template:
            await context.abort(grpc.StatusCode.UNKNOWN, NO_TEMPLATE)
        if faults.hang:
            await asyncio.Event().wait()

    async def _said(self, request: Any) -> AsyncIterator[str]:
        """Yield words from a task of its own, which may outlive its caller."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        task = asyncio.ensure_future(self._make(request, queue))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            while word := await queue.get():
                yield word
        finally:
            if not self.faults.stubborn:
                task.cancel()

    async def _make(self, request: Any, queue: "asyncio.Queue[str]") -> None:
        async with self.at_work if self.faults.serial else asyncio.Lock():
            self.writing += 1
            await asyncio.sleep(self.faults.delay_first)
            for number, word in enumerate(() if self.faults.empty else self._words(request)):
                await asyncio.sleep(self.faults.delay_between if number else 0)
                queue.put_nowait(word)
            self.writing -= 1
            self.finished += 1
        queue.put_nowait("")

    def _words(self, request: Any) -> list[str]:
        words: list[str] = []
        for word in self.words[: request.Tokens or None]:
            words.append(word)
            if any(stop in "".join(words) for stop in request.StopPrompts):
                break
        return words

    def _usage(self, request: Any, sent: int) -> dict[str, int]:
        if self.faults.usage == "zeros":
            return {}
        each = self.faults.usage == "each"
        return {"tokens": 1 if each else sent, "prompt_tokens": 5}

    async def _write(self, request: Any, context: Any, data: bytes) -> Any:
        result = METHODS["TTS"].reply_class
        if not self.loaded and self.faults.unloaded_result:
            return result(success=False, message=self.faults.unloaded_result)
        await self._begin(request, context)
        self.listen(request)
        if self.faults.empty:
            return result(success=False, message=NO_RESULT)
        data = self.faults.makes or data
        Path(request.dst).write_bytes(data)  # noqa: ASYNC240
        return result(success=True)

    def _columns(self, keys: list[tuple[float, ...]]) -> dict[str, Any]:
        key, value = message_class("backend.StoresKey"), message_class("backend.StoresValue")
        return {
            "Keys": [key(Floats=one) for one in keys],
            "Values": [value(Bytes=self.stored[one]) for one in keys],
        }

    def handler(self, name: str) -> Any:
        """Return a handler of the named RPC that records its calls and the callers that left."""
        method, answer = METHODS[name], _answers(self)[name]

        async def heard(request: Any, context: Any) -> None:
            if name in self.faults.lacks:
                self.refused.append(name)
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")
            self.calls.append(name)
            headers = dict(context.invocation_metadata())
            noted = self.probed if name in ("Health", "Status") else self.received
            noted.append(Received(method.path, headers, request, self.model))

        async def unary(request: Any, context: Any) -> Any:
            await heard(request, context)
            try:
                return await answer(request, context)
            except asyncio.CancelledError:
                self.hung_up += 1
                raise

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await heard(request, context)
            try:
                async for reply in answer(request, context):
                    yield reply
            except (asyncio.CancelledError, GeneratorExit):
                self.hung_up += 1
                raise

        make = (
            grpc.unary_stream_rpc_method_handler
            if method.streams
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            stream if method.streams else unary,
            request_deserializer=method.request_class.FromString,
            response_serializer=_written,
        )


def _answers(worker: LocalAIWorker) -> dict[str, Callable[[Any, Any], Any]]:
    return {
        "Health": worker.health,
        "Predict": worker.predict,
        "LoadModel": worker.load_model,
        "PredictStream": worker.predict_stream,
        "Embedding": worker.embedding,
        "GenerateImage": worker.generate_image,
        "AudioTranscription": worker.audio_transcription,
        "TTS": worker.tts,
        "SoundGeneration": worker.sound_generation,
        "TokenizeString": worker.tokenize_string,
        "Status": worker.status,
        "StoresSet": worker.stores_set,
        "StoresDelete": worker.stores_delete,
        "StoresGet": worker.stores_get,
        "StoresFind": worker.stores_find,
        "Rerank": worker.rerank,
        "GetMetrics": worker.get_metrics,
    }


def _written(reply: Any) -> bytes:
    written: bytes = reply if isinstance(reply, bytes) else reply.SerializeToString()
    return written


@asynccontextmanager
async def running() -> AsyncIterator[LocalAIWorker]:
    """Run a server on a free port of loopback."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    async with wire(server.add_insecure_port("127.0.0.1:0")) as line:
        worker = LocalAIWorker(line)
        handlers = {name: worker.handler(name) for name in METHODS}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(LOCALAI, handlers),))
        await server.start()
        try:
            yield worker
        finally:
            for task in worker.tasks:
                task.cancel()
            await server.stop(None)
