"""Mapping of requests to RemoteLLM's messages, and parser for its answers.

A request for text has prompts and stop strings; everything else is fixed by the worker. An answer is texts, each with a JSON
object that may tell more. Only RemoteLLM has a request for a model's inner state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from router.canonical.text import TextRequest
from router.canonical.values import read_flag, read_integer, read_required_text, unread_fields
from router.errors import BadRequest, WorkerFailed, WorkerUnable
from router.openai.body import parse_json_object
from router.openai.result_writer import NextToken, TokenInternals
from router.openai.text_writer import Event, Reason
from router.openai.usage import Usage, read_usage
from router.requests import Kind, Request
from router.select.fitness import estimated_tokens
from router.translate.request import MappedRequest, RequestMapping, unheard
from router.translate.templates import Rendered, rendered
from router.translate.text import OutputPiece, in_one_piece
from router.workers import Template, Worker

MAX_TEXT_CHARACTERS = 1_000_000
"""The longest text, in characters, whose inner state can be requested."""

MAX_NUMBERS = 16_384
"""The most numbers of one embedding that can be requested."""

MAX_NEXT = 1_000
"""The most candidates for the next token that can be requested."""

READ = frozenset({"model", "models", "stream", "prompt", "fft_embeddings", "embedding_truncation", "top_k"})  # fmt: skip
"""Fields that are read here."""


@dataclass(frozen=True, slots=True)
class InternalsRequest:
    """A request for a model's inner state.

    `fft` asks for the high frequencies of the embeddings, `numbers` limits the numbers of each embedding, and `next` is the
    number of candidates for the next token.
    """

    text: str
    fft: bool
    numbers: int
    next: int
    others: Mapping[str, object]


def read_guts(request: Request) -> InternalsRequest:
    """Read a request for a model's inner state; raise `BadRequest`, which names the field."""
    fields = parse_json_object(request.body)
    fft = read_flag(fields, "fft_embeddings")
    numbers = read_integer(fields, "embedding_truncation", 0, MAX_NUMBERS)
    following = read_integer(fields, "top_k", 0, MAX_NEXT)
    return InternalsRequest(
        text=read_required_text(fields, "prompt", MAX_TEXT_CHARACTERS),
        fft=fft is not False,
        numbers=20 if numbers is None else numbers,
        next=5 if following is None else following,
        others=unread_fields(fields, READ),
    )


GENERATE = "Generate"


def mapped(request: TextRequest, worker: Worker) -> MappedRequest:
    """Translate a request for text: all prompts go into one batch."""
    prompts, stops = request.prompts, request.stop
    if request.kind is Kind.CHAT:
        # The protocol has only texts: most of its models are older than chat templates.
        template = "plain" if worker.template in ("", "worker") else worker.template
        chat = _rendered(template, request)
        prompts, stops = (chat.prompt,), (*stops, *chat.stops)
    body = {"prompts": prompts, "stop": tuple(stops)}
    return MappedRequest(GENERATE, (body,), unheard(request))


def stops_of(translated: MappedRequest) -> tuple[str, ...]:
    """Return the stop strings of a text: the caller's and those of a chat's template."""
    stops = translated.bodies[0]["stop"]
    return stops if isinstance(stops, tuple) else ()


def _rendered(template: Template, request: TextRequest) -> Rendered:
    try:
        return rendered(template, request.messages)
    except BadRequest as error:
        raise WorkerUnable(str(error), param=error.param or "messages") from error


MAPPING = RequestMapping(
    name="RemoteLLM", kinds=frozenset({Kind.CHAT, Kind.COMPLETION}), mapped=mapped
)


_REASONS: Mapping[object, Reason] = {"length": "length", "content_filter": "content_filter"}


def alternatives(reply: Any) -> list[OutputPiece]:
    """Return the texts for a prompt; the first one reports the usage of all, or else it is estimated."""
    if not reply.generations:
        raise WorkerFailed("the worker returned no text for a prompt")
    first, *more = (
        _said(generation.text, _info(generation.generation_info))
        for generation in reply.generations
    )
    return [first, *(replace(piece, usage=_share(first, piece)) for piece in more)]


def texts(request: TextRequest, pieces: Sequence[Sequence[OutputPiece]]) -> list[Event]:
    """Return the events of all choices, `n` for each prompt."""
    chosen = [piece for alternatives in pieces for piece in alternatives[: request.n]]
    return [event for n, piece in enumerate(chosen) for event in in_one_piece(request, n, piece)]


def _said(text: str, info: Mapping[str, object]) -> OutputPiece:
    reason = _REASONS.get(info.get("finish_reason"))
    return OutputPiece(text=text, reason=reason, usage=_usage(info), over=True)


def _share(first: OutputPiece, piece: OutputPiece) -> Usage:
    """Return the usage of a further text for a prompt, which was counted with the first."""
    if first.usage is not None:
        return Usage(0, 0)
    return Usage(0, estimated_tokens(len(piece.text.encode())), estimated=True)


def no_text_error() -> WorkerFailed:
    """Return the failure of a worker that returned no texts: it answers an unknown key like that."""
    return WorkerFailed("the worker returned no text: it may need another key")


def usage_of(message: Any, reply: Any) -> Usage:
    """Return the texts' usage, estimated if the worker does not report it; a prompt's first text reports it for all of them."""
    first = [
        generation.generations[0] for generation in reply.generations if generation.generations
    ]
    reported = [
        usage for generation in first if (usage := _usage(_info(generation.generation_info)))
    ]
    if first and len(reported) == len(first):
        return sum(reported[1:], start=reported[0])
    written = sum(
        len(text.text.encode())
        for generation in reply.generations
        for text in generation.generations
    )
    prompt_bytes = sum(len(prompt.encode()) for prompt in message.prompts)
    return Usage(estimated_tokens(prompt_bytes), estimated_tokens(written), estimated=True)


def tokens(reply: Any) -> list[TokenInternals]:
    """Return the tokens of a text, with each token's embeddings and hidden state."""
    return [
        TokenInternals(
            token.token,
            token.token_id,
            tuple(token.positional_embedding),
            tuple(token.token_embedding),
            tuple(token.hidden_state),
        )
        for token in reply.tokens
    ]


def next_tokens(reply: Any) -> list[NextToken]:
    """Return the candidates for the next token."""
    return [NextToken(token.token, token.id, token.logit) for token in reply.generations]


def _info(text: str) -> Mapping[str, object]:
    """Read the JSON object beside a text; anything else that the worker writes there is ignored."""
    try:
        info = orjson.loads(text or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return info if isinstance(info, dict) else {}


def _usage(info: Mapping[str, object]) -> Usage | None:
    for name in ("token_usage", "usage"):
        if usage := read_usage({"usage": info.get(name)}):
            return usage
    return read_usage({"usage": info})
