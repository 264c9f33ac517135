"""Dialect for RemoteLLM (`llm_rpc.api.RemoteLLM`): three RPCs, without streaming, sampling parameters or a health check.

The key is the worker's header `x-api-key`, which is put into each message. The server answers an unknown key without texts.
A stream is one piece of text, sent at the end.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from registry.bounded import put_newest
from registry.intake.shares import holding
from router import worker_headers
from router.answer import Answer, complete_answer
from router.canonical import tokenize
from router.dialects import ALIVE_SECONDS, Recognition
from router.dialects.remotellm_grpc import mapping
from router.dialects.remotellm_grpc.mapping import GENERATE, MAPPING, stops_of
from router.errors import WorkerFailed
from router.http.translator import complete_text_answer, text_form
from router.openai.result_writer import write_guts, write_tokens
from router.peers.links import Links
from router.requests import Kind, Request
from router.rpc import messages
from router.rpc.call import Channels, metadata_to
from router.rpc.failures import RpcFailed, cleaned
from router.rpc.messages import REMOTELLM, methods_of, parse_caller_message
from router.select.candidates import Candidate
from router.translate.request import read_or_reject, refuse_unread_fields
from router.translate.text import OutputPiece
from router.translate.verbatim import Verbatim
from router.worker_description import OfferedModel, WorkerDescription, models_of
from router.workers import Worker

KEY = "x-api-key"
"""The worker's header whose value is put into each message as the key."""

__all__ = ["ENDPOINTS", "MAPPING", "RemoteLlmGrpc", "create"]

ENDPOINTS: Mapping[str, str] = {
    "Generate": "chats and completions, all prompts in one batch; its alternatives serve `n`; a chat becomes one text",
    "GetLlmType": (
        "the model's name at registration; health check: any response counts as alive, and with a request in flight a "
        "new connection"
    ),
    "GenerationalGuts": "`/v1/tokenize`; unchanged at `/v1/x/guts`",
}
"""How each RPC is handled."""

_METHODS = methods_of(REMOTELLM)
_GUTS = "GenerationalGuts"
_NO_KEY = f"GetLlmType failed, perhaps because of a wrong key: its key is the header {KEY}"
_NOT_THE_KEY = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE", "UNIMPLEMENTED"})

MAX_WORKERS = 4_096
"""Workers whose number of alternatives is remembered; beyond that the oldest is forgotten, which costs one call."""


