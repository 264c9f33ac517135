"""Texts from a LocalAI backend, in OpenAI's form.

Where a backend reports no token counts, it is asked to tokenize the text, if it can.
"""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from registry.bounded import put_newest
from router.answer import Answer, Route
from router.canonical.text import TextRequest
from router.dialects.localai_grpc import reply_parser, request_mapping
from router.dialects.localai_grpc.backend import METHODS, Backend, BackendRequest
from router.dialects.localai_grpc.reply_parser import COUNTABLE
from router.errors import AnswerBroken, WorkerError, WorkerTimeout
from router.http.translator import complete_text_answer, text_form
from router.openai.text_writer import DONE, Event, TextForm
from router.openai.usage import Usage
from router.requests import Kind, Request
from router.rpc.call import Channels, Replies
from router.rpc.failures import RpcFailed
from router.translate.request import MappedRequest, RequestMapping
from router.translate.text import ChoiceReader, estimate_prompt_tokens, in_one_piece
from router.workers import Worker

AGAIN = 600.0
"""Seconds after which a backend that could not count tokens is asked once more."""


_TOKENIZE = METHODS["TokenizeString"]


class TokenCounter:
    """Client that has backends count tokens, except those that were found unable to."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._failed_at: dict[str, float] = {}

    async def count_usage(
        self, errand: BackendRequest, request: TextRequest, choice: int, text: str
    ) -> Usage | None:
        """Return the usage of one choice, `None` if it cannot be counted. A chat's prompt, made by a template, is estimated."""
        written = await self._tokens(errand, text)
        if written is None:
            return None
        if request.kind is not Kind.CHAT:
            read = await self._tokens(errand, request.prompts[choice // request.n])
            if read is not None:
                return Usage(read, written)
        return Usage(estimate_prompt_tokens(request, choice), written, estimated=True)

    async def _tokens(self, errand: BackendRequest, text: str) -> int | None:
        api, now = errand.worker.api, time.monotonic()
        if now - self._failed_at.get(api, -AGAIN) < AGAIN or len(text) > COUNTABLE:
            return None
        if not text:
            return 0
        try:
            message = _TOKENIZE.request_class(Prompt=text)
            reply = await self._channels.send_probe(api, _TOKENIZE, message, errand.metadata)
        except RpcFailed:
            reply = None
        count = max(reply.length, len(reply.tokens)) if reply is not None else 0
        if count > 0:
            return count
        put_newest(self._failed_at, api, now, limit=MAX_WORKERS)
        return None


MAPPING = RequestMapping(
    name="LocalAI",
    kinds=frozenset({Kind.CHAT, Kind.COMPLETION}),
    mapped=request_mapping.mapped,
    schemas=True,
    shaping=frozenset({"grammar"}),
)

TEMPLATE_AGAIN = 600.0
"""Seconds after which a backend whose own template failed is asked to use it once more."""

MAX_WORKERS = 4_096
"""Backends that are remembered as failing; beyond that the oldest is forgotten, which costs one failed call."""

_T = TypeVar("_T")
Body = Mapping[str, object]
Ask = Callable[[TextRequest, Body], Awaitable[_T]]
"""Function that makes one call. It raises `RpcFailed` for a failure that another way of asking may avoid."""


@dataclass(frozen=True, slots=True)
class _PendingText:
    """One request in progress."""

    errand: BackendRequest
    text_request: TextRequest
    mapped: MappedRequest
    form: TextForm


class Texts:
    """Client that asks for texts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._settings = backend.settings
        self.counter = TokenCounter(backend.channels)
        self._failing: dict[str, float] = {}

    @asynccontextmanager
    async def answer(
        self, request: Request, model: str, errand: BackendRequest
    ) -> AsyncIterator[Answer]:
        """Send the request; entering waits for the first byte and raises a `WorkerError` until then."""
        text_request, mapped = MAPPING.read(request, errand.worker)
        pending = _PendingText(errand, text_request, mapped, text_form(request, model))
        async with self._stream(pending) if mapped.streamed else self._whole(pending) as answer:
            answer.headers = mapped.headers
            answer.hides_usage = answer.streamed and not text_request.include_usage
            yield answer

    @asynccontextmanager
    async def _whole(self, pending: _PendingText) -> AsyncIterator[Answer]:
        ends = time.monotonic() + self._settings.total_timeout
        events: list[Event] = []
        for number in range(len(pending.mapped.bodies)):
            if time.monotonic() > ends:
                raise WorkerTimeout("answer", self._settings.total_timeout)

            async def ask(request: TextRequest, body: Body, number: int = number) -> list[Event]:
                errand = pending.errand
                reply = await errand.ask(METHODS[request_mapping.PREDICT], _message(body))
                piece = reply_parser.parse_reply(request, number, body, reply)
                if piece.usage is None:
                    usage = await self.counter.count_usage(errand, request, number, piece.text)
                    if usage is not None:
                        ended = reply_parser.reason(body["Tokens"], usage.completion)
                        piece = replace(piece, usage=usage, reason=ended)
                return in_one_piece(request, number, piece)

            events += await self.ask_with_retries(pending, number, ask)
        said = [event for event in events if not isinstance(event, Usage)]
        yield complete_text_answer(pending.text_request, pending.form, [*said, _sum(events)])

    @asynccontextmanager
    async def _stream(self, pending: _PendingText) -> AsyncIterator[Answer]:
        stream = _ChoiceStream(self, pending)
        try:
            first = pending.form.opening() + await self._read_first_events(stream)
            rest = stream.rest()
            answer = Answer(200, "text/event-stream", first, rest, Route.LOCAL)
            try:
                yield answer
            finally:
                await rest.aclose()
                answer.broken = stream.broken
        finally:
            await stream.close()

    async def _read_first_events(self, stream: "_ChoiceStream") -> bytes:
        # Replies may come for ever without any text.
        seconds = self._settings.first_byte_timeout
        try:
            async with self._backend.deadlines.within(seconds):
                return await stream.begin()
        except TimeoutError as error:
            raise WorkerTimeout("first byte", seconds) from error

    async def ask_with_retries(self, pending: _PendingText, number: int, ask: Ask[_T]) -> _T:
        """Ask for one choice: with the node's template if the worker's failed, and again if its model was reloaded."""
        errand = pending.errand
        sent = pending.text_request, pending.mapped.bodies[number]
        uses_own = request_mapping.uses_own_template(sent[1]) and self.template_works(errand.worker)
        if request_mapping.uses_own_template(sent[1]) and not uses_own:
            sent = request_mapping.render_chat(*sent, errand.worker.template)
        request, body = sent
        while True:
            try:
                result = await ask(request, body)
            except RpcFailed as failed:
                if failed.code == "UNKNOWN" and request_mapping.uses_own_template(body):
                    request, body = request_mapping.render_chat(
                        request, body, errand.worker.template
                    )
                elif await errand.try_reload(failed):
                    request, body = sent
                else:
                    raise failed.as_error(pending.mapped.path) from failed
            else:
                if uses_own and not request_mapping.uses_own_template(body):
                    self._template_failed(errand.worker)
                return result

    def template_works(self, worker: Worker) -> bool:
        """Return whether a backend is to render chats by its own template."""
        if worker.template not in ("", "worker"):
            return False
        since = self._failing.get(worker.api)
        return since is None or time.monotonic() - since >= TEMPLATE_AGAIN

    def _template_failed(self, worker: Worker) -> None:
        put_newest(self._failing, worker.api, time.monotonic(), limit=MAX_WORKERS)


class _ChoiceStream:
    """A stream of one choice after the other; `broken` is the error if it broke off."""

    def __init__(
        self,
        texts: Texts,
        pending: _PendingText,
    ) -> None:
        self._texts = texts
        self._pending = pending
        self._number = 0
        self._open = AsyncExitStack()
        self._usage = Usage(0, 0)
        self._reader: ChoiceReader[Any]
        self._reply_texts: reply_parser.ReplyTexts
        self._replies: Replies
        self.broken: AnswerBroken | None = None

    async def begin(self) -> bytes:
        """Begin the next choice, and return its first events; raise a `WorkerError`."""
        return await self._texts.ask_with_retries(self._pending, self._number, self._ask)

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """Yield what follows the first events; raise `AnswerBroken`."""
        try:
            while True:
                while not self._reader.ended:
                    if written := await self._next():
                        yield written
                await self._open.aclose()
                self._number += 1
                if self._number == len(self._pending.mapped.bodies):
                    break
                yield await self.begin()
        except (RpcFailed, WorkerError) as error:
            failed = (
                error.as_error(request_mapping.STREAM) if isinstance(error, RpcFailed) else error
            )
            self.broken = AnswerBroken(str(failed))
            raise self.broken from error
        yield self._pending.form.event(self._usage) + DONE

    async def close(self) -> None:
        """Cancel the current choice's call at the worker."""
        await self._open.aclose()

    async def _ask(self, request: TextRequest, body: Body) -> bytes:
        """Make one call, and return its first events; a failure until then may be mended."""
        await self._open.aclose()
        self._open = AsyncExitStack()
        stream = self._pending.errand.stream(METHODS[request_mapping.STREAM], _message(body))
        self._replies = await self._open.enter_async_context(stream)
        self._reply_texts = reply_parser.ReplyTexts(request, self._number, body)
        self._reader = ChoiceReader(request, self._reply_texts.read, self._number)
        written = b""
        while not written and not self._reader.ended:
            written = await self._next()
        return written

    async def _next(self) -> bytes:
        reply, texts = await self._replies.next(), self._reply_texts
        if reply is None:
            texts.counted_later = await self._count()
        events = self._reader.feed(reply)
        usage = _sum(events)
        if self._reader.ended and reply is not None:
            # The text was ended at a stop string, found by the node.
            usage = await self._count() or usage
        self._usage += usage
        form = self._pending.form
        return b"".join(form.event(event) for event in events if not isinstance(event, Usage))

    async def _count(self) -> Usage | None:
        """Have the text's tokens counted if the replies report none."""
        if self._reply_texts.has_counts:
            return None
        request, errand = self._pending.text_request, self._pending.errand
        return await self._texts.counter.count_usage(
            errand, request, self._number, self._reply_texts.text
        )


def _sum(events: Iterable[Event]) -> Usage:
    return sum((event for event in events if isinstance(event, Usage)), Usage(0, 0))


def _message(body: Body) -> Any:
    # Without a seed it would be 0, and all answers would be the same.
    return METHODS[request_mapping.PREDICT].request_class(
        **{"Seed": secrets.randbelow(request_mapping.MOST_SEED), **body}
    )
