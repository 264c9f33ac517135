"""Requests of callers that speak LocalAI's protocol too: they are passed on, and so are the replies.

Fields that only the operator of a backend may set are removed: files of that machine, its processors and memory, its logging.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from router.answer import Answer, Route, complete_answer
from router.dialects.localai_grpc import request_mapping
from router.dialects.localai_grpc.backend import METHODS, Backend, BackendRequest
from router.dialects.localai_grpc.reply_parser import ReplyTokens
from router.errors import AnswerBroken, WorkerError, WorkerFailed, WorkerTimeout
from router.openai.sse import SILENT_BYTES
from router.openai.usage import Usage
from router.rpc import messages
from router.rpc.call import Replies
from router.rpc.failures import RpcFailed
from router.rpc.messages import parse_caller_message
from router.select.fitness import estimated_tokens
from router.translate.verbatim import LOCALAI, Verbatim
from router.workers import Worker

CALLS = frozenset({request_mapping.PREDICT, request_mapping.STREAM})

OPERATORS = (
    "Batch", "Debug", "DebugMode", "F16KV", "MLock", "MMap", "MainGPU", "NDraft", "PromptCacheAll", "PromptCachePath",
    "PromptCacheRO", "RopeFreqBase", "RopeFreqScale", "TensorSplit", "Threads",
)  # fmt: skip
"""Fields that the operator sets when the model is loaded."""


class TemplateFailed(Exception):
    """Nothing was answered because the backend's template failed: the node's own translation may succeed."""


def without_operator_fields(body: bytes) -> Any:
    """Return a caller's message without the operator's fields; raise `WorkerRejected` if it is invalid."""
    message = parse_caller_message(METHODS[request_mapping.PREDICT].request_class, body)
    for name in OPERATORS:
        message.ClearField(name)
    return message


class VerbatimTexts:
    """Client that asks for texts with the caller's own message."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @asynccontextmanager
    async def answer(self, original: Verbatim, errand: BackendRequest) -> AsyncIterator[Answer]:
        """Send the request; entering waits for the first reply and raises a `WorkerError` or `TemplateFailed` until then."""
        async with AsyncExitStack() as open_:
            yield await self._reliably(
                original, without_operator_fields(original.body), errand, open_
            )

    async def status(self, worker: Worker) -> Answer:
        """Return a backend's report of its status; raise `WorkerUnable`."""
        status = await self._backend.status(worker)
        answer = complete_answer(status.SerializeToString(), messages.CONTENT_TYPE)
        answer.verbatim = LOCALAI
        return answer

    async def _reliably(
        self, original: Verbatim, message: Any, errand: BackendRequest, open_: AsyncExitStack
    ) -> Answer:
        while True:
            try:
                return await self._begun(original, message, errand, open_)
            except RpcFailed as failed:
                if failed.code == "UNKNOWN" and message.UseTokenizerTemplate:
                    raise TemplateFailed from failed
                if not await errand.try_reload(failed):
                    raise failed.as_error(original.call) from failed

    async def _begun(
        self, original: Verbatim, message: Any, errand: BackendRequest, open_: AsyncExitStack
    ) -> Answer:
        if original.call == request_mapping.STREAM:
            answer = await open_.enter_async_context(self._stream(message, errand))
        else:
            reply = await errand.ask(METHODS[request_mapping.PREDICT], message)
            took = _ReplyUsage(message)
            took.record(reply)
            answer = complete_answer(reply.SerializeToString(), messages.CONTENT_TYPE)
            answer.usage = took.usage
        answer.verbatim = original.protocol
        return answer

    @asynccontextmanager
    async def _stream(self, message: Any, errand: BackendRequest) -> AsyncIterator[Answer]:
        took = _ReplyUsage(message)
        async with errand.stream(METHODS[request_mapping.STREAM], message) as replies:
            stream = _VerbatimStream(replies, took)
            begun, rest = await self._first(stream), stream.rest()
            answer = Answer(200, "text/event-stream", begun, rest, Route.LOCAL)
            try:
                yield answer
            finally:
                await rest.aclose()
                answer.broken = stream.broken

    async def _first(self, stream: "_VerbatimStream") -> bytes:
        """Return the first events within `first_byte_timeout`: replies may come for ever without any text."""
        seconds = self._backend.settings.first_byte_timeout
        try:
            async with self._backend.deadlines.within(seconds):
                return await stream.first()
        except TimeoutError as error:
            raise WorkerTimeout("first byte", seconds) from error


class _VerbatimStream:
    """The replies of a stream; `broken` is the error if it broke off after the first one."""

    def __init__(self, replies: Replies, took: "_ReplyUsage") -> None:
        self._replies = replies
        self._took = took
        self._has_ended = False
        self.broken: AnswerBroken | None = None

    async def first(self) -> bytes:
        """Return the replies up to the first one with text, or up to the end of an empty text.

        Raise `RpcFailed`, or `WorkerFailed` if there is no text within `SILENT_BYTES`.
        """
        events = b""
        while (reply := await self._next()) is not None:
            events += messages.message_event(reply.SerializeToString())
            if reply.message:
                return events
            if len(events) > SILENT_BYTES:
                raise WorkerFailed(f"the stream had no event in {SILENT_BYTES:,} bytes")
        return events + messages.usage_event(self._took.usage)

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """Yield the further replies as they arrive; raise `AnswerBroken`."""
        if self._has_ended:
            return
        try:
            while (reply := await self._next()) is not None:
                yield messages.message_event(reply.SerializeToString())
        except (RpcFailed, WorkerError) as error:
            failed = (
                error.as_error(request_mapping.STREAM) if isinstance(error, RpcFailed) else error
            )
            self.broken = AnswerBroken(str(failed))
            raise self.broken from error
        yield messages.usage_event(self._took.usage)

    async def _next(self) -> Any:
        reply = await self._replies.next()
        self._has_ended = reply is None
        if reply is not None:
            self._took.record(reply)
        return reply


class _ReplyUsage:
    """The usage of a text as far as its replies report it; the rest is estimated."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._tokens = ReplyTokens()
        self._prompt = self._bytes = 0

    def record(self, reply: Any) -> None:
        """Take in a reply."""
        self._tokens.record(reply.tokens)
        self._prompt = max(self._prompt, reply.prompt_tokens)
        self._bytes += len(reply.message)

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        if self._tokens.count and self._prompt:
            return Usage(self._prompt, self._tokens.count)
        texts = [self._message.Prompt, *(message.content for message in self._message.Messages)]
        read = self._prompt or estimated_tokens(sum(len(text.encode()) for text in texts))
        return Usage(read, self._tokens.count or estimated_tokens(self._bytes), estimated=True)
