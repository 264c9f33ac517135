"""Text Generation Inference, for its clients: one model under `/tgi/PROJECT/MODEL`, the default model at the root.

These clients name no models, so the path selects the model, and a `model` in the body is ignored. A model's name may contain
slashes: the rest of the path is the longest of TGI's paths with which it ends.
"""

from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import time

from aiohttp import web
from aiohttp.typedefs import Handler

from node import __version__
from node.auth.principal import ANYBODY, PRINCIPAL
from node.faces import Serving
from node.faces.encoder import AnswerForm
from node.faces.errors import (
    KNOWN,
    Refusal,
    UnknownPath,
    WrongMethod,
    WrongParameter,
    refusal,
)
from node.faces.model_call import model_answer
from node.faces.openai import request_of
from node.faces.request_ids import ID
from node.faces.request_reader import json_answer, read_fields
from node.faces.respond import answer
from node.faces.tgi import chats, encoder, request_mapping
from node.faces.tgi.chats import Forms
from node.faces.tgi.encoder import Text
from node.faces.tgi.request_mapping import MAX_BEST_OF, MAX_STOPS
from registry.records import Load, Service
from router.errors import BadRequest, UnknownModel, WorkerFailed, WorkerUnable
from router.openai.body import encode_json
from router.requests import Kind, Request
from router.select.candidates import Candidate, Reason
from router.translate.verbatim import TGI, Verbatim
from router.worker_description import WorkerDescription

PREFIX = "/tgi"

ENDPOINTS: Mapping[str, str] = {
    "POST /": "a completion; a list of one text, or a stream where `stream` is true",
    "POST /generate": "a completion",
    "POST /generate_stream": "a streamed completion",
    "POST /v1/chat/completions": "a chat as at the node's own `/v1`, with the fields that TGI's clients require",
    "POST /v1/completions": "a completion as at the node's own `/v1`, with the same fields",
    "POST /tokenize": "the worker's tokens with text and position; 404 if it does not report texts",
    "GET /health": "200 while a node serves the model, else 503, also `/ping`; without a default model the node's health",
    "GET /info": "the limits of a local worker; for another node's worker those of its record, 0 for none",
    "GET /metrics": "`tgi_queue_size` and `tgi_batch_current_size` of all replicas of the model",
}
"""What becomes of each endpoint of TGI."""

_V1: Mapping[str, Kind] = {f"v1/{kind.value}": kind for kind in (Kind.CHAT, Kind.COMPLETION)}
_HEALTH = ("health", "ping")
_GET = (*_HEALTH, "info", "metrics")
_POST = ("generate", "generate_stream", "tokenize", *_V1)


def asking_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for clients. `/metrics` and `/v1` at the root are the node's own."""
    return [
        web.post(PREFIX + "/{tail:.+}", partial(_under_prefix, context, "POST")),
        web.get(PREFIX + "/{tail:.+}", partial(_under_prefix, context, "GET")),
        *(web.post(f"/{path}", _at_root(context, path)) for path in ("", *_POST[:3])),
        *(web.get(f"/{path}", _at_root(context, path)) for path in _GET[:3]),
    ]


def in_own_form(refused: Refusal, _: str) -> Refusal:
    """Return a refusal in TGI's form."""
    return encoder.refuse(refused)


def bridging_routes(context: Serving) -> list[web.RouteDef]:
    """Return the routes for a listener with this face alone: all of TGI's paths at the root."""
    return [
        *(web.post(f"/{path}", _at_root(context, path)) for path in ("", *_POST)),
        *(web.get(f"/{path}", _at_root(context, path)) for path in _GET),
    ]


