"""Completions by workers that support only chats, as the interface standard's do: each prompt becomes a user's message.

Such a worker is known by its answer to the first completion, that it has no such path, or by an address that is one endpoint
with a path of its own.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict

from yarl import URL

from router.answer import Answer
from router.canonical.text import SHAPING, TextRequest
from router.canonical.values import dropped_names
from router.dialects.openai_http.endpoints import endpoint
from router.dialects.openai_http.json_answer import parse_success
from router.errors import WorkerFailed, WorkerUnable
from router.http.translated_stream import NoSuchPath
from router.http.translator import ProtocolMapping, Translator
from router.openai import text_parser
from router.openai.logprobs import Token
from router.openai.text_parser import TextEvent, TextFailure
from router.openai.text_writer import Delta, End, Event, Reason
from router.openai.usage import OptionSupport, Usage
from router.peers.links import Links
from router.requests import Kind, Request
from router.select.candidates import Candidate
from router.translate.request import MappedRequest
from router.translate.text import OutputPiece, in_one_piece
from router.workers import Worker

COMPLETION_TOKENS = 16
"""Token limit of a completion without one: OpenAI's own default."""

_SUFFIX = "suffix"
_UNSAID = frozenset({"best_of", "logprobs"})


class NoCompletions(WorkerUnable):
    """The worker has no path for completions."""

    def __init__(self) -> None:
        super().__init__("the worker does not serve /v1/completions", param="model")


class CompletionsByChat(Translator):
    """Client that asks for completions as chats, where workers have nothing else."""

    def __init__(self, links: Links) -> None:
        super().__init__(links, MAPPING)
        self._complete = OptionSupport()

    def url(self, worker: Worker, path: str) -> URL:  # noqa: ARG002
        """Return the worker's endpoint for chats."""
        return endpoint(worker.api, Kind.CHAT)

    @asynccontextmanager
    async def answer_or_chat(
        self,
        plain: AbstractAsyncContextManager[Answer],
        request: Request,
        candidate: Candidate,
        worker: Worker,
    ) -> AsyncIterator[Answer]:
        """Enter the answer to a completion as it was asked; to a chat, if the worker has no completions."""
        alone = endpoint(worker.api, Kind.COMPLETION) == endpoint(worker.api, Kind.CHAT)
        async with AsyncExitStack() as open_:
            if not alone and self._complete.should_send(worker.api, time.monotonic()):
                try:
                    answer = await open_.enter_async_context(plain)
                except NoCompletions:
                    self._complete.record_refused(worker.api, time.monotonic())
                else:
                    yield answer
                    return
            try:
                answer = await open_.enter_async_context(self.answer(request, candidate))
            except NoSuchPath as error:
                # The worker serves its model through other endpoints than these two.
                raise NoCompletions from error
            yield answer


def _mapped(request: TextRequest, worker: Worker) -> MappedRequest:
    """Translate each prompt to a chat; raise `WorkerUnable` if that would change the answer."""
    if request.stream and request.choices > 1:
        many = "n" if request.n > 1 else "prompt"
        raise WorkerUnable(
            "a worker that supports only chats streams one text for each request", param=many
        )
    sampling = {
        name: value for name, value in asdict(request.sampling).items() if value is not None
    }
    shared: dict[str, object] = {"model": worker.own_model, "max_tokens": COMPLETION_TOKENS}
    shared |= sampling | {"stream": request.stream}
    if request.stop:
        shared["stop"] = list(request.stop)
    if request.logprobs is not None:
        shared |= {"logprobs": True, "top_logprobs": request.logprobs}
    if request.schema is not None:
        schema = {"name": "answer", "schema": request.schema}
        json_schema: dict[str, object] = {"type": "json_schema", "json_schema": schema}
        shared["response_format"] = json_schema if request.schema else {"type": "json_object"}
    # The worker ignores any other field that it does not know, as it would in a completion.
    shared |= {name: value for name, value in request.others.items() if name not in _UNSAID}
    bodies = tuple(
        shared | _turn(request.prompts[choice // request.n]) | _seeded(request, choice)
        for choice in range(request.choices)
    )
    lost = tuple(name for name in dropped_names(request) if name == "best_of")
    return MappedRequest(Kind.CHAT.value, bodies, lost, request.stream)


def _turn(prompt: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": prompt}]}


def _seeded(request: TextRequest, choice: int) -> dict[str, object]:
    """Return the seed of one choice: with the same seed all choices would be the same text."""
    seed = request.sampling.seed
    return {} if seed is None else {"seed": seed + choice}


def _part(_: TextRequest, data: bytes) -> OutputPiece:
    if data == b"[DONE]":
        return OutputPiece(over=True)
    return _said(text_parser.parse_chunk(parse_success(data)))


def _whole(request: TextRequest, choice: int, body: bytes, _: Callable[[str], str]) -> list[Event]:
    parse_success(body)
    return in_one_piece(request, choice, _said(text_parser.parse_answer(Kind.CHAT, body)))


def _said(events: Iterable[TextEvent]) -> OutputPiece:
    """Combine the events of one choice; raise `WorkerFailed` for a failure."""
    text: list[str] = []
    tokens: list[Token] = []
    ended: Reason | None = None
    usage: Usage | None = None
    for event in events:
        match event:
            case Delta(piece, 0):
                text.append(piece)
                tokens += event.tokens
            case End(reason, 0):
                ended = reason
            case Usage():
                usage = event
            case TextFailure(message):
                raise WorkerFailed(message)
    return OutputPiece("".join(text), ended, usage, tokens=tuple(tokens))


MAPPING = ProtocolMapping(
    name="chat",
    kinds=frozenset({Kind.COMPLETION}),
    mapped=_mapped,
    schemas=True,
    shaping=SHAPING - {_SUFFIX},
    paths=(Kind.CHAT.value,),
    part=_part,
    whole=_whole,
)
