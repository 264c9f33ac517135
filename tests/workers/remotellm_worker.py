"""Stub RemoteLLM server without a model, written from its `.proto` file: real gRPC on loopback, with faults on request.

It answers each prompt with `words`, ignores stop strings, and answers an unknown key as the original does: with an empty
message and status OK. `received` and `hung_up` record what reached it; its `wire` can be cut.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from router.rpc.messages import REMOTELLM, methods_of
from tests.workers.openai_worker import WORDS
from tests.workers.wire import Wire, wire

METHODS = methods_of(REMOTELLM)
_CODES = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to show. Delays are seconds, `status` is an HTTP status; `info` is sent with each text.

    With `alone` it answers nothing else while it writes, like the original.
    """

    delay_headers: float = 0.0
    delay_first: float = 0.0
    die_before_headers: bool = False
    status: int = 200
    refusal: bytes = b"no"
    retry_after: str | None = None
    garbage: bool = False
    empty: bool = False
    hang: bool = False
    missing: int = 0
    alone: bool = False
    alternatives: int = 2
    info: bytes = b'{"token_usage":{"prompt_tokens":5,"completion_tokens":6}}'


@dataclass(frozen=True, slots=True)
class Received:
    """One call as it arrived."""

    path: str
    headers: Mapping[str, str]
    asked: Any


@dataclass(slots=True)
class RemoteLlmWorker:
    """The server, while `running` is open. If `key` is set, requests need it."""

    wire: Wire
    faults: Faults = field(default_factory=Faults)
    words: tuple[str, ...] = WORDS
    key: str = ""
    received: list[Received] = field(default_factory=list)
    probed: list[Received] = field(default_factory=list)
    hung_up: int = 0

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"grpc://127.0.0.1:{self.wire.port}"

    def fail(self, **faults: object) -> None:
        """Replace the faults."""
        self.faults = replace(Faults(), **faults)  # type: ignore[arg-type]

    async def generate(self, request: Any, context: Any) -> Any:
        """Answer each prompt with all words."""
        await self._begin(context)
        if self.faults.garbage:
            return b"\xff" * 40
        if not self._knows(request) or self.faults.empty:
            return METHODS["Generate"].reply_class()
        info = self.faults.info.decode()
        alternatives = [{"text": "or else"}] * (self.faults.alternatives - 1)
        texts = [{"text": "".join(self.words), "generation_info": info}, *alternatives]
        count = len(request.prompts) - self.faults.missing
        return METHODS["Generate"].reply_class(generations=[{"generations": texts}] * count)

    async def get_llm_type(self, request: Any, context: Any) -> Any:
        """Return the model's name, or fail as the original does."""
        if self.faults.alone and self.received:
            await asyncio.Event().wait()
        if not self._knows(request):
            await context.abort(grpc.StatusCode.UNKNOWN, "Internal Server Error")
        return METHODS["GetLlmType"].reply_class(llm_type="gpt-neo")

    async def guts(self, request: Any, context: Any) -> Any:
        """Return the inner state, with each word as a token."""
        await self._begin(context)
        reply = METHODS["GenerationalGuts"].reply_class
        if not self._knows(request):
            return reply()
        numbers = [0.5] * request.embedding_trunkation
        stack = [
            {
                "token": repr(word),
                "token_id": index,
                "positional_embedding": numbers,
                "token_embedding": numbers,
                "hidden_state": numbers,
            }
            for index, word in enumerate(request.prompt.split())
        ]
        following = [
            {"token": "'x'", "id": index, "logit": 0.25} for index in range(request.top_k_logits)
        ]
        return reply(tokens=stack, generations=following)

    def _knows(self, request: Any) -> bool:
        return not self.key or request.api_key == self.key

    async def _begin(self, context: Any) -> None:
        faults = self.faults
        await asyncio.sleep(faults.delay_headers + faults.delay_first)
        if faults.die_before_headers:
            self.wire.cut()
        if faults.status != 200:
            code = _CODES.get(faults.status, "INVALID_ARGUMENT")
            if faults.retry_after:
                pushback = str(int(faults.retry_after) * 1000)
                context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
            await context.abort(grpc.StatusCode[code], faults.refusal.decode())
        if faults.hang:
            await asyncio.Event().wait()

    def handler(self, name: str) -> Any:
        """Return a handler of the named RPC that records its calls and the callers that left."""
        method = METHODS[name]
        answers = {"Generate": self.generate, "GetLlmType": self.get_llm_type}
        answer = answers.get(name, self.guts)

        async def unary(request: Any, context: Any) -> Any:
            received = Received(method.path, dict(context.invocation_metadata()), request)
            (self.probed if name == "GetLlmType" else self.received).append(received)
            try:
                return await answer(request, context)
            except asyncio.CancelledError:
                self.hung_up += 1
                raise

        return grpc.unary_unary_rpc_method_handler(
            unary,
            request_deserializer=method.request_class.FromString,
            response_serializer=lambda told: (
                told if isinstance(told, bytes) else told.SerializeToString()
            ),
        )


@asynccontextmanager
async def running() -> AsyncIterator[RemoteLlmWorker]:
    """Run a server on a free port of loopback."""
    server = grpc.aio.server()
    async with wire(server.add_insecure_port("127.0.0.1:0")) as line:
        worker = RemoteLlmWorker(line)
        handlers = {name: worker.handler(name) for name in METHODS}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(REMOTELLM, handlers),)
        )
        await server.start()
        try:
            yield worker
        finally:
            await server.stop(None)