@dataclass(frozen=True, slots=True)
class _TgiCall:
    """One HTTP request, and the model that it is for."""

    context: Serving
    http: web.Request
    model: str

    async def fields(self) -> Mapping[str, object]:
        """Return the body as a JSON object; raise what `read_fields` raises, or `WrongParameter`."""
        if not self.model:
            raise WrongParameter("this node has no default model: use /tgi/PROJECT/MODEL")
        return await read_fields(self.http, self.context.settings)

    def post(self, path: str) -> Awaitable[web.StreamResponse]:
        """Answer a POST request at one of TGI's paths."""
        match path:
            case "":
                return self.generate(streams=None, listed=True)
            case "generate":
                return self.generate(streams=False)
            case "generate_stream":
                return self.generate(streams=True)
            case "tokenize":
                return self.tokenize()
        return self.complete(_V1[path])

    def generate(
        self, *, streams: bool | None, listed: bool = False
    ) -> Awaitable[web.StreamResponse]:
        """Answer with a text; where `streams` is `None`, the body decides."""

        async def ask() -> AnswerForm:
            fields = await self.fields()
            streamed = _streams(fields) if streams is None else streams
            tgi_request = request_mapping.read(fields)
            body: dict[str, object] = {"model": self.model, **tgi_request.fields}
            if streamed:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            call = "generate_stream" if streamed else "generate"
            # In TGI's protocol the path, not `stream`, decides whether the answer streams.
            own_words = encode_json({name: it for name, it in fields.items() if name != "stream"})
            verbatim = Verbatim(TGI, call, own_words, tgi_request.needs)
            request = request_of(
                self.context, self.http, Kind.COMPLETION, encode_json(body), verbatim=verbatim
            )
            limit = self.context.settings.router.max_event_bytes
            encoder = Text(tgi_request, streams=streamed, listed=listed, max_event_bytes=limit)
            return AnswerForm(request, encoder, framed=_listed if listed else None)

        return answer(self.context, self.http, Kind.COMPLETION, ask, refuse=encoder.refuse)

    def complete(self, kind: Kind) -> Awaitable[web.StreamResponse]:
        """Answer a request at TGI's own `/v1`."""

        async def ask() -> AnswerForm:
            fields = await self.fields()
            chats.check(fields, kind)
            body = chats.fields_of(fields, self.model)
            own_words = chats.own_words(fields) if kind is Kind.CHAT else None
            request = request_of(
                self.context, self.http, kind, encode_json(body), verbatim=own_words
            )
            limit, created = self.context.settings.router.max_event_bytes, int(time())
            forms = Forms(kind, body, self.http[ID], created, chats.spelt(fields))
            encoder = chats.Completed(forms, max_event_bytes=limit)
            return AnswerForm(request, encoder, chats.dropped(fields))

        return answer(self.context, self.http, kind, ask, refuse=encoder.refuse)

    async def tokenize(self) -> web.StreamResponse:
        """Answer with the tokens of a text."""
        try:
            fields = await self.fields()
            inputs = request_mapping.inputs_of(fields)
            request_body = {"model": self.model, **encoder.fields_of(fields, inputs)}
            try:
                body = await self._tokens({**request_body, **encoder.PIECES})
            except WorkerUnable:
                body = await self._tokens(request_body)
            return json_answer(encoder.tokens(body, inputs))
        except WorkerUnable as error:
            return encoder.said(refusal(error), encoder.NO_TOKENIZER).response()
        except KNOWN as error:
            return encoder.refuse(refusal(error)).response()

    async def _tokens(self, fields: Mapping[str, object]) -> bytes:
        request = request_of(self.context, self.http, Kind.TOKENIZE, encode_json(fields))
        async with model_answer(self.context, self.http.get(PRINCIPAL, ANYBODY), request) as answer:
            return await answer.body()

    async def tell(self, path: str) -> web.Response:
        """Answer a GET request about the model; without a model, the health is that of this node."""
        if not self.model and path in _HEALTH:
            return web.Response()
        self.http.get(PRINCIPAL, ANYBODY).check_models(self.model)
        served_by = served(self.context, self.http[ID], self.model)
        match path:
            case "health" | "ping":
                return web.Response() if served_by.now else _unhealthy(self.model)
            case "metrics":
                body = metrics(self.context, served_by)
                return web.Response(body=body, headers={"content-type": CONTENT_TYPE})
        try:
            description = await told(self.context, served_by)
            return json_answer(info(self.context, self.model, served_by, description))
        except KNOWN as error:
            return encoder.refuse(refusal(error)).response()


async def _under_prefix(context: Serving, method: str, http: web.Request) -> web.StreamResponse:
    model, path = _meant(http.match_info["tail"])
    if method == "POST":
        if path in _GET:
            raise WrongMethod(http.method, ("GET", "HEAD"))
        return await _TgiCall(context, http, model).post(path)
    if path not in _GET:
        raise WrongMethod(http.method, ("POST",))
    return await _TgiCall(context, http, model).tell(path)


def _at_root(context: Serving, path: str) -> Handler:
    async def handle(http: web.Request) -> web.StreamResponse:
        call = _TgiCall(context, http, context.settings.faces.default_model)
        return await (call.tell(path) if path in _GET else call.post(path))

    return handle