class RemoteLlmGrpc:
    """Client of the RemoteLLM servers of this machine."""

    def __init__(self, links: Links) -> None:
        self._channels = Channels(links.settings, links.guard, links.deadlines)
        links.on_close(self._channels.close)
        self._alternatives: dict[str, int] = {}
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def answer(self, request: Request, candidate: Candidate) -> AsyncIterator[Answer]:
        """Send the request; entering waits for the answer and raises a `WorkerError` until then."""
        worker = candidate.worker
        if worker is None:
            raise WorkerFailed("this dialect supports only workers on this machine")
        match request.kind:
            case Kind.TOKENIZE:
                yield await self._tokens(request, worker)
            case Kind.GUTS:
                yield await self._guts(request, worker)
            case _ if (original := request.verbatim) and (original.protocol, original.call) == (
                worker.dialect,
                GENERATE,
            ):
                yield await self._verbatim(request, original, worker)
            case _:
                yield await self._text(request, worker, candidate.service.model)

    async def alive(self, worker: Worker) -> bool:
        """Ask for the model's type: with any answer the worker lives, with none within the time it does not.

        The original server has one thread for everything. While it works on a request of this node, the only sign of life is
        that it accepts a connection.
        """
        if worker.api in self._under_way:
            return await self._channels.can_connect_tcp(worker.api)
        try:
            return await self._type(worker) is not None
        except WorkerFailed:
            return False
        except RpcFailed as failed:
            return failed.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED")

    async def slots(self, worker: Worker) -> int:  # noqa: ARG002
        """Return 0: the protocol has no such request."""
        return 0

    async def describe(self, worker: Worker) -> WorkerDescription | None:
        """Ask for the type, which is the model's name; the call fails for a key that the server does not know."""
        try:
            name = await self._type(worker)
        except WorkerFailed:
            return None
        except RpcFailed as failed:
            if failed.code in _NOT_THE_KEY:
                return None
            return WorkerDescription(
                "RemoteLLM", fault=failed.describe(f"{_NO_KEY} ({failed.code})")
            )
        if name is None:
            return None
        return WorkerDescription(
            "RemoteLLM",
            models_of([OfferedModel(name)]),
            fault="" if name else f"{_NO_KEY} (no type)",
        )

    async def recognise(self, worker: Worker) -> Recognition:
        """Recognise a server by its answer to `GetLlmType`."""
        question = "GetLlmType of llm_rpc.api.RemoteLLM"
        try:
            name = await self._type(worker)
        except WorkerFailed as lacks:
            return Recognition(question, str(lacks))
        except RpcFailed as failed:
            return Recognition(question, f"{failed.code}: {failed.words}".removesuffix(": "))
        if name is None:
            return Recognition(question, f"no answer of gRPC within {ALIVE_SECONDS:g} s")
        description = WorkerDescription("RemoteLLM", models_of([OfferedModel(name)]))
        return Recognition(
            question,
            repr(cleaned(name)) if name else f"no type: its key is the header {KEY}",
            description,
        )

    async def _type(self, worker: Worker) -> str | None:
        """Return the type that a worker reports, `None` for no answer in time; raise `WorkerFailed` or `RpcFailed`."""
        method = _METHODS["GetLlmType"]
        metadata = dict(worker_headers.read(worker))
        message = method.request_class(api_key=metadata.pop(KEY, ""))
        try:
            reply = await self._channels.send_probe(worker.api, method, message, metadata)
        except RpcFailed as failed:
            failed.redact(b"", [message.api_key])
            raise
        return None if reply is None else str(reply.llm_type)

    async def _verbatim(self, request: Request, original: Verbatim, worker: Worker) -> Answer:
        """Pass on a request of a caller that speaks the same protocol; only the key is replaced."""
        message = parse_caller_message(_METHODS[GENERATE].request_class, original.body)
        reply = await self._send(worker, request, GENERATE, message)
        if len(reply.generations) != len(message.prompts):
            raise mapping.no_text_error()
        answer = complete_answer(reply.SerializeToString(), messages.CONTENT_TYPE)
        answer.verbatim, answer.usage = original.protocol, mapping.usage_of(message, reply)
        return answer

    async def _text(self, request: Request, worker: Worker, name: str) -> Answer:
        text_request, mapped = MAPPING.read(request, worker)
        pieces = await self._gathered(worker, request, mapped.bodies[0], text_request.n)
        # The worker ignores stop strings, and those of a chat's template are not among the caller's.
        text_request = replace(text_request, stop=stops_of(mapped))
        answer = complete_text_answer(
            text_request, text_form(request, name), mapping.texts(text_request, pieces)
        )
        answer.headers = mapped.headers
        answer.hides_usage = answer.streamed and not text_request.include_usage
        return answer

    async def _gathered(
        self, worker: Worker, request: Request, body: Mapping[str, object], n: int
    ) -> list[list[OutputPiece]]:
        """Return at least `n` texts for each prompt; a prompt with too few alternatives is sent again."""
        prompts = [*_prompts(body)]
        gathered: list[list[OutputPiece]] = [[] for _ in prompts]
        least = self._alternatives.get(worker.api, n)
        while short := [index for index, texts in enumerate(gathered) if len(texts) < n]:
            batch = [
                index for index in short for _ in range(-(-(n - len(gathered[index])) // least))
            ]
            fields = {**body, "prompts": [prompts[index] for index in batch]}
            reply = await self._ask(worker, request, GENERATE, fields)
            if len(reply.generations) != len(batch):
                raise mapping.no_text_error()
            batches = [mapping.alternatives(generation) for generation in reply.generations]
            for index, texts in zip(batch, batches, strict=True):
                gathered[index] += texts
            least = min(map(len, batches))
            if n > 1:
                put_newest(self._alternatives, worker.api, least, limit=MAX_WORKERS)
        return gathered

    async def _tokens(self, request: Request, worker: Worker) -> Answer:
        parsed = read_or_reject(tokenize.read, request)
        refuse_unread_fields(MAPPING.name, parsed, tokenize.SHAPING)
        message = {"prompt": parsed.text, "embedding_trunkation": 1, "top_k_logits": 1}
        reply = await self._ask(worker, request, _GUTS, message)
        return complete_answer(write_tokens([token.token_id for token in reply.tokens]))

    async def _guts(self, request: Request, worker: Worker) -> Answer:
        parsed = read_or_reject(mapping.read_guts, request)
        message = {
            "prompt": parsed.text,
            "fft_embeddings": parsed.fft,
            "embedding_trunkation": parsed.numbers,
            "top_k_logits": parsed.next,
        }
        reply = await self._ask(worker, request, _GUTS, message)
        return complete_answer(write_guts(mapping.tokens(reply), mapping.next_tokens(reply)))

    async def _ask(
        self, worker: Worker, request: Request, name: str, fields: Mapping[str, object]
    ) -> Any:
        return await self._send(worker, request, name, _METHODS[name].request_class(**fields))

    async def _send(self, worker: Worker, request: Request, name: str, message: Any) -> Any:
        metadata = dict(metadata_to(worker, request))
        message.api_key = metadata.pop(KEY, "")
        try:
            with holding(self._under_way, worker.api):
                return await self._channels.ask(worker.api, _METHODS[name], message, metadata)
        except RpcFailed as failed:
            failed.redact(b"", [message.api_key])
            raise failed.as_error(name) from failed


def create(links: Links) -> RemoteLlmGrpc:
    """Create the dialect."""
    return RemoteLlmGrpc(links)


def _prompts(body: Mapping[str, object]) -> tuple[str, ...]:
    prompts = body["prompts"]
    return prompts if isinstance(prompts, tuple) else ()
