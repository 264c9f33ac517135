"""Llama Stack 0.0.1, the first version of its specification, for clients: chats over `/inference`, streamed or not.

The other paths of the specification are in `node/faces/services.py`.
"""

from collections.abc import Mapping, Sequence

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from node.faces import Serving
from node.faces.encoder import EVENT_STREAM, AnswerForm, TextEncoder
from node.faces.llama_stack import published
from node.faces.llama_stack.request_mapping import (
    body_of,
    dropped_of,
    names_of,
    of_the_specification,
)
from node.faces.openai import request_of
from node.faces.request_ids import ID
from node.faces.request_reader import read_fields
from node.faces.respond import answer
from router.openai.body import encode_json
from router.openai.logprobs import Token
from router.openai.text_parser import CallPart, TextEvent, TextFailure, arguments_object
from router.openai.text_writer import Delta, End, Reason
from router.openai.usage import Usage
from router.requests import SERVICES, Kind
from router.services.calls import CALLS
from router.translate.verbatim import LLAMA_STACK, Verbatim

ENDPOINTS: Mapping[str, str] = {
    "POST /inference": "a chat with any model of the mesh; events if `stream` or `Accept` requests them",
    **{
        f"{call.method} {call.path}".strip(): f"any service of type `{SERVICES[call.kinds[0]].cli_name}` in the mesh"
        for call in CALLS
        if call.protocol == LLAMA_STACK
    },
}
"""What becomes of each endpoint of Llama Stack."""

_REASONS: Mapping[Reason, str] = {"length": "max-length", "content_filter": "safety"}


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes of this face."""
    routes = [web.post("/inference", _asking(context))]
    routes += [web.post(path, _published(context, path)) for path in published.PATHS]
    return routes


def _asking(context: Serving) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            fields = await read_fields(http, context.settings)
            accepts = EVENT_STREAM in http.headers.get("accept", "")
            streams = fields.get("stream") is True or (accepts and "stream" not in fields)
            body = encode_json(body_of(fields, streams=streams))
            verbatim = None if streams else _verbatim(fields)
            request = request_of(context, http, Kind.CHAT, body, verbatim=verbatim)
            limit = context.settings.router.max_event_bytes
            encoder = StackEncoder(http[ID], request.model, streams=streams, max_event_bytes=limit)
            return AnswerForm(request, encoder, dropped_of(fields), names=names_of(fields))

        return await answer(context, http, Kind.CHAT, ask)

    return handle


def _published(context: Serving, path: str) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        async def ask() -> AnswerForm:
            fields = await read_fields(http, context.settings)
            body = published.body_of(fields)
            request = request_of(context, http, Kind.CHAT, encode_json(body))
            limit = context.settings.router.max_event_bytes
            encoder = published.PublishedEncoder(
                streams=request.stream, plain=path == published.PATHS[0], max_event_bytes=limit
            )
            return AnswerForm(request, encoder, published.dropped_of(fields))

        return await answer(context, http, Kind.CHAT, ask)

    return handle


def _verbatim(fields: Mapping[str, object]) -> Verbatim | None:
    """Return a request in the caller's own form, `None` unless every worker of the protocol understands it."""
    if not of_the_specification(fields):
        return None
    body = {name: value for name, value in fields.items() if name != "stream"}
    return Verbatim(LLAMA_STACK, "inference", encode_json(body))


class StackEncoder(TextEncoder):
    """Encoder of an answer as messages of a model: candidates, or pieces of them."""

    def __init__(self, id_: str, model: str, *, streams: bool, max_event_bytes: int) -> None:
        super().__init__(Kind.CHAT, streams=streams, max_event_bytes=max_event_bytes)
        self._id = id_
        self._model = model
        self._candidates: dict[int, _Candidate] = {}
        self._usage: Usage | None = None

    def opening(self) -> bytes:
        """Return the event with which the model begins."""
        return _event({"id": f"{self._id}-0", "is_header_complete": True, "is_complete": False})

    def answer(self, events: Sequence[TextEvent]) -> object:
        """Return all candidates."""
        self._take(events)
        candidates = [c.said(f"{self._id}-{n}") for n, c in sorted(self._candidates.items())]
        answer_fields = {"id": self._id, "candidates": candidates, "model_called": self._model}
        return (
            answer_fields
            if self._usage is None
            else {**answer_fields, "usage": _usage(self._usage)}
        )

    def events(self, events: Sequence[TextEvent]) -> bytes:
        """Return pieces of text; everything else is in the last piece of its candidate."""
        self._take(events, keep=False)
        return b"".join(
            _event(
                {"id": f"{self._id}-{e.choice}", "text": e.text, "is_complete": False}
                | _told(e.tokens)
            )
            for e in events
            if isinstance(e, Delta)
        )

    def closing(self) -> bytes:
        """Return the last piece of each candidate; the last of these has the usage."""
        ends = sorted((self._candidates or {0: _Candidate()}).items())
        candidates = [candidate.said(f"{self._id}-{choice}") for choice, candidate in ends]
        if self._usage is not None:
            candidates[-1]["usage"] = _usage(self._usage)
        return b"".join(map(_event, candidates))

    def failure(self, failure: TextFailure) -> bytes:
        """Return the event for an answer that broke off."""
        error = {"message": failure.message, "type": failure.type, "code": failure.code}
        return _event({"error": error})

    def _take(self, events: Sequence[TextEvent], *, keep: bool = True) -> None:
        for event in events:
            if isinstance(event, Usage):
                # The protocol cannot mark an estimate.
                self._usage = None if event.estimated else event
                continue
            if isinstance(event, TextFailure):
                continue
            candidate = self._candidates.setdefault(event.choice, _Candidate())
            match event:
                case Delta(text) if keep:
                    candidate.texts.append(text)
                    candidate.tokens += event.tokens
                case CallPart():
                    candidate.call(event)
                case End(reason):
                    candidate.reason = reason


class _Candidate:
    """One choice of the answer, as far as it has arrived."""

    __slots__ = ("_arguments", "_name", "reason", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[Token] = []
        self.reason: Reason = "stop"
        self._name = ""
        self._arguments: list[str] = []

    def call(self, part: CallPart) -> None:
        """Take in a piece of a call of a tool; a message has room for the first call only."""
        if part.index == 0:
            self._name = self._name or part.name
            self._arguments.append(part.arguments)

    def said(self, id_: str) -> dict[str, object]:
        """Return it as a complete message; if it was streamed, as its last piece."""
        reason = _REASONS.get(self.reason, "stop")
        fields: dict[str, object] = {"id": id_, "text": "".join(self.texts), "is_complete": True}
        fields |= {"eot": reason != "max-length", "finish_reason": reason, **_told(self.tokens)}
        if self._name:
            fields["tool_call"] = {"name": self._name, "arguments": self._read_arguments()}
        return fields

    def _read_arguments(self) -> list[object]:
        text = "".join(self._arguments)
        arguments = arguments_object(text)
        return [{"arguments": text} if arguments is None else arguments]


def _told(tokens: Sequence[Token]) -> dict[str, object]:
    """Return the ids and log probabilities of a text's tokens; each only where it is known of all tokens."""
    columns: dict[str, list[object]] = {
        "tokens": [token.id for token in tokens],
        "log_probs": [token.logprob for token in tokens],
    }
    return {name: column for name, column in columns.items() if column and None not in column}


def _usage(usage: Usage) -> dict[str, int]:
    total = usage.prompt + usage.completion
    return {
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "total_tokens": total,
    }


def _event(fields: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"