def _meant(tail: str) -> tuple[str, str]:
    """Return the model, as `PROJECT/MODEL`, and TGI's path; raise `UnknownPath`."""
    model, path = tail.rstrip("/"), ""
    for known_path in sorted((*_GET, *_POST), key=len, reverse=True):
        if model.endswith(f"/{known_path}"):
            model, path = model.removesuffix(f"/{known_path}"), known_path
            break
    project, _, name = model.partition("/")
    if not project or not name:
        raise UnknownPath(f"use {PREFIX}/PROJECT/MODEL")
    return model, path


def _listed(answer: bytes) -> bytes:
    return b"[" + answer + b"]"


def _streams(fields: Mapping[str, object]) -> bool:
    match fields.get("stream"):
        case None:
            return False
        case bool(streams):
            return streams
    raise BadRequest("`stream` must be true or false", param="stream")


def _unhealthy(model: str) -> web.Response:
    message = f"no node serves {model!r} now"
    return encoder.said(Refusal(503, {"error": {"message": message}}), encoder.UNHEALTHY).response()


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_THERE = frozenset({Reason.FULL, Reason.PAUSED})
_NOT_MEANT = frozenset({Reason.PINNED, Reason.HOP, Reason.OTHER_TYPE, Reason.LEFT})


@dataclass(frozen=True, slots=True)
class Served:
    """The replicas of a model: those available now, and all that are known."""

    now: tuple[Candidate, ...]
    known: tuple[Candidate, ...]


def served(context: Serving, id_: str, model: str) -> Served:
    """Return the replicas that serve completions of a model; busy ones count as available."""
    request = Request(id_, Kind.COMPLETION, model, b"{}", "application/json")
    explained = context.router.explain(request)
    busy = [exclusion.candidate for exclusion in explained.excluded if exclusion.reason in _THERE]
    candidates = [
        exclusion.candidate
        for exclusion in explained.excluded
        if exclusion.reason not in _NOT_MEANT
    ]
    return Served((*explained.ordered, *busy), (*explained.ordered, *candidates))


async def told(context: Serving, served_by: Served) -> WorkerDescription:
    """Return the description of a worker of this machine, an empty one where there is none; other nodes' are in their records."""
    for candidate in served_by.known:
        if candidate.worker is not None:
            with suppress(WorkerFailed):
                return await context.router.describe(candidate.worker) or WorkerDescription()
    return WorkerDescription()


def info(
    context: Serving, name: str, served_by: Served, description: WorkerDescription
) -> Mapping[str, object]:
    """Return TGI's `Info`; `description` is the description of a worker here. Unknown numbers are 0. Raise `UnknownModel`."""
    if not served_by.known:
        raise UnknownModel(name)
    services: list[Service] = [candidate.service for candidate in served_by.known]
    tokens = max(service.context for service in services)
    limits = description.limits
    # At least one token is left for the output.
    read = min(limits.get("max_input_tokens", tokens), max(0, tokens - max(description.output, 1)))
    return {
        "model_id": services[0].model,
        "model_sha": None,
        "model_pipeline_tag": None,
        "max_concurrent_requests": max(sum(c.slots for c in served_by.known), description.slots),
        "max_best_of": limits.get("max_best_of", MAX_BEST_OF),
        "max_stop_sequences": min(limits.get("max_stop_sequences", MAX_STOPS), MAX_STOPS),
        "max_input_tokens": read,
        "max_total_tokens": tokens,
        "validation_workers": limits.get("validation_workers", context.settings.node.workers),
        "max_client_batch_size": limits.get("max_client_batch_size", 1),
        "router": "modelvine",
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


def metrics(context: Serving, served_by: Served) -> bytes:
    """Return two of TGI's series, summed over all replicas of a model, as far as their nodes have reported."""
    loads = [_load(context, candidate) for candidate in served_by.now]
    return b"".join(
        (
            _gauge("tgi_queue_size", sum(load.queued for load in loads)),
            _gauge("tgi_batch_current_size", sum(load.in_flight for load in loads)),
        )
    )


def _load(context: Serving, candidate: Candidate) -> Load:
    if candidate.worker is not None:
        return context.loads.load_of(candidate.worker)
    if candidate.report is not None:
        return candidate.report.load
    return Load(in_flight=candidate.in_flight)


def _gauge(name: str, value: int) -> bytes:
    return f"# TYPE {name} gauge\n{name} {value}\n".encode()
